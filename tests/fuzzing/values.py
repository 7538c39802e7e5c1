"""Mutations of plain data: what JSON, pickles and records of a log are made of."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from random import Random
from typing import Any

ODD: list[Any] = [
    None,
    True,
    0,
    -1,
    1,
    2**31,
    2**53 + 1,
    2**62,
    2**63 - 1,
    2**63,
    -(2**63),
    10**30,
    0.5,
    -0.0,
    1e308,
    float("nan"),
    float("inf"),
    "",
    "0",
    "-1",
    "nan",
    "ü\u2028\x00",
    "a" * 5_000,
    "../../etc/passwd",
    "<script>alert(1)</script>",
    "{}",
    [],
    [0],
    [[[]]],
    {},
    {"a": {}},
    {"name": 5},
    [None, "x", {}],
    "=1+1",
    "%s%n",
    b"\xff\xfe".decode("latin-1"),
]
Path = tuple[Any, ...]


def places(value: Any, at: Path = ()) -> Iterator[Path]:
    """The way to every value inside, outermost first."""
    if at:
        yield at
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, one in inner:
        yield from places(one, (*at, key))


def _holder(value: Any, at: Path) -> Any:
    for key in at[:-1]:
        value = value[key]
    return value


def mutated(value: Any, random: Random) -> tuple[Any, str]:
    """A changed copy, and what was done to it."""
    value = copy.deepcopy(value)
    ways = list(places(value))
    if not ways:
        return random.choice(ODD), "value replaced"
    at = random.choice(ways)
    holder, key = _holder(value, at), at[-1]
    what = random.choice(["replaced", "replaced", "replaced", "dropped", "doubled", "moved", "negated", "nested"])
    if what == "dropped":
        del holder[key]
    elif what == "doubled" and isinstance(holder, list):
        holder.insert(random.randrange(len(holder) + 1), copy.deepcopy(holder[key]))
    elif what == "moved":
        other = random.choice(ways)
        found = copy.deepcopy(_holder(value, other)[other[-1]])
        holder[key] = found
    elif what == "negated" and isinstance(holder[key], int | float) and not isinstance(holder[key], bool):
        holder[key] = -holder[key] - 1
    elif what == "nested":
        inner: Any = []
        for _ in range(random.choice([3, 30, 90])):
            inner = [inner]
        holder[key] = inner
    else:
        what = "replaced"
        holder[key] = copy.deepcopy(random.choice(ODD))
    return value, f"value {what}"

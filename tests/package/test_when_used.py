"""Dataclasses, patterns and TypedDicts made when used are those of the standard library."""

from __future__ import annotations

import dataclasses
import pickle
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from copy import copy
from dataclasses import field
from threading import Barrier
from typing import Any, NotRequired, get_type_hints, is_typeddict

import msgspec
import pytest

from gpuscope import when_used


@when_used.dataclass(frozen=True)
class Base:
    """A record."""

    first: int
    """A field."""


@when_used.dataclass(frozen=True)
class Derived(Base):
    """One with a default that is made anew."""

    more: list[str] = field(default_factory=list)


@dataclasses.dataclass(frozen=True)
class Standard(Derived):
    """The standard library's, of one that is made when used."""

    last: str = "x"


def test_a_dataclass_is_the_standard_one() -> None:
    assert Standard(1) == Standard(1, [], "x")
    assert Derived(1).more is not Derived(1).more
    assert repr(Derived(2)) == "Derived(first=2, more=[])"
    assert hash(Base(3)) == hash(Base(3))
    assert dataclasses.replace(Derived(1), first=5) == Derived(5)
    assert dataclasses.asdict(Derived(1)) == {"first": 1, "more": []}
    assert msgspec.json.decode(msgspec.json.encode(Derived(4)), type=Derived) == Derived(4)
    with pytest.raises(dataclasses.FrozenInstanceError):
        Base(1).first = 2  # type: ignore[misc]
    with pytest.raises(TypeError, match="first"):
        Base()  # type: ignore[call-arg]


def test_fields_and_pickles_make_it_too() -> None:
    made: list[Any] = [
        when_used.dataclass(type("Fresh", (), {"__annotations__": {"a": "int"}, "__module__": __name__}))
        for _ in range(2)
    ]
    assert [one.name for one in dataclasses.fields(made[0])] == ["a"]
    assert msgspec.json.decode(b'{"a": 1}', type=made[1]) == made[1](1)
    # Another process has made none when it reads this.
    program = f"import sys, pickle; a = pickle.loads({pickle.dumps(Derived(7))!r}); print(a, a == type(a)(7))"
    said = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True)
    assert said.stdout == "Derived(first=7, more=[]) True\n"


def test_threads_may_make_the_first_objects_at_once() -> None:
    for _ in range(20):
        fresh: Any = when_used.dataclass(
            type("Fresh", (Base,), {"__annotations__": {"a": "list"}, "a": field(default_factory=list)}), frozen=True
        )
        together = Barrier(4)

        def make(number: int, cls: Any = fresh, barrier: Barrier = together) -> object:
            barrier.wait()
            return cls(number)

        with ThreadPoolExecutor(4) as pool:
            assert [vars(one) for one in pool.map(make, range(4))] == [{"first": n, "a": []} for n in range(4)]


def test_a_pattern_is_the_standard_one() -> None:
    lazy, standard = when_used.pattern(r"(\d+)x", re.IGNORECASE), re.compile(r"(\d+)x", re.IGNORECASE)
    assert lazy.search("12X").group(1) == "12"  # type: ignore[union-attr]
    assert (lazy.pattern, lazy.flags) == (standard.pattern, standard.flags)
    assert lazy.sub("-", "a1x") == "a-"
    assert [one.flags for one in (copy(lazy), pickle.loads(pickle.dumps(lazy)))] == [standard.flags] * 2


class Part(when_used.TypedDict, total=False):
    """What may be there."""

    at: int


class Whole(when_used.TypedDict):
    part: NotRequired[Part]
    names: list[str]


class More(Part):
    also: str


def test_a_typed_dict_is_read_as_the_standard_one() -> None:
    assert all(map(is_typeddict, (Part, Whole, More)))
    assert Part.__doc__ == "What may be there."
    assert get_type_hints(Whole) == {"part": Part, "names": list[str]}
    assert get_type_hints(More) == {"at": int, "also": str}
    assert [*map(sorted, (Part.__required_keys__, Part.__optional_keys__))] == [[], ["at"]]
    assert [*map(sorted, (More.__required_keys__, Whole.__required_keys__))] == [["also"], ["names", "part"]]
    assert type(Whole(names=[])) is dict
    assert msgspec.convert({"names": ["a"]}, Whole) == {"names": ["a"]}
    wrong: list[dict[str, Any]] = [{"part": {}}, {"names": [], "part": {"at": "1"}}]
    for one in wrong:
        with pytest.raises(msgspec.ValidationError):
            msgspec.convert(one, Whole)

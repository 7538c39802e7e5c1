"""The view state as kept in the address: run, ranks, steps, window, selection. A link is the whole state.

`?run=1&ranks=0-3,7&steps=3-8&from=NS&to=NS&event=d12`; times are ns on the run's clock. Invalid
parameters are ignored and listed in `wrong`, so that an old or mistyped link still opens.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field, replace
from typing import Any
from urllib.parse import parse_qsl, urlencode

import click

from gpuscope.commands.options import RankSet, StepRange
from gpuscope.when_used import dataclass
from gpuscope.words import units

MAX_PARAMETERS = 40
MAX_VALUE = 1_000
"""Parameters of an address, and characters of each; a search for a name is the longest."""
SQL = "sql"
MAX_SQL = 2_500
"""The parameter of a query, which may be longer."""
MAX_RANKS = 1 << 16
"""Ranks in a filter: more than any run has."""
_OWN = ("run", "ranks", "steps", "from", "to", "event")


class MalformedStateError(ValueError):
    """A state that no page of this dashboard writes: the request is answered with 400."""


@dataclass(frozen=True)
class View:
    """One state of the dashboard; `None` is «all»."""

    run: str = ""
    ranks: frozenset[int] | None = None
    steps: tuple[int, int] | None = None
    """First and last step, both included."""
    window: tuple[int, int] | None = None
    """Start and end shown by the timeline, ns on the run's clock."""
    event: str = ""
    """The event selected: `d` or `h` (device, host) and its row."""
    extra: Mapping[str, str] = field(default_factory=dict)
    """Parameters of single pages."""
    wrong: Mapping[str, str] = field(default_factory=dict)
    """Invalid parameters, with the reason."""

    def query(self) -> str:
        """As a query string with its `?`; empty for the default state."""
        pairs: dict[str, str] = {}
        if self.run:
            pairs["run"] = self.run
        if self.ranks is not None:
            pairs["ranks"] = units.ranks(self.ranks)
        if self.steps is not None:
            pairs["steps"] = "-".join(map(str, self.steps))
        if self.window is not None:
            pairs["from"], pairs["to"] = map(str, self.window)
        if self.event:
            pairs["event"] = self.event
        pairs |= {key: value for key, value in self.extra.items() if value}
        return "?" + urlencode(pairs, safe=",:") if pairs else ""

    def link(self, path: str, **changes: Any) -> str:
        """The address of a page in this state with some changes."""
        return path + replace(self, **changes).query()

    def has_rank(self, rank: int) -> bool:
        """Whether the filter lets a rank through."""
        return self.ranks is None or rank in self.ranks

    def has_step(self, step: int | None) -> bool:
        """Whether the filter lets a step through; what ran before the first step only where all are shown."""
        return self.steps is None or (step is not None and self.steps[0] <= step <= self.steps[1])


def span_of(given: str) -> tuple[int, int] | None:
    """A span of the address, `START:END` in ns on the run's clock; None for anything else."""
    try:
        start, end = (int(part) for part in given.split(":"))
    except ValueError:
        return None
    return (start, end) if -(2**62) < start < end < 2**62 else None


def text(value: object) -> str:
    """A callback's value that should be text. Raises `MalformedStateError` for anything else."""
    if value is not None and not isinstance(value, str):
        raise MalformedStateError("a parameter is not text")
    return value or ""


def parse(search: object) -> View:
    """The state in a query string. Raises `MalformedStateError` for what is none, or too long."""
    try:
        given = dict(parse_qsl(text(search).removeprefix("?"), max_num_fields=MAX_PARAMETERS))
    except ValueError as error:
        raise MalformedStateError(str(error)) from error
    if any(len(value) > (MAX_SQL if key == SQL else MAX_VALUE) for key, value in given.items()):
        raise MalformedStateError(f"a parameter is longer than {MAX_VALUE} characters")
    wrong: dict[str, str] = {}
    ranks = _converted(RankSet(MAX_RANKS), given, "ranks", wrong)
    steps = _converted(StepRange(), given, "steps", wrong)
    return View(
        run=given.get("run", ""),
        ranks=ranks,
        steps=steps,
        window=_window(given, wrong),
        event=given.get("event", ""),
        extra={key: value for key, value in given.items() if key not in _OWN},
        wrong=wrong,
    )


def _converted(kind: click.ParamType[Any], given: Mapping[str, str], key: str, wrong: dict[str, str]) -> Any:
    if not given.get(key):
        return None
    try:
        return kind.convert(given[key], None, None)
    except click.BadParameter as error:
        wrong[key] = error.message
        return None


def _window(given: Mapping[str, str], wrong: dict[str, str]) -> tuple[int, int] | None:
    if "from" not in given and "to" not in given:
        return None
    try:
        start, end = int(given.get("from", "")), int(given.get("to", ""))
    except ValueError:
        wrong["from"] = "from and to are whole nanoseconds"
        return None
    if not -(2**62) < start < end < 2**62:
        wrong["from"] = "from must be before to"
        return None
    return start, end

"""What a problem of an input is: lost data lowers the confidence of what rests on it, the rest is worth knowing."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import cache
from typing import Literal

from gpuscope.plugins import submodules
from gpuscope.when_used import dataclass

Severity = Literal["info", "data_loss", "error"]
TABLE = "gpuscope.problems"


@dataclass(frozen=True)
class Problem:
    """`count` occurrences of one problem, under a stable code; the message names the file where it helps."""

    severity: Severity
    code: str
    count: int
    message: str


@dataclass(frozen=True)
class ProblemKind:
    """One row of the table. `text` takes facts by name, as `str.format` does (`{file}: {lost:,} rows`)."""

    code: str
    severity: Severity
    text: str
    about: str = ""
    """Markdown for docs/findings.md: what it means, and what to record or to do."""

    def of(self, count: int, **facts: object) -> Problem:
        """`count` occurrences of it. Raises `ValueError` unless the facts are those that the text names."""
        from string import Formatter

        named = {name for _, name, _, _ in Formatter().parse(self.text) if name}
        if named != facts.keys():
            raise ValueError(f"problem {self.code!r} takes the facts {sorted(named)}, not {sorted(facts)}")
        return Problem(self.severity, self.code, int(count), self.text.format(**facts))

    def saying(self, text: str) -> ProblemKind:
        """The same problem in the words that another case needs."""
        return replace(self, text=text, about="")


@cache
def kinds() -> Mapping[str, ProblemKind]:
    """Every kind in the table by its code. Raises `ValueError` where two share one."""
    submodules(TABLE)
    found: dict[str, ProblemKind] = {}
    for name, module in sorted(sys.modules.items()):
        if name.startswith(f"{TABLE}."):
            for kind in vars(module).values():
                if isinstance(kind, ProblemKind) and kind.about and found.setdefault(kind.code, kind) is not kind:
                    raise ValueError(f"two kinds of problems have the code {kind.code!r}")
    return found


def merged(problems: Iterable[Problem]) -> list[Problem]:
    """One entry per (severity, code, message), counts added, in order of first appearance."""
    counts: dict[tuple[Severity, str, str], int] = {}
    for problem in problems:
        key = (problem.severity, problem.code, problem.message)
        counts[key] = counts.get(key, 0) + problem.count
    return [Problem(severity, code, count, message) for (severity, code, message), count in counts.items()]

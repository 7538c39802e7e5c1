"""What a problem of an input is: its code, how grave it is, and the text that its facts are put into."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from gpuscope.trace.problems import Problem, Severity


@dataclass(frozen=True)
class ProblemKind:
    """One row of the table. `text` takes facts by name, as `str.format` does (`{file}: {lost:,} rows`)."""

    code: str
    severity: Severity
    text: str
    about: str = ""
    """Markdown for docs/findings.md: what it means, and what to record or to do."""

    def of(self, count: int, **facts: Any) -> Problem:
        """`count` occurrences of it. Raises `KeyError` where the text names a fact that is not given."""
        return Problem(self.severity, self.code, count, self.text.format(**facts))

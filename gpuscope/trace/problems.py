"""Problems of an input: data loss and warnings; lost data lowers the confidence of dependent results."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Severity = Literal["info", "data_loss", "error"]


@dataclass(frozen=True)
class Problem:
    """`count` occurrences of one problem, under a stable code; the message names the file where it helps."""

    severity: Severity
    code: str
    count: int
    message: str


def merged(problems: list[Problem]) -> list[Problem]:
    """One entry per (severity, code, message), counts added, in order of first appearance."""
    counts: dict[tuple[Severity, str, str], int] = {}
    for problem in problems:
        key = (problem.severity, problem.code, problem.message)
        counts[key] = counts.get(key, 0) + problem.count
    return [Problem(severity, code, count, message) for (severity, code, message), count in counts.items()]

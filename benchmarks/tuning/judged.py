"""What tuning did to a script, beside what could be removed from it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.tuning.cases import Case

ENOUGH = 0.9
"""Of what can be removed, and of the predicted ranges that should hold."""
CHANGES_NOTHING = 0.02
"""Share of the step by which a healthy script may seem faster."""
COLUMNS = [
    "script",
    "budget",
    "slow",
    "fixed",
    "removable by",
    "tuned",
    "share removed",
    "runs",
    "kept",
    "regression kept",
    "ranges that hold",
    "notes",
]


@dataclass(frozen=True)
class Truth:
    """Median step of each run of the script as it stands, of its fixed variant and with what tuning kept, in turns, ms;
    and the last losses of the first two. The fastest run counts: what else the machine does only adds."""

    slow: Sequence[float]
    fixed: Sequence[float]
    tuned: Sequence[float]
    losses: frozenset[str]

    @property
    def removable(self) -> float:
        """Share of the step."""
        return 1 - min(self.fixed) / min(self.slow)


@dataclass(frozen=True)
class Row:
    """A script's outcome; `tuned` is the document of `gpuscope tune --json`, None where it failed."""

    case: Case
    budget: str
    truth: Truth
    tuned: Mapping[str, Any] | None
    failure: str = ""

    @property
    def changes(self) -> list[Mapping[str, Any]]:
        """What was tried."""
        return list(self.tuned["changes"]) if self.tuned else []

    @property
    def kept(self) -> list[Mapping[str, Any]]:
        """What was kept of it."""
        return [change for change in self.changes if change["kept"]]

    @property
    def removed(self) -> float:
        """Share of the step that tuning removed, by the script's own clock."""
        return 1 - min(self.truth.tuned) / min(self.truth.slow) if self.kept else 0.0

    @property
    def share(self) -> float | None:
        """Of what settings can remove, the part that was removed."""
        if self.case.removable != "settings" or self.truth.removable <= CHANGES_NOTHING:
            return None
        return self.removed / self.truth.removable

    @property
    def regression(self) -> bool:
        """Whether a change was kept with which the step was longer."""
        return self.removed < -CHANGES_NOTHING or any(
            change["measured_ns"] > change["before_ns"] for change in self.kept
        )

    @property
    def left_alone(self) -> bool:
        """Of a script from which nothing can be gained: whether it is as it was."""
        return not self.kept

    @property
    def ranges(self) -> list[bool]:
        """Per change with a predicted range that was measured: whether the range holds the measured step."""
        return [
            change["low_ns"] <= change["measured_ns"] <= change["high_ns"]
            for change in self.changes
            if change["low_ns"] is not None and change["measured_ns"] is not None
        ]

    def cells(self) -> list[str]:
        """As the table shows it."""
        slow, fixed = min(self.truth.slow), min(self.truth.fixed)
        tuned = f"{min(self.truth.tuned):.1f} ms" if self.kept else "–"
        ranges = self.ranges
        return [
            self.case.name,
            self.budget,
            f"{slow:.1f} ms",
            f"{fixed:.1f} ms" if self.case.removable != "nothing" else "–",
            self.case.removable,
            tuned,
            "–" if self.share is None else f"{self.share:.0%}",
            str(self.tuned["runs"]) if self.tuned else "–",
            ", ".join(f"`{change['setting']}`" for change in self.kept) or "–",
            "yes" if self.regression else "no",
            f"{sum(ranges)} of {len(ranges)}" if ranges else "–",
            "; ".join(self.notes()) or "–",
        ]

    def notes(self) -> list[str]:
        """What the numbers alone don't say."""
        notes = [self.failure] if self.failure else []
        if len(self.truth.losses) > 1:
            notes.append("the fixed variant's loss differs")
        tried = {code for change in self.changes for code in change["code"].split(" + ")}
        by_hand = {row["code"] for row in self.tuned["by_hand"]} if self.tuned else set()
        if self.case.removable == "by hand" and by_hand & set(self.case.codes):
            notes.append("named as work by hand")
        notes += [
            f"`{code}` not suggested"
            for code in self.case.codes
            if self.case.removable == "settings" and code not in tried | by_hand
        ]
        outcomes = [f"`{change['code']}`: {change['outcome']}" for change in self.changes if not change["kept"]]
        return [*notes, *outcomes]


def totals(rows: Sequence[Row]) -> str:
    """What is asked of tuning, each with its count."""
    removable = [row for row in rows if row.share is not None]
    all_of_it = sum(row.truth.removable for row in removable)
    removed = sum(min(max(row.removed, 0.0), row.truth.removable) for row in removable)
    nothing = [row for row in rows if row.case.removable == "nothing" and row.tuned]
    ranges = [held for row in rows for held in row.ranges]
    enough = sum((row.share or 0.0) >= ENOUGH for row in removable)
    lines = [
        f"{removed / all_of_it:.0%} of what settings can remove was removed; "
        f"{enough} of {len(removable)} scripts lost {ENOUGH:.0%} of it or more"
        if removable
        else "no script from which settings can remove anything",
        f"{sum(row.regression for row in rows)} regressions kept",
        f"{sum(row.left_alone for row in nothing)} of {len(nothing)} scripts without slowness left alone",
        f"{sum(ranges)} of {len(ranges)} predicted ranges hold the measured step",
    ]
    return ". ".join(lines) + "."

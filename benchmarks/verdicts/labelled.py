"""Labelled jobs: the class, cause and share that gpuscope tells, beside the simulated ones."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.table import Table
from simulator.judged import Case
from simulator.nsys_rows import Payloads, write_nsys

from gpuscope.analyzers.run.runner import analyze

SHARE_TOLERANCE = 0.03
"""Shares of causes further from the truth than this are shown."""


@dataclass(frozen=True)
class Judged:
    """A case and the report about it."""

    case: Case
    told: tuple[str, str | None]
    share: float
    causes: dict[str, float]
    stragglers: list[int]
    why: str

    @property
    def right(self) -> bool:
        return self.told == self.case.expected

    @property
    def off(self) -> dict[str, tuple[float, float]]:
        """Causes whose shares are further off than `SHARE_TOLERANCE`: true share, told share."""
        true = self.case.truth.verdict.causes
        both = {name: (true.get(name, 0.0), self.causes.get(name, 0.0)) for name in {*true, *self.causes}}
        return {name: pair for name, pair in sorted(both.items()) if abs(pair[0] - pair[1]) > SHARE_TOLERANCE}


def judge(case: Case, folder: Path, nsys: bool = False) -> Judged:
    """Write the recording, as torch.profiler or as nsys does, analyse it, read the verdict."""
    path = write_nsys(folder / f"{case.name}_nsys", case.run, Payloads()) if nsys else case.write(folder)
    report = analyze(path, advice=False).report
    verdict = report["verdict"]
    told = ("abstained", None) if verdict["abstained"] else (str(verdict["bound_by"]), verdict["cause"])
    windows = sum(entry["window_ns"] for entry in report["ranks"]) or 1
    causes: dict[str, float] = {}
    for entry in report["ranks"]:
        for part in ("cpu", "communication", "memory"):
            for cause, ns in entry["stall_ns"][part].items():
                causes[cause] = causes.get(cause, 0.0) + ns / windows
        causes["unattributed"] = causes.get("unattributed", 0.0) + entry["stall_ns"]["unattributed"] / windows
    late = [entry["rank"] for entry in report.get("stragglers", []) if entry["recurrent"]]
    return Judged(case, told, float(verdict["share_frac"] or 0.0), causes, late, verdict["why"])


def verdict_table(judged: Sequence[Judged]) -> Table:
    """Truth against verdict, case by case."""
    table = Table("job", "what was injected", "is", "share", "told", "share", "right", "causes off: true → told")
    for one in judged:
        truth = one.case.truth.verdict
        off = ", ".join(f"{name} {is_:.3f} → {told:.3f}" for name, (is_, told) in one.off.items())
        table.add_row(
            one.case.name,
            one.case.about,
            _words(one.case.expected),
            f"{truth.share:.3f}",
            _words(one.told),
            f"{one.share:.3f}",
            "yes" if one.right else "NO",
            off,
        )
    return table


def verdict_summary(judged: Sequence[Judged]) -> str:
    """How many are right."""
    right = sum(one.right for one in judged)
    classes = sum(one.told[0] == one.case.expected[0] for one in judged)
    late = [one for one in judged if one.case.straggler]
    named = sum(one.case.straggler is not None and one.stragglers == [one.case.straggler[0]] for one in late)
    close = sum(not one.off for one in judged)
    return (
        f"{right} of {len(judged)} verdicts right, {classes} classes; all shares within {SHARE_TOLERANCE:.0%} in "
        f"{close}; the late rank alone named in {named} of {len(late)}"
    )


@dataclass
class Rates:
    """How many of several kinds of jobs are told right."""

    jobs: int = 0
    classes: int = 0
    causes: int = 0

    def count(self, one: Judged) -> None:
        """Count one more job."""
        self.jobs += 1
        self.classes += one.told[0] == one.case.expected[0]
        self.causes += one.right

    def __str__(self) -> str:
        return f"{self.jobs} jobs: class {self.classes / self.jobs:.1%}, class and cause {self.causes / self.jobs:.1%}"


def _words(told: tuple[str, str | None]) -> str:
    return ", ".join(word for word in told if word)

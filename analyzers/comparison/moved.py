"""What moved between two runs: parts of the breakdown, causes, findings, kernels, collectives; the largest first.

`Unit` says what times are per: with steps a step and rank, else a window and rank.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

from gpuscope.report.view import report_rows
from gpuscope.schema.diff_document import (
    CauseChange,
    CollectiveChange,
    CollectiveSide,
    FindingChange,
    KernelChange,
    OperatorChange,
    PartChange,
)
from gpuscope.schema.document import BreakdownEntry, CollectiveEntry, Report, StepEntry, StepTime
from gpuscope.schema.job_log_section import JobLogSection
from gpuscope.schema.nccl_sections import OperatorEntry
from gpuscope.welch import difference, fmean, lower_median, sample, whole_mean
from gpuscope.when_used import dataclass
from gpuscope.words.vocabulary import PARTS, PartKey

# The steady steps of a run, one value per step.
#
# The ranks of a step wait for each other, so their step times are one observation, not several: the largest.

Value = Callable[[StepEntry], int]


@dataclass(frozen=True)
class Series:
    """The judged steps that all ranks have, in order; each with the entries of its ranks."""

    steps: tuple[tuple[StepEntry, ...], ...]
    of_run_ns: Mapping[str, int]
    """By step number how long it takes the run, where that is not the largest over the ranks."""
    told: StepTime | None
    """What the report says of the same steps."""

    def values(self, of: Value) -> list[float]:
        """Per step the mean over ranks of `of`."""
        return [fmean(of(entry) for entry in entries) for entries in self.steps]

    @property
    def durations(self) -> list[float]:
        """Step times, ns: the largest over the ranks, or from begin to begin where they take turns being late."""
        return [
            float(self.of_run_ns.get(str(entries[0]["step"])) or max(entry["dur_ns"] for entry in entries))
            for entries in self.steps
        ]


def series(report: Report) -> Series:
    """The steady steps of a report; all of them where fewer than two are. A step that a rank lacks is none."""
    if not report["ranks"] and "job_log" in report:
        return _of_log(report["job_log"])
    lanes = {(entry["rank"], entry["device"]) for entry in report["ranks"] if entry["steps"]}
    by_step: dict[int, list[StepEntry]] = {}
    for entry in report["steps"]:
        if entry["step"] is not None:
            by_step.setdefault(entry["step"], []).append(entry)
    whole = [tuple(own) for _, own in sorted(by_step.items()) if len(own) == len(lanes)]
    steady = [own for own in whole if all(entry["role"] == "steady" for entry in own)]
    told = report["step_time"]
    return Series(tuple(steady if len(steady) > 1 else whole), told.get("of_run_ns", {}) if told else {}, told)


USUAL = (0.5, 1.5)
"""Times the steady median: steps of a log outside of these are warm-up or long, and none of the usual ones."""


def _of_log(log: JobLogSection) -> Series:
    """The steady steps of a job's log, behind its last shift; no part of a step is known."""
    first, usual = max((one["step"] for one in log["shifts"]), default=0), log["step_ns"] or 0
    parts: BreakdownEntry = {"compute": 0, "exposed_communication": 0, "exposed_memory": 0, "idle": 0}
    steps: list[tuple[StepEntry, ...]] = []
    for number, ns in log.get("step_times", []):
        if number >= first and USUAL[0] * usual <= ns <= USUAL[1] * usual:
            entry: StepEntry = {
                "step": number,
                "rank": 0,
                "device": None,
                "role": "steady",
                "start_ns": 0,
                "dur_ns": ns,
                "breakdown_ns": parts,
                "bound_by": "compute",
                "cause": None,
            }
            steps.append((entry,))
    return Series(tuple(steps), {}, None)


def step(own: Series) -> int | None:
    """«The step», ns: the median of the steps; None without any."""
    if own.told is not None and own.told["steps"] == len(own.steps):
        return own.told["median_ns"]
    return round(lower_median(own.durations)) if own.steps else None


def mean_window_ns(report: Report) -> int | None:
    """Mean over ranks; None without ranks."""
    return whole_mean(entry["window_ns"] for entry in report["ranks"])


@dataclass(frozen=True)
class Unit:
    """How often the unit of comparison occurs in a report: over all ranks, and in one of them; and «the step» by the
    mean of the steps counted, 1 without steps: times are shares of these times «the step» (definitions, «Steps»)."""

    all_ranks: int
    one_rank: float
    the_step: float = 1.0

    def time(self, ns: float) -> int:
        """ns of all ranks per unit and rank."""
        return round(ns / self.all_ranks * self.the_step)

    def time_of_one(self, ns: float) -> int:
        """ns of one rank per unit."""
        return round(ns / self.one_rank * self.the_step)

    @classmethod
    def of(cls, report: Report, per_step: bool) -> Unit:
        """Steps, or windows."""
        lanes = max(len(report["ranks"]), 1)
        number = sum(entry["steps"] for entry in report["ranks"]) if per_step else lanes
        judged = sum(entry["window_ns"] for entry in report["ranks"])
        return cls(max(number, 1), max(number, 1) / lanes, _the_step(report, per_step, judged, number))

    @classmethod
    def recorded(cls, report: Report, per_step: bool) -> Unit:
        """The same for what is counted over the whole recording: all its steps, judged or not."""
        lanes = max(len(report["ranks"]), 1)
        steps = [entry["dur_ns"] for entry in report["steps"] if entry["step"] is not None]
        number = len(steps) if per_step else lanes
        return cls(max(number, 1), max(number, 1) / lanes, _the_step(report, per_step, sum(steps), number))


def _the_step(report: Report, per_step: bool, spent: int, number: int) -> float:
    """«The step» by the mean of so many steps that took `spent` ns in all."""
    step = report_rows.step_ns(report)
    return step * number / spent if per_step and step is not None and spent else 1.0


def breakdown(before: Report, after: Report, own: Series, other: Series, per_step: bool) -> list[PartChange]:
    """The four parts, per step as shares of the judged time times «the step», with the interval of their change where
    there are steps."""
    if not before["ranks"] or not after["ranks"]:
        return []
    return [_part(part.key, before, after, own, other, per_step) for part in PARTS]


def _part(key: PartKey, before: Report, after: Report, own: Series, other: Series, per_step: bool) -> PartChange:
    totals = [[entry["breakdown_ns"][key] for entry in report["ranks"]] for report in (before, after)]
    means = [whole_mean(values) or 0 for values in totals]
    low = high = None
    if per_step:
        values = [steps.values(lambda entry: entry["breakdown_ns"][key]) for steps in (own, other)]
        means = [
            Unit.of(report, per_step).time(sum(total)) for report, total in zip((before, after), totals, strict=True)
        ]
        first, second = sample(values[0]), sample(values[1])
        if first and second:
            change, half = means[1] - means[0], difference(first, second).half
            low, high = round(change - half), round(change + half)
    return {
        "part": key,
        "before_ns": means[0],
        "after_ns": means[1],
        "change_ns": means[1] - means[0],
        "low_ns": low,
        "high_ns": high,
        "total_before_ns": sum(totals[0]),
        "total_after_ns": sum(totals[1]),
    }


def causes(before: Report, after: Report, units: tuple[Unit, Unit]) -> list[CauseChange]:
    """Every cause that either run has."""
    sides = [
        {(row.class_name, row.cause): unit.time(row.total_ns) for row in report_rows.causes(report)}
        for report, unit in zip((before, after), units, strict=True)
    ]
    keys = dict.fromkeys([*sides[0], *sides[1]])
    rows: list[CauseChange] = [
        {
            "class": key[0],
            "cause": key[1],
            "before_ns": sides[0].get(key, 0),
            "after_ns": sides[1].get(key, 0),
            "change_ns": sides[1].get(key, 0) - sides[0].get(key, 0),
        }
        for key in keys
    ]
    return sorted(rows, key=lambda row: -abs(row["change_ns"]))


def findings(before: Report, after: Report) -> FindingChange:
    """Codes of findings that came and went, or whose severity changed; of several of one code the worst counts."""
    old, new = _severities(before), _severities(after)
    both = sorted(set(old) & set(new))
    return {
        "new": sorted(set(new) - set(old)),
        "gone": sorted(set(old) - set(new)),
        "worse": [code for code in both if new[code] > old[code]],
        "better": [code for code in both if new[code] < old[code]],
    }


def _severities(report: Report) -> dict[str, int]:
    order = ("low", "medium", "high")
    worst: dict[str, int] = {}
    for finding in report["findings"]:
        worst[finding["code"]] = max(order.index(finding["severity"]), worst.get(finding["code"], 0))
    return worst


def kernels(before: Report, after: Report, units: tuple[Unit, Unit]) -> list[KernelChange]:
    """Every kernel, copy and collective by name and category."""
    sides = [
        {
            (row["name"], row["category"]): (unit.time(row["dur_ns"]), row["count"] / unit.all_ranks)
            for row in report["kernels"]
        }
        for report, unit in zip((before, after), units, strict=True)
    ]
    rows: list[KernelChange] = []
    for key in dict.fromkeys([*sides[0], *sides[1]]):
        (old_ns, old_count), (new_ns, new_count) = sides[0].get(key, (0, 0.0)), sides[1].get(key, (0, 0.0))
        rows.append(
            {
                "name": key[0],
                "category": key[1],
                "before_ns": old_ns,
                "after_ns": new_ns,
                "change_ns": new_ns - old_ns,
                "before_count": old_count,
                "after_count": new_count,
            }
        )
    return sorted(rows, key=lambda row: -abs(row["change_ns"]))


def operators(before: Report, after: Report, units: tuple[Unit, Unit]) -> list[OperatorChange]:
    """Every operator by name, the one whose own time changed most first; none where a report lacks them."""
    sides = [{row["name"]: row for row in report.get("operators", [])} for report in (before, after)]
    if not all(sides):
        return []
    on_device = all(row["device_self_ns"] is not None for side in sides for row in side.values())
    rows: list[OperatorChange] = []
    for name in dict.fromkeys([*sides[0], *sides[1]]):
        old, new = (_operator(side.get(name), unit) for side, unit in zip(sides, units, strict=True))
        known = on_device and old.device is not None and new.device is not None
        rows.append(
            {
                "name": name,
                "before_device_ns": old.device,
                "after_device_ns": new.device,
                "before_host_ns": old.host,
                "after_host_ns": new.host,
                "change_ns": (new.device or 0) - (old.device or 0) if known else new.host - old.host,
                "before_count": old.calls,
                "after_count": new.calls,
            }
        )
    return sorted(rows, key=lambda row: -abs(row["change_ns"]))


class _Operator(NamedTuple):
    """An operator in one run, per step (or window) and rank."""

    device: int | None
    host: int
    calls: float


def _operator(row: OperatorEntry | None, unit: Unit) -> _Operator:
    if row is None:
        return _Operator(0, 0, 0.0)
    device = row["device_self_ns"]
    return _Operator(
        None if device is None else unit.time(device), unit.time(row["host_self_ns"]), row["count"] / unit.all_ranks
    )


def compute_kernels(report: Report) -> int:
    """Kernels of the whole window over all ranks that neither communicate nor copy."""
    return sum(row["count"] for row in report["kernels"] if row["category"] not in ("communication", "memory"))


def collectives(before: Report, after: Report, units: tuple[Unit, Unit]) -> list[CollectiveChange]:
    """Every operation of every group, the one whose time changed most first."""
    sides: list[Mapping[tuple[str, str | None], CollectiveSide]] = [
        {(row["op"], row["group"]): _collective(row, unit) for row in report["collectives"]}
        for report, unit in zip((before, after), units, strict=True)
    ]
    rows: list[CollectiveChange] = [
        {"op": op, "group": group, "before": sides[0].get((op, group)), "after": sides[1].get((op, group))}
        for op, group in dict.fromkeys([*sides[0], *sides[1]])
    ]
    return sorted(rows, key=lambda row: -abs(_spent(row["after"]) - _spent(row["before"])))


def _spent(side: CollectiveSide | None) -> int:
    return side["dur_ns"] if side else 0


def _collective(row: CollectiveEntry, unit: Unit) -> CollectiveSide:
    wait, transfer, size = row["wait_ns"], row["transfer_ns"], row["bytes"]
    return {
        "count": row["count"] / unit.one_rank,
        "bytes": None if size is None else round(size / unit.one_rank),
        "dur_ns": unit.time(row["dur_ns"]),
        "wait_ns": None if wait is None else unit.time(wait),
        "transfer_ns": None if transfer is None else unit.time_of_one(transfer),
        "busbw_gbps": row["busbw_gbps"],
    }

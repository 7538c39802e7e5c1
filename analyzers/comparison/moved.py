"""What moved between two runs: parts of the breakdown, causes, findings, kernels, collectives; the largest first.

`Unit` says what times are per: with steps a step and rank, else a window and rank.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from gpuscope.analyzers.comparison.series import Series, mean
from gpuscope.analyzers.comparison.welch import difference, sample
from gpuscope.report.schema.diff_document import (
    CauseChange,
    CollectiveChange,
    CollectiveSide,
    FindingChange,
    KernelChange,
    OperatorChange,
    PartChange,
)
from gpuscope.report.schema.document import CollectiveEntry, Report
from gpuscope.report.schema.profile_sections import OperatorEntry
from gpuscope.report.view import arrangement
from gpuscope.report.view.vocabulary import PARTS, PartKey


@dataclass(frozen=True)
class Unit:
    """How often the unit of comparison occurs in a report: over all ranks, and in one of them."""

    all_ranks: int
    one_rank: float

    @classmethod
    def of(cls, report: Report, per_step: bool) -> Unit:
        """Steps, or windows."""
        lanes = max(len(report["ranks"]), 1)
        number = sum(entry["steps"] for entry in report["ranks"]) if per_step else lanes
        return cls(max(number, 1), max(number, 1) / lanes)

    @classmethod
    def recorded(cls, report: Report, per_step: bool) -> Unit:
        """The same for what is counted over the whole recording: all its steps, judged or not."""
        lanes = max(len(report["ranks"]), 1)
        number = sum(entry["step"] is not None for entry in report["steps"]) if per_step else lanes
        return cls(max(number, 1), max(number, 1) / lanes)


def breakdown(before: Report, after: Report, own: Series, other: Series, per_step: bool) -> list[PartChange]:
    """The four parts, with the interval of their change where there are steps."""
    if not before["ranks"] or not after["ranks"]:
        return []
    return [_part(part.key, before, after, own, other, per_step) for part in PARTS]


def _part(key: PartKey, before: Report, after: Report, own: Series, other: Series, per_step: bool) -> PartChange:
    totals = [[entry["breakdown_ns"][key] for entry in report["ranks"]] for report in (before, after)]
    means = [mean(values) or 0 for values in totals]
    low = high = None
    if per_step:
        values = [steps.values(lambda entry: entry["breakdown_ns"][key]) for steps in (own, other)]
        means = [mean(one) or 0 for one in values]
        first, second = sample(values[0]), sample(values[1])
        if first and second:
            bounds = difference(first, second)
            low, high = round(bounds.low), round(bounds.high)
    return {
        "part": key, "before_ns": means[0], "after_ns": means[1], "change_ns": means[1] - means[0],
        "low_ns": low, "high_ns": high, "total_before_ns": sum(totals[0]), "total_after_ns": sum(totals[1]),
    }  # fmt: skip


def causes(before: Report, after: Report, units: tuple[Unit, Unit]) -> list[CauseChange]:
    """Every cause that either run has."""
    sides = [
        {(row.class_name, row.cause): round(row.total_ns / unit.all_ranks) for row in arrangement.causes(report)}
        for report, unit in zip((before, after), units, strict=True)
    ]
    keys = dict.fromkeys([*sides[0], *sides[1]])
    rows: list[CauseChange] = [
        {"class": key[0], "cause": key[1], "before_ns": sides[0].get(key, 0), "after_ns": sides[1].get(key, 0),
         "change_ns": sides[1].get(key, 0) - sides[0].get(key, 0)}
        for key in keys
    ]  # fmt: skip
    return sorted(rows, key=lambda row: -abs(row["change_ns"]))


def findings(before: Report, after: Report) -> FindingChange:
    """Codes of findings that came and went, or whose severity changed; of several of one code the worst counts."""
    old, new = _severities(before), _severities(after)
    both = sorted(set(old) & set(new))
    return {
        "new": sorted(set(new) - set(old)), "gone": sorted(set(old) - set(new)),
        "worse": [code for code in both if new[code] > old[code]],
        "better": [code for code in both if new[code] < old[code]],
    }  # fmt: skip


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
            (row["name"], row["category"]): (round(row["dur_ns"] / unit.all_ranks), row["count"] / unit.all_ranks)
            for row in report["kernels"]
        }
        for report, unit in zip((before, after), units, strict=True)
    ]
    rows: list[KernelChange] = []
    for key in dict.fromkeys([*sides[0], *sides[1]]):
        (old_ns, old_count), (new_ns, new_count) = sides[0].get(key, (0, 0.0)), sides[1].get(key, (0, 0.0))
        rows.append({
            "name": key[0], "category": key[1], "before_ns": old_ns, "after_ns": new_ns, "change_ns": new_ns - old_ns,
            "before_count": old_count, "after_count": new_count,
        })  # fmt: skip
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
        rows.append({
            "name": name, "before_device_ns": old.device, "after_device_ns": new.device,
            "before_host_ns": old.host, "after_host_ns": new.host,
            "change_ns": (new.device or 0) - (old.device or 0) if known else new.host - old.host,
            "before_count": old.calls, "after_count": new.calls,
        })  # fmt: skip
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
    each = unit.all_ranks
    return _Operator(
        None if device is None else round(device / each), round(row["host_self_ns"] / each), row["count"] / each
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
    def per(value: int | None, of: float) -> int | None:
        return None if value is None else round(value / of)

    return {
        "count": row["count"] / unit.one_rank, "bytes": per(row["bytes"], unit.one_rank),
        "dur_ns": round(row["dur_ns"] / unit.all_ranks), "wait_ns": per(row["wait_ns"], unit.all_ranks),
        "transfer_ns": per(row["transfer_ns"], unit.one_rank), "busbw_gbps": row["busbw_gbps"],
    }  # fmt: skip

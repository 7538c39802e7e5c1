"""Where device time goes, kernel by kernel: count, time, share, category, launching operator, achieved FLOP rate."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from gpuscope.analyzers.base.analyzer import DEVICE_EVENTS, FileAnalyzer, Result
from gpuscope.analyzers.base.lanes import KERNEL_RANKS, KERNELS, LaneView
from gpuscope.analyzers.device_time.kernel_facts import kernel_facts
from gpuscope.analyzers.device_time.operator_work import Labels, Work, device_models, label, operators
from gpuscope.hardware.device_peaks import peak_flops
from gpuscope.schema.document import KernelEntry
from gpuscope.schema.nccl_sections import KernelRankEntry
from gpuscope.trace.kinds import Rule, known_by
from gpuscope.trace.name_pool import NO_NAME
from gpuscope.trace.schema import NA
from gpuscope.trace.table import (
    Array,
    Grouped,
    Times,
    blocks,
    distinct,
    distinct_rows,
    distinct_values,
    grouped,
    is_constant,
    mapped,
    picked,
)
from gpuscope.trace.trace import Trace

_ROOM = 64
"""More than there are categories, so that name and category fit into one key."""
OF_A_RANK = 50
"""Kernels of each rank that are compared over ranks: those that take longest."""


def run(trace: Trace, lanes: Sequence[LaneView]) -> Result:
    """The tables of kernels over the lanes' windows, the costliest first: over all lanes, and lane by lane."""
    device = trace["device_events"]
    facts = kernel_facts(trace)
    inside = [_inside(trace, view) for view in lanes]
    rows = inside[0] if len(inside) == 1 else np.concatenate(inside) if inside else np.empty(0, np.int64)
    duration = device.at("end", rows) - device.at("start", rows)
    unique, group = _groups(trace, rows, facts.category)
    operator = operators(trace, rows)
    result = Result(ANALYZER.name)
    stats, launched_by = grouped(duration, group, len(unique)), _main_operators(group, duration, operator, len(unique))
    rates = _rates(trace, rows, group, facts.work, duration)
    result.sections[KERNELS] = _entries(trace, unique, stats, launched_by, rates)
    of_lanes: list[KernelRankEntry] = []
    first = 0
    for view, own in zip(lanes, inside, strict=True):
        block = slice(first, first + len(own))
        first += len(own)
        if len(lanes) > 1:
            stats = grouped(duration[block], group[block], len(unique))
            launched_by = _main_operators(group[block], duration[block], operator[block], len(unique))
        of_lanes += _of_lane(trace, view, unique, stats, launched_by)
    if of_lanes:
        result.sections[KERNEL_RANKS] = of_lanes
    return result


def _inside(trace: Trace, view: LaneView) -> Times:
    """Rows of a lane's device events that touch its window."""
    device, rows = trace["device_events"], view.rows
    touching = (device.at("end", rows) > view.window[0]) & (device.at("start", rows) < view.window[1])
    return rows if touching.all() else rows[touching]


def _groups(trace: Trace, rows: Times, category: Labels) -> tuple[Times, Array]:
    """The distinct names and categories of device events as one key each, ascending, and for each event the place of
    its own among these."""
    name = trace["device_events"]["name"]
    key = np.empty(len(rows), np.int32 if len(trace.names) * _ROOM < 2**31 else np.int64)
    for block in blocks(0, len(rows)):
        key[block] = name[rows[block]].astype(np.int64) * _ROOM + category[rows[block]]
    unique = distinct_values(key).astype(np.int64)
    return unique, mapped(key, unique, np.arange(len(unique), dtype=np.int32))


def _entries(
    trace: Trace,
    unique: Times,
    stats: Grouped,
    launched_by: Sequence[int],
    rates: dict[int, tuple[float, str | None, float | None]],
) -> list[KernelEntry]:
    everything = int(stats.total.sum())
    entries: list[KernelEntry] = []
    for index in np.argsort(-stats.total, kind="stable").tolist():
        rate, precision, peak_frac = rates.get(index, (None, None, None))
        total, count = int(stats.total[index]), int(stats.number[index])
        entries.append(
            {
                "name": trace.names[int(unique[index]) // _ROOM],
                "category": label(int(unique[index]) % _ROOM),
                "operator": _name(trace, launched_by[index]),
                "known_by": _rule(trace.names[int(unique[index]) // _ROOM], label(int(unique[index]) % _ROOM)),
                "count": count,
                "dur_ns": total,
                "mean_ns": total // count,
                "min_ns": int(stats.least[index]),
                "max_ns": int(stats.largest[index]),
                "share_frac": total / everything if everything else 0.0,
                "flops_per_s": rate,
                "precision": precision,
                "peak_frac": peak_frac,
            }
        )
    return entries


def _rule(name: str, category: str) -> Rule | None:
    """The rule that knows a kernel of communication."""
    if category != "communication":
        return None
    on_host = name.startswith(("gloo:", "c10d::", "_c10d_functional::"))  # a CPU run's device work is operators
    return "name" if on_host else known_by(name) or "launcher"


def _of_lane(
    trace: Trace, view: LaneView, unique: Times, stats: Grouped, launched_by: Sequence[int]
) -> list[KernelRankEntry]:
    """A lane's own statistics of the kernels that take most of its time."""
    everything = int(stats.total.sum())
    entries: list[KernelRankEntry] = []
    for index in np.argsort(-stats.total, kind="stable")[:OF_A_RANK].tolist():
        total, count = int(stats.total[index]), int(stats.number[index])
        if not count:
            break
        entries.append(
            {
                "rank": view.lane.rank,
                "device": None if view.lane.device == NA else view.lane.device,
                "name": trace.names[int(unique[index]) // _ROOM],
                "category": label(int(unique[index]) % _ROOM),
                "operator": _name(trace, launched_by[index]),
                "count": count,
                "dur_ns": total,
                "mean_ns": total // count,
                "median_ns": int(stats.median[index]),
                "min_ns": int(stats.least[index]),
                "max_ns": int(stats.largest[index]),
                "share_frac": total / everything if everything else 0.0,
            }
        )
    return entries


def _name(trace: Trace, code: int) -> str | None:
    return None if code == NO_NAME else trace.names[code]


def _main_operators(group: Array, duration: Times, operator: Array, groups: int) -> list[int]:
    """Per group the operator that launched most of its time (`NO_NAME`: not recorded), a code, shape (groups,)."""
    if is_constant(operator):
        return [int(operator[0])] * groups
    names, which = distinct(operator)
    pairs, of_pair = distinct(group * len(names) + which)
    spent = np.zeros(len(pairs), np.int64)
    np.add.at(spent, of_pair, duration)
    found = np.full(groups, NO_NAME, np.int64)
    order = np.argsort(spent, kind="stable")  # the longest is written last
    if len(names):
        found[pairs[order] // len(names)] = names[pairs[order] % len(names)]
    return [int(code) for code in found]


def _rates(
    trace: Trace, rows: Times, group: Array, work: Work, duration: Times
) -> dict[int, tuple[float, str | None, float | None]]:
    """Per group of kernels (device events `rows`; `work` is of all) whose FLOPs are known: their rate, precision,
    and share of the peak of their device.

    Precision and share are None where kernels of the group differ in them, or they are not known.
    """
    device, models = trace["device_events"], device_models(trace)
    kinds: dict[int, set[tuple[str | None, str]]] = {}
    known = np.flatnonzero(picked(work.flops, rows))
    asked, of = rows[known], group[known]
    sums = np.stack([np.bincount(of, work.flops[asked]), np.bincount(of, duration[known])], axis=1).tolist()
    columns = (of, work.precision[asked], device.at("rank", asked), device.at("device", asked))
    first, _ = distinct_rows(*columns)
    for key, precision_code, rank, number in zip(*(column[first].tolist() for column in columns), strict=True):
        kinds.setdefault(key, set()).add((work.precisions[precision_code], models.get((rank, number), "")))
    rates: dict[int, tuple[float, str | None, float | None]] = {}
    for key in kinds:
        flops, spent = sums[key]
        if not spent:
            continue
        rate = flops / spent * 1e9
        precisions = {precision for precision, _ in kinds[key]}
        precision = precisions.pop() if len(precisions) == 1 else None
        peaks = {peak_flops(model, precision) if precision else None for _, model in kinds[key]}
        peak = peaks.pop() if len(peaks) == 1 else None
        rates[key] = (rate, precision, rate / peak if peak else None)
    return rates


ANALYZER = FileAnalyzer("kernels", run, (DEVICE_EVENTS,), (KERNELS, KERNEL_RANKS))

"""Bandwidth by operation, group and size against the peak of the link, and the cost α + S·factor/B fitted to it.

From the collectives of a trace and from what NCCL's own tools measured.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from gpuscope.analyzers.collectives.message_cost import CostModel, fit_or_why
from gpuscope.analyzers.facts.host_links import Host
from gpuscope.analyzers.facts.placement import Placed, Placement
from gpuscope.analyzers.facts.run_facts import RunAnalyzer, RunFacts
from gpuscope.analyzers.frame.analyzer import Result
from gpuscope.analyzers.frame.needs import Need, any_of
from gpuscope.analyzers.frame.sections import BANDWIDTH, FITS
from gpuscope.analyzers.nccl.choices import Choices
from gpuscope.analyzers.topology.link_peak import Peak, peak
from gpuscope.hardware.bus_bandwidth import algbw, busbw, busbw_factor
from gpuscope.report.schema.nccl_sections import BandwidthEntry, FitEntry
from gpuscope.trace.columns.name_pool import NO_NAME
from gpuscope.trace.columns.table import Times
from gpuscope.trace.naming.kinds import POINT_TO_POINT
from gpuscope.trace.schema import NA
from gpuscope.trace.trace import Trace

TRACE = "trace"
MOST_SIZES = 64
"""Sizes of one operation and group that are listed: those that took most time. The fit takes all of them."""


@dataclass
class Series:
    """Timed operations of one kind over one group: sizes in bytes, times in ns, by how many operations each."""

    tool: str
    op: str
    group: str | None
    group_size: int
    placed: Placed
    lower_bound: bool = False
    bytes: list[int] = field(default_factory=list)
    dur: list[int] = field(default_factory=list)
    count: list[int] = field(default_factory=list)
    variant: list[str | None] = field(default_factory=list)
    wrong: list[int | None] = field(default_factory=list)

    def add(self, nbytes: int, dur: int, count: int = 1, variant: str | None = None, wrong: int | None = None) -> None:
        """One timing."""
        for column, value in ((self.bytes, nbytes), (self.dur, dur), (self.count, count)):
            column.append(value)
        self.variant.append(variant)
        self.wrong.append(wrong)


def run(facts: RunFacts) -> Result:
    """The sections `bandwidth` and `fits`, where sizes are recorded."""
    result = Result(ANALYZER.name)
    choices = Choices(facts.trace.rows("choices"))
    found = [*_of_trace(facts), *_of_tools(facts.trace, facts.placement)]
    if found:
        result.sections[BANDWIDTH] = [row for series in found for row in _rows(series, facts.hosts, choices)]
        result.sections[FITS] = [fit for series in found for fit in _fits(series, choices)]
    return result


def _of_trace(facts: RunFacts) -> list[Series]:
    """A series per operation and group. Matched operations count with their transfer, the shortest duration over
    the ranks; where none of a group is matched, each rank's own time is all there is, waiting included."""
    trace, placement = facts.trace, facts.placement
    table = trace["collectives"]
    sized = np.flatnonzero((table["bytes"] != NA) & (table["end"] != NA) & (table["start"] != NA))
    if not len(sized):
        return []
    matched, groups = facts.matched, facts.matched.groups
    instances = matched.instances
    shortest = instances.reduce(np.minimum, (table["end"] - table["start"])[instances.rows])
    found: dict[tuple[str, int], Series] = {}
    lone: dict[tuple[str, int], list[int]] = defaultdict(list)
    first = instances.rows[instances.bounds[:-1]]
    for row, transfer in zip(first.tolist(), shortest.tolist(), strict=True):
        if int(table["bytes"][row]) != NA:
            key = _op(trace, row), int(groups.of_row[row])
            _series(found, trace, placement, key, row, groups.ranks[key[1]], groups.members).add(
                int(table["bytes"][row]), transfer
            )
    for row in sized[matched.of_row[sized] == NA].tolist():
        lone[_op(trace, row), int(groups.of_row[row])].append(row)
    for key, rows in lone.items():
        if key in found:
            continue
        for row in rows:
            series = _series(found, trace, placement, key, row, groups.ranks[key[1]], groups.members)
            series.add(int(table["bytes"][row]), int(table["end"][row] - table["start"][row]))
            series.lower_bound = True
    return sorted(found.values(), key=lambda series: (series.op, series.group or ""))


def _op(trace: Trace, row: int) -> str:
    op = trace.names[int(trace["collectives"]["op"][row])]
    return "send_recv" if op in POINT_TO_POINT else op


def _series(
    found: dict[tuple[str, int], Series], trace: Trace, placement: Placement, key: tuple[str, int], row: int,
    ranks: Times | None, members: Times,
) -> Series:  # fmt: skip
    if key not in found:
        table, size = trace["collectives"], int(members[key[1]])
        size = 0 if size == NA else size
        label = next((code for code in (int(table["group_description"][row]), int(table["group"][row]))
                      if code != NO_NAME), NO_NAME)  # fmt: skip
        placed = placement.of_ranks(None if ranks is None else ranks.tolist(), size)
        found[key] = Series(TRACE, key[0], None if label == NO_NAME else trace.names[label], size, placed)
    return found[key]


def _of_tools(trace: Trace, placement: Placement) -> list[Series]:
    """A series per tool, operation and number of ranks."""
    found: dict[tuple[str, str, int], Series] = {}
    for row in trace.rows("measurements"):
        tool, op, size = key = row["tool"], row["op"], row["group_size"]
        series = found.setdefault(key, Series(tool, op, None, size, placement.of_size(size)))
        series.add(row["bytes"], row["dur"], row["count"] or 1, row["variant"], row["wrong"])
    return [found[key] for key in sorted(found)]


def _rows(series: Series, topologies: Sequence[Host], choices: Choices) -> list[BandwidthEntry]:
    """One entry per size and variant, by size."""
    by_size: dict[tuple[int, str | None], list[int]] = defaultdict(list)
    for index, key in enumerate(zip(series.bytes, series.variant, strict=True)):
        by_size[key].append(index)
    spent = {key: sum(series.dur[i] * series.count[i] for i in own) for key, own in by_size.items()}
    listed = sorted(by_size, key=lambda key: -spent[key])
    if series.tool == TRACE:
        listed = listed[:MOST_SIZES]
    found = _peak(series, topologies)
    return [
        _entry(series, size, variant, by_size[size, variant], spent[size, variant], found, choices)
        for size, variant in sorted(listed, key=lambda key: (key[0], key[1] or ""))
    ]


def _peak(series: Series, topologies: Sequence[Host]) -> Peak:
    if series.op == "send_recv" and (series.placed.hosts or 0) > 1:
        return Peak(None, None, "a message between hosts goes over one port, and which one is unknown")
    return peak(series.placed, topologies)


def _entry(
    series: Series, nbytes: int, variant: str | None, own: Sequence[int], spent: int, found: Peak, choices: Choices
) -> BandwidthEntry:
    count = sum(series.count[i] for i in own)
    mean = spent / count
    bus = _finite(busbw(series.op, nbytes, mean, series.group_size))
    checked = [wrong for i in own if (wrong := series.wrong[i]) is not None]
    chosen = choices.of(series.op, nbytes, series.group_size)
    return {
        "tool": series.tool, "op": series.op, "group": series.group, "bytes": nbytes,
        "group_size": series.group_size, "variant": variant, "count": count, "dur_ns": round(mean),
        "algbw_gbps": _finite(algbw(nbytes, mean)), "busbw_gbps": bus, "lower_bound": series.lower_bound,
        "algorithm": chosen.algorithm if chosen else None, "protocol": chosen.protocol if chosen else None,
        "channels": chosen.channels if chosen else None, "peak_gbps": found.gbps, "link": found.link,
        "peak_basis": found.basis, "peak_provenance": found.provenance,
        "efficiency_frac": bus / found.gbps if bus is not None and found.gbps is not None else None,
        "wrong": sum(checked) if checked else None,
    }  # fmt: skip


def _finite(value: float) -> float | None:
    return value if value == value else None


def _fits(series: Series, choices: Choices) -> list[FitEntry]:
    """A fit per algorithm and protocol that NCCL chose: a line over the sizes of several fits none of them."""
    chosen: dict[tuple[str | None, str | None], list[int]] = defaultdict(list)
    for index, nbytes in enumerate(series.bytes):
        now = choices.of(series.op, nbytes, series.group_size)
        chosen[(now.algorithm, now.protocol) if now else (None, None)].append(index)
    return [_fit(series, own, algorithm, protocol) for (algorithm, protocol), own in chosen.items()]


def _fit(series: Series, own: Sequence[int], algorithm: str | None, protocol: str | None) -> FitEntry:
    sizes, times = np.array(series.bytes, np.int64)[own], np.array(series.dur, np.int64)[own]
    factor = busbw_factor(series.op, series.group_size)
    model: CostModel | str = f"{series.op} has no bus bandwidth"
    if series.lower_bound:
        model = "times include waiting: record all ranks of the group"
    elif factor:
        model = fit_or_why(sizes * factor, times)
    fitted = model if isinstance(model, CostModel) else None
    beta_error = fitted.beta_error if fitted else None
    return {
        "tool": series.tool, "op": series.op, "group": series.group, "group_size": series.group_size,
        "algorithm": algorithm, "protocol": protocol, "sizes": len(np.unique(sizes)),
        "alpha_ns": fitted.alpha if fitted else None,
        "alpha_error_ns": fitted.alpha_error if fitted else None,
        "busbw_gbps": 1 / fitted.beta if fitted and fitted.beta else None,
        "busbw_error_gbps": beta_error / fitted.beta**2 if fitted and fitted.beta and beta_error is not None else None,
        "error_frac": fitted.error if fitted else None, "why": model if isinstance(model, str) else "",
    }  # fmt: skip


ANALYZER = RunAnalyzer(
    "bandwidth",
    run,
    (
        Need(
            "collectives or measurements",
            "record NCCL's calls with their sizes (torch 2.4 and later), or add nccl-tests' output",
            any_of("collectives", "measurements"),
            optional=True,
        ),
    ),
    (BANDWIDTH, FITS),
)

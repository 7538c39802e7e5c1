"""Bandwidth by operation, group and size against the peak of the link, and the cost α + S·factor/B fitted to it.

From the collectives of a trace and from what NCCL's own tools measured.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Literal

import numpy as np

from gpuscope.analyzers.base.analyzer import Need, Result, any_of
from gpuscope.analyzers.base.lanes import BANDWIDTH, CROSSOVERS, FITS
from gpuscope.analyzers.facts.call_order import Host
from gpuscope.analyzers.facts.run_facts import RunAnalyzer, RunFacts
from gpuscope.analyzers.nccl.timed_series import NCCL_TESTS, TRACE, Series, calls_logged, crossovers, timings
from gpuscope.analyzers.topology.counter_means import Peak, peak
from gpuscope.catalogue.finding import made
from gpuscope.catalogue.findings.nccl import LowBusbw, MeasuredWhileLogging, NcclCrossover, SlowerRun
from gpuscope.catalogue.findings.network import LateInRecords, SlowLinkInRecords
from gpuscope.collective_costs.bus_bandwidth import RING_LL128_PER_CHANNEL, algbw, busbw, busbw_factor
from gpuscope.collective_costs.message_cost import CostModel, fit_or_why
from gpuscope.problems import job
from gpuscope.schema.document import FindingEntry
from gpuscope.schema.nccl_sections import BandwidthEntry, CrossoverEntry, FitEntry
from gpuscope.trace.schema import NA
from gpuscope.trace.table import Mask, Times, distinct_values
from gpuscope.trace.trace import Trace
from gpuscope.welch import median
from gpuscope.when_used import dataclass

# Findings from measured times alone: crossovers of NCCL's choices, and links that carry far less than they could.

FAR_BELOW = 0.5
"""Bus bandwidth of the largest messages by the link's line rate: NCCL's own figures for a healthy link (`usable` of
gpuscope/hardware/links.toml) are 0.7 to 0.85 of it."""
LARGE = 256 << 20
"""Bytes from which the fixed cost is a small part on any link."""


def find(
    trace: Trace, series: Sequence[Series], rows: Sequence[BandwidthEntry], entries: Sequence[CrossoverEntry]
) -> list[FindingEntry]:
    """What the times show by themselves."""
    return [*_crossovers(entries), *_runs(entries), *_far_below(rows), *_logging(trace, series)]


def _crossovers(entries: Sequence[CrossoverEntry]) -> Iterator[FindingEntry]:
    groups: dict[tuple[str, str | None, str, str | None, int], list[CrossoverEntry]] = defaultdict(list)
    for entry in entries:
        if entry["kind"] != "other_run":
            key = entry["tool"], entry["run"], entry["op"], entry["group"], entry["group_size"]
            groups[key].append(entry)
    for (tool, run, op, group, size), own in groups.items():
        own = sorted(own, key=lambda one: one["at_most_ns"] / one["dur_ns"])
        words = NcclCrossover(op, size, [word for word in (group, run) if word], tool, own)
        yield made(words, ranks=(), severity=_severity(own))


def _severity(entries: Sequence[CrossoverEntry]) -> Literal["medium", "low"]:
    return "medium" if any(one["at_most_ns"] < 0.9 * one["dur_ns"] for one in entries) else "low"


def _runs(entries: Sequence[CrossoverEntry]) -> Iterator[FindingEntry]:
    """Per pair of runs, at which sizes which one was faster."""
    groups: dict[tuple[str, str, int], list[CrossoverEntry]] = defaultdict(list)
    for entry in entries:
        if entry["kind"] == "other_run":
            groups[entry["tool"], entry["op"], entry["group_size"]].append(entry)
    for (_, op, size), own in groups.items():
        pairs: dict[tuple[str, str], list[CrossoverEntry]] = defaultdict(list)
        for entry in own:
            pairs[entry["run"] or "", entry["faster_run"] or ""].append(entry)
        words = SlowerRun(op, size, [(slow, fast, some) for (slow, fast), some in sorted(pairs.items())])
        yield made(words, ranks=(), severity=_severity(own))


def _far_below(rows: Sequence[BandwidthEntry]) -> Iterator[FindingEntry]:
    """The largest messages over a link whose rate is known (not assumed), at less than half of it."""
    of: dict[tuple[str, str | None, str, int], list[BandwidthEntry]] = defaultdict(list)
    for row in rows:
        rated = row["efficiency_frac"] is not None and row["peak_provenance"] != "assumed" and not row["lower_bound"]
        if rated and row["bytes"] >= LARGE:
            of[row["tool"], row["run"], row["op"], row["group_size"]].append(row)
    for (tool, _, op, size), own in of.items():
        reached = median(row["efficiency_frac"] or 0.0 for row in own)
        best = max(own, key=lambda row: row["busbw_gbps"] or 0.0)
        share = best["efficiency_frac"] or 0.0
        if reached < FAR_BELOW and share < FAR_BELOW:
            words = LowBusbw(
                op,
                size,
                tool,
                best["bytes"],
                best["busbw_gbps"],
                share,
                best["peak_gbps"],
                best["link"],
                best["channels"],
                _channels_carry(best),
            )
            yield made(words, ranks=())


def _channels_carry(row: BandwidthEntry) -> float | None:
    """GB/s that so few channels carry at most, where that is less than the link: NCCL's own figure for one channel, of
    the fastest generation."""
    most = RING_LL128_PER_CHANNEL["blackwell"][0] * (row["channels"] or 0)
    return most if row["channels"] is not None and most < (row["peak_gbps"] or 0.0) else None


def _logging(trace: Trace, series: Sequence[Series]) -> Iterator[FindingEntry]:
    """nccl-tests timed while NCCL logged every call: the time that logging takes is in small messages' times."""
    timed = {one.source for one in series if one.tool == NCCL_TESTS}
    calls = sum(calls_logged(trace, source) for source in timed)
    if calls:
        yield made(MeasuredWhileLogging(calls), ranks=())


# Who comes late, and whose link is slow, in the records of NCCL's Inspector: every operation of every rank, timed.
#
# An operation ends on all its ranks together, so whoever came last has the shortest time, and the others' are longer by
# what they waited. Clocks don't matter.

WORTH = 0.1
"""Share of the operations' time from which waiting for a late rank is told."""


@dataclass(frozen=True)
class _Recorded:
    """A communicator's operations that all its recorded ranks have, in order."""

    ranks: list[int]
    seq: Times
    kind: tuple[tuple[int, int], ...]
    """Operation and bytes of each."""
    dur: Times
    """Shape (operations, ranks)."""


def slow_in_records_run(facts: RunFacts) -> Result:
    """Findings `late_in_records` and `slow_link`."""
    result = Result(SLOW_IN_RECORDS_ANALYZER.name)
    found = dict(_recorded(facts.trace))
    for name, one in found.items():
        result.findings += _late(facts.trace.names[name], one)
    result.findings += _links({facts.trace.names[name]: one for name, one in found.items()})
    return result


def _recorded(trace: Trace) -> Iterator[tuple[int, _Recorded]]:
    from gpuscope.analyzers.collectives.recurrence import WINDOW

    table, rows = trace["measurements"], np.flatnonzero(_numbered(trace))
    by_communicator: dict[int, dict[int, dict[int, int]]] = defaultdict(lambda: defaultdict(dict))
    for row, name, seq, rank in zip(
        rows.tolist(), *(table[column][rows].tolist() for column in ("communicator", "seq", "rank")), strict=True
    ):
        by_communicator[name][seq][rank] = row
    for name, operations in by_communicator.items():
        ranks = sorted({rank for own in operations.values() for rank in own})
        whole = [(seq, own) for seq, own in sorted(operations.items()) if len(own) == len(ranks)]
        if len(ranks) < 2 or len(whole) < WINDOW:
            continue
        places = np.array([[own[rank] for rank in ranks] for _, own in whole], np.int64)
        first = places[:, 0]
        kind = tuple(zip(table["op"][first].tolist(), table["bytes"][first].tolist(), strict=True))
        yield name, _Recorded(ranks, np.array([seq for seq, _ in whole]), kind, table["dur"][places])


def _late(name: str, one: _Recorded) -> Iterator[FindingEntry]:
    from gpuscope.analyzers.collectives.recurrence import slow

    shortest, longest = one.dur.min(axis=1), one.dur.max(axis=1)
    for found in slow(one.seq, -one.dur.astype(np.float64), float(np.median(longest))):
        lost = int((np.median(one.dur, axis=1) - shortest).sum())
        share = lost / max(int(longest.sum()), 1)
        if share >= WORTH:
            words = LateInRecords(name, len(one.seq), found.by_ns, found.since)
            yield made(words, ranks=[one.ranks[found.member]], share=share, cost_ns=lost, mean_ns=None)


def _links(found: Mapping[str, _Recorded]) -> Iterator[FindingEntry]:
    """Communicators of one size that carry out the same operations one after the other are compared."""
    from gpuscope.analyzers.collectives.recurrence import WINDOW, slow_links

    by_kind: dict[object, list[str]] = defaultdict(list)
    for name, one in found.items():
        by_kind[len(one.ranks), one.kind[-WINDOW:]].append(name)
    for alike in by_kind.values():
        count = min(len(found[name].seq) for name in alike)
        spent = {name: found[name].dur.min(axis=1)[-count:].astype(np.float64) for name in alike}
        usual = float(np.median(np.concatenate(list(spent.values()))))
        members = {name: found[name].ranks for name in alike}
        for link in slow_links(found[alike[0]].seq[-count:], spent, members, dict.fromkeys(alike, 0), usual):
            words = SlowLinkInRecords(list(link.groups), link.times, link.since)
            yield made(words, ranks=link.ranks, cost_ns=None, mean_ns=None, severity="medium")


def _numbered(trace: Trace) -> Mask:
    table = trace["measurements"]
    return np.asarray(
        (table["rank"] != NA) & (table["seq"] != NA) & (table["group_size"] > 1) & table.known("communicator")
    )


SLOW_IN_RECORDS_ANALYZER = RunAnalyzer(
    "slow_in_records",
    slow_in_records_run,
    (
        Need(
            "numbered operations of NCCL's Inspector",
            "load its plugin (NCCL_PROFILER_PLUGIN)",
            lambda trace: bool(_numbered(trace).any()),
            optional=True,
        ),
    ),
)


MOST_SIZES = 64
"""Sizes of one operation and group that are listed: those that took most time. The fit takes all of them."""


def run(facts: RunFacts) -> Result:
    """The sections `bandwidth`, `fits` and `crossovers`, where sizes are recorded."""
    result, found = Result(BANDWIDTH_ANALYZER.name), timings(facts)
    result.problem(job.MEASUREMENT_COLD, found.cold)
    if found.series:
        rows = [row for series in found.series for row in _rows(series, facts.hosts)]
        result.sections[BANDWIDTH] = rows
        result.sections[FITS] = [fit for series in found.series for fit in _fits(series)]
        crossed = crossovers(found.series)
        if crossed:
            result.sections[CROSSOVERS] = crossed
        result.findings += find(facts.trace, found.series, rows, crossed)
    return result


def _rows(series: Series, topologies: Sequence[Host]) -> list[BandwidthEntry]:
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
        _entry(series, size, variant, by_size[size, variant], spent[size, variant], found)
        for size, variant in sorted(listed, key=lambda key: (key[0], key[1] or ""))
    ]


def _peak(series: Series, topologies: Sequence[Host]) -> Peak:
    if series.op == "send_recv" and (series.placed.hosts or 0) > 1:
        return Peak(None, None, "a message between hosts goes over one port, and which one is unknown")
    return peak(series.placed, topologies)


def _entry(
    series: Series, nbytes: int, variant: str | None, own: Sequence[int], spent: int, found: Peak
) -> BandwidthEntry:
    count = sum(series.count[i] for i in own)
    mean = spent / count
    bus = _finite(busbw(series.op, nbytes, mean, series.group_size))
    checked = [wrong for i in own if (wrong := series.wrong[i]) is not None]
    chosen = series.chosen(own)
    return {
        "tool": series.tool,
        "run": series.run,
        "op": series.op,
        "group": series.group,
        "bytes": nbytes,
        "size_basis": series.estimated.get(nbytes),
        "group_size": series.group_size,
        "variant": variant,
        "count": count,
        "dur_ns": round(mean),
        "algbw_gbps": _finite(algbw(nbytes, mean)),
        "busbw_gbps": bus,
        "lower_bound": series.lower_bound or nbytes in series.waiting,
        "algorithm": chosen.algorithm if chosen else None,
        "protocol": (chosen.protocol or None) if chosen else None,
        "channels": chosen.channels if chosen else None,
        "peak_gbps": found.gbps,
        "link": found.link,
        "peak_basis": found.basis,
        "peak_provenance": found.provenance,
        "efficiency_frac": bus / found.gbps if bus is not None and found.gbps is not None else None,
        "wrong": sum(checked) if checked else None,
    }


def _finite(value: float) -> float | None:
    return value if value == value else None


def _fits(series: Series) -> list[FitEntry]:
    """A fit per algorithm and protocol that NCCL chose: a line over the sizes of several fits none of them."""
    chosen: dict[tuple[str | None, str | None], list[int]] = defaultdict(list)
    for index, now in enumerate(series.choice):
        if series.bytes[index] not in series.waiting:
            chosen[(now.algorithm, now.protocol or None) if now else (None, None)].append(index)
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
        "tool": series.tool,
        "run": series.run,
        "op": series.op,
        "group": series.group,
        "group_size": series.group_size,
        "algorithm": algorithm,
        "protocol": protocol,
        "sizes": len(distinct_values(sizes)),
        "alpha_ns": fitted.alpha if fitted else None,
        "alpha_error_ns": fitted.alpha_error if fitted else None,
        "busbw_gbps": 1 / fitted.beta if fitted and fitted.beta else None,
        "busbw_error_gbps": beta_error / fitted.beta**2 if fitted and fitted.beta and beta_error is not None else None,
        "error_frac": fitted.error if fitted else None,
        "why": model if isinstance(model, str) else "",
    }


BANDWIDTH_ANALYZER = RunAnalyzer(
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
    (BANDWIDTH, FITS, CROSSOVERS),
)


ANALYZERS = (BANDWIDTH_ANALYZER, SLOW_IN_RECORDS_ANALYZER)

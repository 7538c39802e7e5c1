"""Findings from measured times alone: crossovers of NCCL's choices, and links that carry far less than they could."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Literal

from gpuscope.analyzers.nccl.measured.timed_series import NCCL_TESTS, Series, calls_logged
from gpuscope.averages import median
from gpuscope.catalogue.finding import made
from gpuscope.catalogue.findings.nccl import LowBusbw, MeasuredWhileLogging, NcclCrossover, SlowerRun
from gpuscope.collective_costs.nccl_constants import RING_LL128_PER_CHANNEL
from gpuscope.schema.document import FindingEntry
from gpuscope.schema.nccl_sections import BandwidthEntry, CrossoverEntry
from gpuscope.trace.trace import Trace

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

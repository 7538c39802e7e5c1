"""Findings from measured times alone: crossovers of NCCL's choices, and links that carry far less than they could."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from statistics import median
from typing import Literal

from gpuscope.analyzers.nccl.cost.cost_constants import RING_LL128_PER_CHANNEL
from gpuscope.analyzers.nccl.logged.nccl_findings import stated
from gpuscope.analyzers.nccl.measured.timed_series import NCCL_TESTS, Series
from gpuscope.report.schema.document import FindingEntry
from gpuscope.report.schema.nccl_sections import BandwidthEntry, CrossoverEntry
from gpuscope.report.view import units
from gpuscope.trace.trace import Trace

FAR_BELOW = 0.5
"""Bus bandwidth of the largest messages by the link's line rate: NCCL's own figures for a healthy link (`usable` of
gpuscope/hardware/links.toml) are 0.7 to 0.85 of it."""
LARGE = 256 << 20
"""Bytes from which the fixed cost is a small part on any link."""
NAMED = 3


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
        said = "; ".join(_said(one) for one in own[:NAMED])
        more = f"; and {len(own) - NAMED} more sizes" if len(own) > NAMED else ""
        of = " of ".join(word for word in (group, run) if word)
        where = f"{op} over {size} ranks{f' ({of})' if of else ''}, measured by {tool}: "
        yield stated("nccl_crossover", _severity(own), where + said + more)


def _severity(entries: Sequence[CrossoverEntry]) -> Literal["medium", "low"]:
    return "medium" if any(one["at_most_ns"] < 0.9 * one["dur_ns"] for one in entries) else "low"


def _said(one: CrossoverEntry) -> str:
    size, like = units.memory(one["bytes"]), units.memory(one["like_bytes"])
    slow, bound = units.duration(one["dur_ns"]), units.duration(one["at_most_ns"])
    now = f" by {_choice(one['algorithm'], one['protocol'])}" if one["algorithm"] else ""
    then = f" by {_choice(one['faster_algorithm'], one['faster_protocol'])}" if one["faster_algorithm"] else ""
    if one["kind"] == "larger_is_faster":
        return f"{size} take {slow}{now}, {like} only {bound}{then}"
    return f"{size} take {slow}{now}, as many bytes in messages of {like} only {bound}{then}"


def _choice(algorithm: str | None, protocol: str | None) -> str:
    return "/".join(word for word in (algorithm, protocol) if word)


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
        said = [_slower(slow, fast, some) for (slow, fast), some in sorted(pairs.items())]
        yield stated("slower_run", _severity(own), f"{op} over {size} ranks: " + "; ".join(said))


def _slower(slow: str, fast: str, entries: Sequence[CrossoverEntry]) -> str:
    sizes = sorted(entry["bytes"] for entry in entries)
    most = max(entries, key=lambda entry: entry["dur_ns"] / entry["at_most_ns"])
    over = most["dur_ns"] / most["at_most_ns"] - 1
    where = units.memory(sizes[0])
    if len(sizes) > 1:
        where = f"{len(sizes)} sizes between {where} and {units.memory(sizes[-1])}"
    times = f"{units.duration(most['dur_ns'])}, {units.duration(most['at_most_ns'])}"
    most_of_all = f"{units.share(over)} ({units.memory(most['bytes'])}: {times})"
    return f"{slow} takes longer than {fast} at {where}, by up to {most_of_all}"


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
            what = f"{op} over {size} ranks ({tool}) reaches {units.bandwidth(best['busbw_gbps'])}"
            rate = f"{units.share(share)} of {units.bandwidth(best['peak_gbps'])} ({best['link']})"
            yield stated("low_busbw", "medium", f"{what} at {units.memory(best['bytes'])}, {rate}{_channels(best)}")


def _channels(row: BandwidthEntry) -> str:
    """Whether so few channels could carry it at all: NCCL's own figure for one channel, of the fastest generation."""
    channels, peak = row["channels"], row["peak_gbps"] or 0.0
    most = RING_LL128_PER_CHANNEL["blackwell"][0]
    if channels is None or channels * most >= peak:
        return ""
    return f"; {units.plural(channels, 'channel')} carry at most about {units.bandwidth(channels * most)}"


def _logging(trace: Trace, series: Sequence[Series]) -> Iterator[FindingEntry]:
    """nccl-tests timed while NCCL logged every call: the time that logging takes is in small messages' times."""
    timed = {one.source for one in series if one.tool == NCCL_TESTS}
    calls = sum(trace.sources[source].facts.get("calls_logged", 0) for source in timed if source is not None)
    if calls:
        why = "times of small messages are upper bounds, and fixed costs fitted to them too high"
        said = f"NCCL logged {units.count(calls)} calls while nccl-tests timed them: {why}"
        yield stated("measured_while_logging", "low", said)

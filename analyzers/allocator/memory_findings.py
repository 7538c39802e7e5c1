"""Findings of the section `memory`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from gpuscope.analyzers.frame.cause_findings import MIN_SHARE, Severity
from gpuscope.report.schema.document import Evidence, FindingEntry
from gpuscope.report.schema.memory_section import MemoryEntry
from gpuscope.report.view import memory_sentences
from gpuscope.report.view.units import duration, memory, plural, share

EVIDENCE = 8


def findings(entries: Sequence[MemoryEntry], *, alone: bool = False) -> list[FindingEntry]:
    """Failed requests, retries and fragmentation over all snapshots; what two snapshots both hold, once. Where they are
    `alone`, without a trace, also what holds memory at the peak."""
    found = [_failed(entries), _retried(entries), _fragmented(entries), _peak(entries) if alone else None]
    return [finding for finding in found if finding is not None]


def _peak(entries: Sequence[MemoryEntry]) -> FindingEntry | None:
    """What holds memory at the peak, told of the snapshot to speak of first; the largest lines of each as evidence."""
    first = memory_sentences.leading(entries)
    if first is None:
        return None
    whose = f" ({memory_sentences.label(first)})" if len(entries) > 1 else ""
    said = memory_sentences.peak_sentence(first)
    ordered = sorted((one for one in entries if one["kind"] == "snapshot"), key=lambda one: one is not first)
    each = max(EVIDENCE // max(len(ordered), 1), 1)
    evidence = [
        _evidence(
            one, one["peak_time_ns"], 0, f"{memory(held['bytes'])}: {memory_sentences.short_where(held)}",
            memory_sentences.label(one),
        )
        for one in ordered for held in one["at_peak"][:each]
    ]  # fmt: skip
    return FindingEntry(
        code="memory_peak",
        severity="low",
        message=f"{said[0].upper()}{said[1:]}{whose}",
        ranks=sorted({one["rank"] for one in ordered if one.get("rank_told", True)}),
        cost_ns_per_step=0,
        cost_ns=0,
        share_frac=0.0,
        evidence=evidence[:EVIDENCE],
    )


def _failed(entries: Sequence[MemoryEntry]) -> FindingEntry | None:
    seen: dict[tuple[int, str, int, int | None, int], Evidence] = {}
    whys: dict[str, None] = {}
    kinds: set[str] = set()
    left = sum(entry.get("failures_left", 0) for entry in entries)
    for entry in entries:
        for failure in entry["failures"]:
            key = (*_whose(entry), failure["time_ns"], failure["requested_bytes"])
            where = failure["frames"][0] if failure["frames"] else "no stack recorded"
            seen[key] = _evidence(
                entry, failure["time_ns"], 0, f"request of {memory(failure['requested_bytes'])}", where
            )
            whys[failure["why"]] = None
            kinds.add(failure["kind"])
    if not seen:
        return None
    first = next(iter(whys))
    advice = {
        "fragmentation": "fragmentation: enough bytes were free, but in pieces",
        "scattered": "the free memory was partly in pieces of reserved memory, partly on the device",
        "limit": "because of a limit set for the process, not of the device",
        "full": "no allocator setting helps: the job must use less memory at once",
    }
    cause = advice[kinds.pop()] if len(kinds) == 1 else "some by fragmentation, some because memory was full"
    message = f"{plural(len(seen) + left, 'request')} for memory failed; {cause}. {first[0].upper()}{first[1:]}"
    evidence = list(seen.values())
    return FindingEntry(
        code="out_of_memory",
        severity="high",
        message=message,
        ranks=_ranks(entries, evidence),
        cost_ns_per_step=0,
        cost_ns=0,
        share_frac=0.0,
        evidence=evidence[:EVIDENCE],
    )


def _retried(entries: Sequence[MemoryEntry]) -> FindingEntry | None:
    seen: dict[tuple[int, str, int, int | None, int], Evidence] = {}
    certain, spent = 0, 0
    for entry in entries:
        for retry in entry["retries"]:
            key = (*_whose(entry), retry["time_ns"], retry["released_bytes"])
            if key not in seen:
                certain += retry["certain"]
                spent += retry["dur_ns"] or 0
            name = f"{memory(retry['released_bytes'])} released for a request of {memory(retry['requested_bytes'])}"
            note = "" if retry["certain"] else "or a call of empty_cache: no stack was recorded"
            seen[key] = _evidence(entry, retry["time_ns"], retry["dur_ns"] or 0, name, note)
    if not seen:
        return None
    doubt = "" if certain == len(seen) else f"; {len(seen) - certain} of them may have been calls of empty_cache"
    took = f", which took {duration(spent)} in all" if spent else ""
    message = (
        f"{plural(len(seen), 'request')} found the device full: the allocator released cached memory and retried, "
        f"with the device synchronised{took}{doubt}"
    )
    evidence = list(seen.values())
    return FindingEntry(
        code="allocator_retries",
        severity="medium" if certain else "low",
        message=message,
        ranks=_ranks(entries, evidence),
        cost_ns_per_step=0,
        cost_ns=0,
        share_frac=0.0,
        evidence=evidence[:EVIDENCE],
    )


def _fragmented(entries: Sequence[MemoryEntry]) -> FindingEntry | None:
    worst: dict[tuple[int, str, int], MemoryEntry] = {}
    for entry in entries:
        if _share(entry) >= MIN_SHARE:
            key = _whose(entry)
            worst[key] = max(worst.get(key, entry), entry, key=_share)
    if not worst:
        return None
    entry = max(worst.values(), key=_share)
    fragmentation = entry["fragmentation"]
    assert fragmentation is not None  # _share is 0 without
    requests = plural(fragmentation["requests"], "request")
    size, peak = memory(fragmentation["reserved_bytes"]), memory(entry["peak_reserved_bytes"] or 0)
    message = (
        f"Up to {share(_share(entry))} of the peak of reserved memory ({size} of {peak}) was reserved while as "
        f"much was free in blocks that the requests could not use: {requests}, the largest "
        f"{memory(fragmentation['largest_request_bytes'])} with {memory(fragmentation['free_bytes'])} free in smaller "
        f"blocks of its pool and {memory(fragmentation['free_elsewhere_bytes'])} in blocks for other streams or sizes"
    )
    pressed = any(one["failures"] or one["retries"] for one in worst.values())
    severity: Severity = "medium" if pressed else "low"
    if any(failure["kind"] == "fragmentation" for one in worst.values() for failure in one["failures"]):
        severity = "high"
    evidence = [
        _evidence(
            one, one["peak_time_ns"], 0, f"peak of {memory(one['peak_allocated_bytes'])} in use", Path(one["path"]).name
        )
        for one in worst.values()
    ]
    return FindingEntry(
        code="fragmentation",
        severity=severity,
        message=message,
        ranks=_ranks(entries, evidence),
        cost_ns_per_step=0,
        cost_ns=0,
        share_frac=0.0,
        evidence=evidence[:EVIDENCE],
    )


def _whose(entry: MemoryEntry) -> tuple[int, str, int]:
    """Whose memory it is: a rank's, of which several snapshots may tell the same, or a file's of its own."""
    return entry["rank"], "" if entry.get("rank_told", True) else entry["path"], entry["device"]


def _share(entry: MemoryEntry) -> float:
    fragmentation, peak = entry["fragmentation"], entry["peak_reserved_bytes"]
    return fragmentation["reserved_bytes"] / peak if fragmentation and peak else 0.0


def _evidence(entry: MemoryEntry, time: int | None, dur: int, name: str, note: str) -> Evidence:
    return {"rank": entry["rank"], "start_ns": time or 0, "dur_ns": dur, "name": name, "note": note}


def _ranks(entries: Sequence[MemoryEntry], evidence: Sequence[Evidence]) -> list[int]:
    """The ranks of the evidence, as far as anything tells the ranks of the files."""
    told = {entry["rank"] for entry in entries if entry.get("rank_told", True)}
    return sorted({one["rank"] for one in evidence} & told)

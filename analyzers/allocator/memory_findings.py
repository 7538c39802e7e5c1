"""Findings of the section `memory`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from gpuscope.analyzers.verdict.cause_findings import MIN_SHARE
from gpuscope.catalogue.finding import Severity, made
from gpuscope.catalogue.findings.memory import AllocatorRetries, Fragmentation, MemoryPeak, OutOfMemory
from gpuscope.report.view import memory_sentences
from gpuscope.schema.document import Evidence, FindingEntry
from gpuscope.schema.memory_section import MemoryEntry
from gpuscope.words.units import memory

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
    whose = memory_sentences.label(first) if len(entries) > 1 else ""
    ordered = sorted((one for one in entries if one["kind"] == "snapshot"), key=lambda one: one is not first)
    each = max(EVIDENCE // max(len(ordered), 1), 1)
    evidence = [
        _evidence(
            one,
            one["peak_time_ns"],
            0,
            f"{memory(held['bytes'])}: {memory_sentences.short_where(held)}",
            memory_sentences.label(one),
        )
        for one in ordered
        for held in one["at_peak"][:each]
    ]
    ranks = {one["rank"] for one in ordered if one.get("rank_told", True)}
    return made(MemoryPeak(memory_sentences.peak_sentence(first), whose), ranks=ranks, evidence=evidence[:EVIDENCE])


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
    words = OutOfMemory(len(seen) + left, sorted(kinds), next(iter(whys)))
    evidence = list(seen.values())
    return made(words, ranks=_ranks(entries, evidence), evidence=evidence[:EVIDENCE])


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
    evidence = list(seen.values())
    return made(
        AllocatorRetries(len(seen), certain, spent),
        ranks=_ranks(entries, evidence),
        evidence=evidence[:EVIDENCE],
        severity="medium" if certain else "low",
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
    words = Fragmentation(
        _share(entry),
        fragmentation["reserved_bytes"],
        entry["peak_reserved_bytes"] or 0,
        fragmentation["requests"],
        fragmentation["largest_request_bytes"],
        fragmentation["free_bytes"],
        fragmentation["free_elsewhere_bytes"],
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
    return made(words, ranks=_ranks(entries, evidence), evidence=evidence[:EVIDENCE], severity=severity)


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

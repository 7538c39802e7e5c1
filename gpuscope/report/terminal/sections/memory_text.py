"""The section `memory` in the terminal: peaks, what was in use at the peak, failed requests, replayed settings."""

from __future__ import annotations

from pathlib import PurePath

from gpuscope.report.terminal.screen import Writer
from gpuscope.report.view import memory_sentences
from gpuscope.schema.document import Report
from gpuscope.schema.memory_section import MemoryEntry
from gpuscope.trace.naming.stack_frames import own_frames
from gpuscope.words import units

ENTRIES_SHOWN = 16
LINES_SHOWN = 8
"""Lines of code of one snapshot."""
LEAST_LINES = 2
"""Of one of several that share the first screen."""
BRIEF = 3
"""Snapshots whose contents the first screen shows."""
FAILURES_SHOWN = 3


def section(report: Report, writer: Writer, *, brief: bool = False) -> None:
    """Nothing for a report without the section; `brief` is for the first screen."""
    entries = report.get("memory", [])
    if not entries:
        return
    writer.heading("Memory of the caching allocator")
    if len(entries) > 1 or entries[0]["kind"] != "snapshot" or not brief:
        _table(entries, writer)
    snapshots = memory_sentences.snapshots(report)
    shown = snapshots[: BRIEF if brief else ENTRIES_SHOWN]
    whole = not brief or len(shown) == 1
    for entry in shown:
        _details(entry, LINES_SHOWN if whole else LEAST_LINES, writer, whole=whole, replay=not brief)
    if len(snapshots) > len(shown):
        more = units.plural(len(snapshots) - len(shown), "more snapshot")
        writer.line(writer.text(f"and {more} ({'--full, ' if brief else ''}--html, --json)", "dim"))


def _table(entries: list[MemoryEntry], writer: Writer) -> None:
    titles = (">rank", ">device", ">peak in use", ">peak reserved", ">in use at end", ">reserved", "~from")
    writer.rows(titles, [(*numbers(entry), PurePath(entry["path"]).name) for entry in entries[:ENTRIES_SHOWN]])
    writer.more(len(entries) - ENTRIES_SHOWN)


def numbers(entry: MemoryEntry) -> tuple[str, ...]:
    """Rank, device, peaks and what was held at the end, as text."""
    reserved = (entry["peak_reserved_bytes"], entry["end_reserved_bytes"])
    peak, end = (units.NONE if size is None else units.memory(size) for size in reserved)
    allocated = units.memory(entry["peak_allocated_bytes"]), units.memory(entry["end_allocated_bytes"])
    return memory_sentences.rank_of(entry), str(entry["device"]), allocated[0], peak, allocated[1], end


def _details(entry: MemoryEntry, lines: int, writer: Writer, *, whole: bool, replay: bool) -> None:
    peak, reserved = units.memory(entry["peak_allocated_bytes"]), entry["peak_reserved_bytes"]
    of = "" if reserved is None else f" ({units.memory(reserved)} reserved)"
    writer.line(
        writer.text(memory_sentences.label(entry), "bold"), f"  {peak} in use at the peak{of}, by line:", hang=2
    )
    if entry["at_peak"]:
        whole_peak = max(entry["peak_allocated_bytes"], 1)
        rows = [
            (
                units.memory(held["bytes"]),
                units.count(held["blocks"]),
                units.share(held["bytes"] / whole_peak),
                memory_sentences.brief_where(held),
            )
            for held in entry["at_peak"][:lines]
        ]
        writer.rows((">bytes", ">blocks", ">share", "~where"), rows)
        if more := memory_sentences.lines_left(entry, lines):
            writer.line(writer.text(more, "dim"))
        if kinds := memory_sentences.kinds(entry) if whole else "":
            writer.line(f"By kind: {kinds}", hang=2)
        if hint := memory_sentences.to_record(entry) if whole else "":
            writer.line(writer.text(hint, "dim"), hang=2)
    for failure in entry["failures"][:FAILURES_SHOWN]:
        blocks = ", ".join(map(units.memory, failure["free_blocks"])) or "none"
        writer.line(writer.text("failed", "bold red"), f"  {failure['why']} (free blocks: {blocks})", hang=4)
        for frame in own_frames(failure["frames"])[:FAILURES_SHOWN]:
            writer.line(frame, indent=4, hang=2)
    if (left := memory_sentences.failures(entry) - FAILURES_SHOWN) > 0:
        writer.line(writer.text(f"and {units.plural(left, 'more failed request')}", "dim"))
    if entry["replay"] is not None and replay:
        for line in memory_sentences.replay_lines(entry["replay"]):
            writer.line(line, hang=2)

"""The section `memory` in the terminal: peaks, what was in use at the peak, failed requests, replayed settings."""

from __future__ import annotations

from pathlib import PurePath

from gpuscope.report.schema.document import Report
from gpuscope.report.schema.memory_section import AllocatorReplayEntry, HeldEntry, MemoryEntry
from gpuscope.report.terminal.screen import Writer
from gpuscope.report.view import units

ENTRIES_SHOWN = 16
HELD_SHOWN = 8
FAILURES_SHOWN = 3


def section(report: Report, writer: Writer) -> None:
    """Nothing for a report without the section."""
    entries = report.get("memory", [])
    if not entries:
        return
    writer.heading("Memory of the caching allocator")
    table = writer.table(">rank", ">device", ">peak in use", ">peak reserved", ">in use at end", ">reserved", "~from")
    for entry in entries[:ENTRIES_SHOWN]:
        table.add_row(*(writer.text(cell) for cell in numbers(entry)), writer.cell(PurePath(entry["path"]).name))
    writer.show(table)
    if len(entries) > ENTRIES_SHOWN:
        writer.line(writer.text(f"and {units.count(len(entries) - ENTRIES_SHOWN)} more (--json)", "dim"))
    snapshots = [entry for entry in entries if entry["kind"] == "snapshot"]
    if snapshots:
        _details(max(snapshots, key=lambda entry: (len(entry["failures"]), entry["peak_allocated_bytes"])), writer)


def numbers(entry: MemoryEntry) -> tuple[str, ...]:
    """Rank, device, peaks and what was held at the end, as text."""
    reserved = (entry["peak_reserved_bytes"], entry["end_reserved_bytes"])
    peak, end = (units.NONE if size is None else units.memory(size) for size in reserved)
    allocated = units.memory(entry["peak_allocated_bytes"]), units.memory(entry["end_allocated_bytes"])
    return str(entry["rank"]), str(entry["device"]), allocated[0], peak, allocated[1], end


def _details(entry: MemoryEntry, writer: Writer) -> None:
    if entry["at_peak"]:
        writer.line(f"In use at the peak of rank {entry['rank']}, by allocating stack:")
        table = writer.table(">bytes", ">blocks", "~where")
        for held in entry["at_peak"][:HELD_SHOWN]:
            cells = (units.memory(held["bytes"]), units.count(held["blocks"]))
            table.add_row(*map(writer.text, cells), writer.cell(where(held)))
        writer.show(table)
    for failure in entry["failures"][:FAILURES_SHOWN]:
        blocks = ", ".join(map(units.memory, failure["free_blocks"])) or "none"
        writer.line(writer.text("failed", "bold red"), f"  {failure['why']} (free blocks: {blocks})", hang=4)
        for frame in own_frames(failure["frames"])[:FAILURES_SHOWN]:
            writer.line(frame, indent=4, hang=2)
    if entry["replay"] is not None:
        for line in replay_lines(entry["replay"]):
            writer.line(line, hang=2)


def where(held: HeldEntry) -> str:
    """The most informative frame: the innermost of the user's own code."""
    if held["frames"]:
        return own_frames(held["frames"])[0]
    return "in use before the recording began" if held["before_recording"] else "no stack recorded"


def own_frames(frames: list[str]) -> list[str]:
    """Without those of libraries, where any are left."""
    own = [frame for frame in frames if "site-packages/" not in frame and "dist-packages/" not in frame]
    return own or frames


def replay_lines(replay: AllocatorReplayEntry) -> list[str]:
    """How well the allocator's model reproduces the record, and what other settings would have needed."""
    peak = units.memory(replay["peak_reserved_bytes"])
    lines = [
        f"Baseline replay: peak reserved {peak} (error {replay['error_frac']:+.2%}), "
        f"{units.share(replay['placed_frac'])} of the requests at the recorded address"
        + (f"; other settings can't be predicted: {replay['why']}" if replay["why"] else "")
    ]
    for change in replay["changes"]:
        extra = [f"{units.plural(change['failed'], 'request')} failed"] if change["failed"] else []
        extra += [units.plural(change["retries"], "retry", "retries")] if change["retries"] else []
        outcome = "".join(f", {word}" for word in extra)
        lines.append(
            f"  with {change['option']}:{change['value']}: {units.memory(change['peak_reserved_bytes'])}{outcome}"
        )
    return lines

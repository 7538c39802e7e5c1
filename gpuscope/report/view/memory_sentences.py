"""What the section `memory` says in words: the same ones in terminal, page, dashboard, verdict and notebook."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import PurePath

from gpuscope.schema.document import Report, UnpredictedEntry
from gpuscope.schema.memory_section import AllocatorReplayEntry, HeldEntry, MemoryEntry
from gpuscope.trace.naming.stack_frames import StackKind, file_of, own_line
from gpuscope.words import units

LEAST_NAMED = 0.05
"""The share of the peak from which a second line is named beside the largest."""
LEAST_KIND = 0.001
"""The share from which a kind of allocation is named."""
RECORD = 'torch.cuda.memory._record_memory_history(stacks="python")'
"""What is recommended: symbols of C++ frames take a hundred times as long as all the rest of a snapshot."""
MUCH_UNKNOWN = 0.2
"""The share without a stack from which it is said how to record one."""
NAME = 60
"""Cells of a line or file within a sentence."""
FRAME, FRAMES_SHOWN = 200, 24
"""Cells of a frame, and frames of a stack, on a page."""
NO_TIME = "no verdict on time: a snapshot shows memory, so add a trace of the ranks"
_SAID = {
    StackKind.ATTENTION_SCORES.value: "attention scores",
    StackKind.BACKWARD.value: "backward",
    StackKind.GRADIENTS.value: "gradients",
    StackKind.OPTIMIZER.value: "optimizer",
    StackKind.OPTIMIZER_TEMPORARIES.value: "optimizer",
    StackKind.FORWARD.value: "forward",
    StackKind.CHECKPOINTED.value: "checkpointed forward",
    StackKind.LOADING.value: "data loading",
    StackKind.SETUP.value: "model set-up",
}
"""What a line was doing, where its own name need not say it."""


def snapshots(report: Report) -> list[MemoryEntry]:
    """The entries from allocator snapshots that hold anything, those with failed requests first, then by peak."""
    found = [one for one in report.get("memory", []) if one["kind"] == "snapshot" and one["peak_allocated_bytes"]]
    return sorted(found, key=lambda one: (-failures(one), -one["peak_allocated_bytes"]))


def leading(entries: Sequence[MemoryEntry]) -> MemoryEntry | None:
    """The snapshot to speak of first: the one with most failed requests, then with the largest peak."""
    found = [one for one in entries if one["kind"] == "snapshot" and one["peak_allocated_bytes"]]
    return max(found, key=lambda one: (failures(one), one["peak_allocated_bytes"]), default=None)


def failures(entry: MemoryEntry) -> int:
    """How many requests failed."""
    return len(entry["failures"]) + entry.get("failures_left", 0)


def rank_of(entry: MemoryEntry) -> str:
    """The rank, where anything tells it."""
    return str(entry["rank"]) if entry.get("rank_told", True) else units.NONE


def label(entry: MemoryEntry) -> str:
    """Whose memory it is: the rank and device where the rank is told, else the file."""
    name = PurePath(entry["path"]).name
    if not entry.get("rank_told", True):
        return f"{name}, device {entry['device']}" if entry["device"] else name
    return f"rank {entry['rank']}, device {entry['device']}" + (f" ({name})" if name else "")


def where(held: HeldEntry) -> str:
    """The user's own line that asked for it, and what it was doing."""
    line = held.get("line") or own_line(held["frames"])
    if not line:
        return "in use before the recording began" if held["before_recording"] else "no stack recorded"
    said = _SAID.get(held.get("kind", ""), "")
    return f"{line}: {said}" if said else line


def stack_text(held: HeldEntry) -> str:
    """The stack with most bytes, a frame a line, as much of it as a page should hold."""
    lines = [units.clean(units.crop(frame, FRAME)) for frame in held["frames"][:FRAMES_SHOWN]]
    more = len(held["frames"]) - len(lines)
    return "\n".join([*lines, f"and {units.plural(more, 'more frame')}"] if more > 0 else lines)


def brief_where(held: HeldEntry) -> str:
    """`where` with the file's name alone, for narrow tables."""
    said = _SAID.get(held.get("kind", ""), "") if held.get("line") else ""
    return f"{short_where(held)}, {said}" if said else short_where(held)


def short_where(held: HeldEntry) -> str:
    """`softmax (nn_utils.py:6)`: `where` without folders."""
    line = held.get("line") or own_line(held["frames"])
    if not line:
        return where(held)
    path = file_of(line)
    return units.crop(line.replace(path, path.replace("\\", "/").rpartition("/")[2]) if path else line, NAME)


def peak_sentence(entry: MemoryEntry) -> str:
    """`at the peak 23,091 MiB of GPU memory are in use: 6,144 MiB (26.6 %) by softmax (nn_utils.py:6)`."""
    held = holders(entry)
    return peak_words(entry) + (f": {held}" if held else "")


def peak_words(entry: MemoryEntry) -> str:
    """`at the peak 23,091 MiB of GPU memory are in use`."""
    return f"at the peak {units.memory(entry['peak_allocated_bytes'])} of GPU memory are in use"


def holders(entry: MemoryEntry) -> str:
    """`6,144 MiB (26.6 %) by softmax (nn_utils.py:6), attention scores`: what holds most of the peak."""
    peak, held = entry["peak_allocated_bytes"], entry["at_peak"]
    if not held:
        return ""
    named = [one for one in held if one.get("line") or one["frames"]]
    first = [held[0], *(one for one in named[:1] if one is not held[0] and one["bytes"] >= LEAST_NAMED * peak)]
    return ", ".join(_holds(one, peak) for one in first)


def _holds(held: HeldEntry, peak: int) -> str:
    amount = f"{units.memory(held['bytes'])} ({units.share(held['bytes'] / peak)})"
    line = held.get("line") or own_line(held["frames"])
    if not line:
        return f"{amount} since before the recording began" if held["before_recording"] else f"{amount} without a stack"
    said = _SAID.get(held.get("kind", ""), "")
    return f"{amount} by {short_where(held)}" + (f", {said}" if said else "")


def leading_peak(report: Report) -> tuple[str, str] | None:
    """The peak of memory and what holds most of it, of a run of snapshots alone; None for other runs."""
    finding = next((one for one in report["findings"] if one["code"] == "memory_peak"), None)
    entry = leading(report.get("memory", []))
    if finding is None or entry is None:
        return None
    failed = failures(entry)
    lead = f"{units.plural(failed, 'request')} for memory failed; " if failed else ""
    whose = f"{units.crop(label(entry), NAME)}: " if len(snapshots(report)) > 1 else ""
    sentence = lead + peak_words(entry)
    return whose + (sentence if whose else sentence[:1].upper() + sentence[1:]), holders(entry)


def saving(one: UnpredictedEntry) -> str:
    """`6,144 MiB (26.6 %)`: what a change saves of the peak at most."""
    found = one["memory_bound"]
    before, saved = found["peak_bytes_before"], found["peak_bytes_before"] - found["peak_bytes_low"]
    return f"{units.memory(saved)} ({units.share(saved / before if before else None)})"


def lines_left(entry: MemoryEntry, shown: int) -> str:
    """What is left out where only the first `shown` lines are shown."""
    left = entry.get("at_peak_left") or {"lines": 0, "bytes": 0, "blocks": 0}
    rest = entry["at_peak"][shown:]
    lines, size = left["lines"] + len(rest), left["bytes"] + sum(one["bytes"] for one in rest)
    return f"and {units.plural(lines, 'more line')} of code: {units.memory(size)}" if lines else ""


def kinds(entry: MemoryEntry) -> str:
    """`forward 10,244 MiB, attention scores 6,144 MiB, …`: the peak by what allocated it."""
    least = LEAST_KIND * entry["peak_allocated_bytes"]
    found = [one for one in entry.get("peak_by_kind", []) if one["bytes"] and one["bytes"] >= least]
    return ", ".join(f"{one['kind']} {units.memory(one['bytes'])}" for one in found)


def to_record(entry: MemoryEntry) -> str:
    """How to see what is unknown, where that is much; else empty."""
    before = sum(one["bytes"] for one in entry.get("peak_by_kind", []) if one["kind"] == StackKind.BEFORE.value)
    unknown = sum(one["bytes"] for one in entry.get("peak_by_kind", []) if one["kind"] == StackKind.NO_STACK.value)
    if before >= MUCH_UNKNOWN * entry["peak_allocated_bytes"] > 0:
        return f"To see what was in use before: {RECORD} before the model is built."
    if unknown >= MUCH_UNKNOWN * entry["peak_allocated_bytes"] > 0:
        return f'To see stacks: {RECORD}; stacks="all" adds those of C++, and makes a snapshot take minutes.'
    return ""


def replay_lines(replay: AllocatorReplayEntry) -> list[str]:
    """How well the allocator's model reproduces the record, and what other settings would have needed."""
    peak = units.memory(replay["peak_reserved_bytes"])
    lines = [
        f"Baseline replay: peak reserved {peak} (error {100 * replay['error_frac']:+.2f} %), "
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

"""What both renderers ask of a report before they write: rows sorted and put together, nothing measured."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from pathlib import PurePath

from gpuscope.schema.document import Diagnosis, Evidence, FindingEntry, RankEntry, Report, UnpredictedEntry
from gpuscope.schema.memory_section import AllocatorReplayEntry, HeldEntry, MemoryEntry
from gpuscope.schema.nccl_sections import GapEntry
from gpuscope.trace.frameworks import StackKind, file_of, own_line
from gpuscope.welch import lower_median
from gpuscope.when_used import dataclass
from gpuscope.words import units

# What pages and sentences call «per step», in one place (docs/definitions.md, «Steps»).


def per_step_ns(share_frac: float, step_ns: int | None) -> int | None:
    """A share of the time as a part of «the step», ns: shares that add up to one add up to the step, and none exceeds
    it, which means over steps of different lengths do beside a median. None without steps."""
    return None if step_ns is None else round(share_frac * step_ns)


def with_per_step(finding: FindingEntry, step_ns: int | None) -> FindingEntry:
    """A finding with what it costs per step; None of what no step repeats."""
    repeats = finding["cost_ns_per_step"] is not None
    return {**finding, "per_step_ns": per_step_ns(finding["share_frac"], step_ns) if repeats else None}


# What the section `memory` says in words: the same ones in terminal, page, dashboard, verdict and notebook.

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


MANY_RANKS = 16
"""Up to so many bars are drawn one by one."""
LEAST, MOST = 4, 3
"""Of more ranks, so many with the least and the most compute are shown, and the median."""


@dataclass(frozen=True)
class CauseRow:
    """One cause over all ranks; `per_step_ns` is its share times «the step», None without steps."""

    class_name: str | None
    cause: str
    total_ns: int
    per_step_ns: int | None
    share_frac: float
    ranks: list[int]


def causes(report: Report) -> list[CauseRow]:
    """Causes by cost, over all ranks; those that cost nothing are left out."""
    totals: dict[tuple[str | None, str], int] = defaultdict(int)
    where: dict[tuple[str | None, str], list[int]] = defaultdict(list)
    for entry in report["ranks"]:
        stalls = entry["stall_ns"]
        rows: list[tuple[str | None, str, int]] = [(None, "unattributed", stalls["unattributed"])]
        for class_name, of_class in (
            ("cpu", stalls["cpu"]),
            ("communication", stalls["communication"]),
            ("memory", stalls["memory"]),
        ):
            rows += [(class_name, cause, ns) for cause, ns in of_class.items()]
        for class_or_none, cause, ns in rows:
            if ns > 0:
                totals[class_or_none, cause] += ns
                where[class_or_none, cause].append(entry["rank"])
    window = sum(entry["window_ns"] for entry in report["ranks"])
    step = step_ns(report)
    found = [
        CauseRow(key[0], key[1], ns, per_step_ns(ns / window, step), ns / window, sorted(set(where[key])))
        for key, ns in totals.items()
        if window
    ]
    return sorted(found, key=lambda row: (-row.total_ns, row.cause))


def compute_share(entry: RankEntry) -> float:
    """Compute by window; 0 for an empty window."""
    return entry["breakdown_ns"]["compute"] / entry["window_ns"] if entry["window_ns"] else 0.0


def shown_ranks(report: Report) -> tuple[list[RankEntry], int]:
    """The ranks to draw, by number, and how many are folded away (see MANY_RANKS, LEAST, MOST)."""
    entries = sorted(report["ranks"], key=lambda entry: (entry["rank"], entry["device"] or 0))
    if len(entries) <= MANY_RANKS:
        return entries, 0
    by_compute = sorted(entries, key=compute_share)
    middle = by_compute[len(entries) // 2]
    chosen = [*by_compute[:LEAST], middle, *by_compute[-MOST:]]
    kept = [entry for entry in entries if any(entry is one for one in chosen)]
    return kept, len(entries) - len(kept)


def rank_labels(entries: list[RankEntry]) -> list[str]:
    """`0`, or `0 gpu 1` where a rank has several devices, or `0 (CPU)` where it has none."""
    devices = Counter(entry["rank"] for entry in entries)
    labels = []
    for entry in entries:
        if entry["device"] is None:
            labels.append(f"{entry['rank']} (CPU)")
        elif devices[entry["rank"]] > 1:
            labels.append(f"{entry['rank']} gpu {entry['device']}")
        else:
            labels.append(str(entry["rank"]))
    return labels


def step_ns(report: Report) -> int | None:
    """«The step» (definitions): the median of the judged steps; None without steps."""
    return None if report["step_time"] is None else report["step_time"]["median_ns"]


def finding_cost_ns(report: Report, finding: FindingEntry) -> int | None:
    """What a finding costs per step; without steps in the window, mean over ranks. None where it costs nothing that
    steps repeat."""
    if step_ns(report) is None:
        return finding["cost_ns_per_step"] or None
    return finding.get("per_step_ns") or None


def step_title(report: Report) -> str:
    """What a column of the ranks' steps is called: of several ranks it is each one's own median, not «the step»."""
    return "own step" if len(report["ranks"]) > 1 else "step"


def rank_step_ns(report: Report, entry: RankEntry) -> int | None:
    """The median of one rank's own judged steps, ns; None without steps."""
    own = [
        step
        for step in report["steps"]
        if (step["rank"], step["device"]) == (entry["rank"], entry["device"]) and step["step"] is not None
    ]
    steady = [step["dur_ns"] for step in own if step["role"] == "steady"]
    durations = steady if len(steady) > 1 else [step["dur_ns"] for step in own]
    if len(own) == len(durations) == 2:  # two steps in all: half of what they last
        return sum(durations) // 2
    return lower_median(durations) if durations else None


_SEVERITY = {"high": 0, "medium": 1, "low": 2}


def findings(report: Diagnosis) -> list[FindingEntry]:
    """Findings, the worst first."""
    return sorted(report["findings"], key=lambda one: (_SEVERITY.get(one["severity"], 3), -one["share_frac"]))


class Starts(dict[int, int]):
    """By rank with a window: what its own clock shows at the run's origin, ns."""

    def __init__(self, found: Mapping[int, int], drift: Mapping[int, float]) -> None:
        super().__init__(found)
        self.drift = drift
        """By rank: how much faster its clock runs than the run's."""

    def place(self, rank: int, time: int) -> int | None:
        """A time of a rank's own clock as ns after the run's origin: what every `+X ms` is made of."""
        if rank not in self:
            return None
        since = time - self[rank]
        return since - round(self.drift.get(rank, 0.0) * since)


def starts(report: Report) -> Starts:
    """What all places are relative to. Reports of gpuscope 0.2 and before have each rank's own window start alone."""
    clock = report["trace"].get("clock")
    if clock is not None:
        ranks = {entry["rank"] for entry in report["ranks"]}
        own = {rank: clock["origin_ns"] + clock["offset_ns"].get(str(rank), 0) for rank in ranks}
        return Starts(own, {rank: clock["drift_frac"].get(str(rank), 0.0) for rank in ranks})
    found: dict[int, int] = {}
    for entry in report["ranks"]:
        found[entry["rank"]] = min(entry["start_ns"], found.get(entry["rank"], entry["start_ns"]))
    return Starts(found, {})


def place_ns(one: Evidence | GapEntry, origin: Starts) -> int | None:
    """Where a span of a report starts, after the run's origin; None for a rank without a window."""
    return origin.place(one["rank"], one["start_ns"])


def doubts(report: Report) -> list[tuple[str, str]]:
    """(heading, sentence) of everything uncertain: problems, analyses that did not run, ranks, clocks."""
    found: list[tuple[str, str]] = []
    trace = report["trace"]
    world, present = trace["world_size"], trace["ranks_present"]
    if world is not None and len(present) < world:
        found.append(("ranks", f"{len(present)} of {world} ranks are in these files; the others are not analysed."))
    if len(present) > 1:
        error = trace["clock_error_ns"]
        untied = "the ranks' clocks can't be aligned: no times are compared across ranks."
        if trace.get("clock_provenance") == "assumed":
            untied = "the slowdown assumes one clock for all ranks, as their recorder states."
        found.append(
            ("clocks", untied)
            if error is None
            else ("clocks", f"times of different ranks are comparable to within {units.duration(error)}.")
        )
    order = {"error": 0, "data_loss": 1, "info": 2}
    for problem in sorted(report["problems"], key=lambda one: order.get(one["severity"], 3)):
        times = f" ({units.count(problem['count'])} times)" if problem["count"] > 1 else ""
        found.append((problem["severity"].replace("_", " "), f"{problem['message']}{times}"))
    return found + _not_analysed(report)


def _not_analysed(report: Report) -> list[tuple[str, str]]:
    """Analyses that failed or lack something that a good recording holds, those for the same reason together."""
    names: dict[tuple[str, str], list[str]] = {}
    for analyzer in report["analyzers"]:
        if analyzer["status"] != "ok" and analyzer.get("applicable", True):  # reports of gpuscope 0.1.0 lack the key
            names.setdefault((analyzer["status"], analyzer["why"]), []).append(analyzer["name"])
    return [(status, f"{', '.join(own).replace('_', ' ')}: {why}") for (status, why), own in names.items()]

"""What both renderers ask of a report before they write: rows sorted and put together, nothing measured."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping

from gpuscope.averages import lower_median
from gpuscope.report.view.per_step import per_step_ns
from gpuscope.schema.document import Diagnosis, Evidence, FindingEntry, RankEntry, Report
from gpuscope.schema.profile_sections import GapEntry
from gpuscope.when_used import dataclass
from gpuscope.words import units

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

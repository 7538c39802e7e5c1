"""What the logs of torch.compile say of a run, beside its steps: the section `compilation`, and what it finds."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence

import numpy as np

from gpuscope import when_used
from gpuscope.analyzers.base.analyzer import EVIDENCE, FileAnalyzer, Need, Result
from gpuscope.analyzers.base.lanes import COMPILATION, LaneView, StepWindow, bounds, step_at
from gpuscope.analyzers.facts.run_facts import RunAnalyzer, RunFacts
from gpuscope.catalogue.finding import made
from gpuscope.catalogue.findings.compute import CompileDivergence, CompileFailed, GraphBreak, Recompiling
from gpuscope.report.view.report_rows import per_step_ns
from gpuscope.schema.call_tree_section import (
    CompilationSection,
    CompiledRankEntry,
    CompileEntry,
    DivergenceEntry,
    GraphBreakEntry,
)
from gpuscope.schema.document import Evidence, FindingEntry
from gpuscope.trace import kinds
from gpuscope.trace.intervals import EMPTY, Spans, intersect, measure_within, subtract, union
from gpuscope.trace.schema import NA, SCHEMAS
from gpuscope.trace.table import Mask, Table, Times, distinct_values, rows_of_rank, rows_where
from gpuscope.trace.trace import Row, Trace
from gpuscope.when_used import dataclass
from gpuscope.words import units
from gpuscope.words.vocabulary import frame_place, in_library

# The idle time that a graph break leaves between the graphs of one compiled call, by the compiled frames around it.

INSIDE = "<"
"""Between a frame and the one around it."""
_Gap = tuple[str, int, int]
"""Regions around the graph before it, begin, end."""


def compiled_gaps_run(trace: Trace, lanes: Sequence[LaneView]) -> Result:
    """The table `compiled_gaps` of a file's lanes, by step."""
    result = Result(COMPILED_GAPS_ANALYZER.name)
    rows: dict[str, list[int]] = {"rank": [], "regions": [], "step": [], "count": [], "host_ns": [], "idle_ns": []}
    for view in lanes:
        gaps = list(_gaps(trace, view.lane.rank))
        start, end = (np.array([gap[side] for gap in gaps], np.int64) for side in (1, 2))
        steps = np.array([NA, *(one.step for one in view.steps)], np.int64)[step_at(*bounds(view.steps), start) + 1]
        idle = measure_within(subtract(view.parts.idle, _compiling(trace, view.lane.rank)), start, end)
        regions = np.array([trace.names.code(gap[0]) for gap in gaps], np.int64)
        for name, step in sorted(set(zip(regions.tolist(), steps.tolist(), strict=True))):
            own = (regions == name) & (steps == step)
            rows["rank"].append(view.lane.rank)
            rows["regions"].append(name)
            rows["step"].append(step)
            rows["count"].append(int(own.sum()))
            rows["host_ns"].append(int((end - start)[own].sum()))
            rows["idle_ns"].append(int(idle[own].sum()))
    if rows["rank"]:
        result.tables["compiled_gaps"] = Table.build(SCHEMAS["compiled_gaps"], len(rows["rank"]), rows)
    return result


def _compiling(trace: Trace, rank: int) -> Spans:
    """When torch.compile was at work: what that takes is no cost of a break."""
    host, compiles = trace["host_events"], trace.names.matching(kinds.is_frame_compilation)
    rows = rows_where(*rows_of_rank(host, rank), lambda part: compiles[host["name"][part]])
    return union(host["start"][rows], host["end"][rows])


def _gaps(trace: Trace, rank: int) -> Iterator[_Gap]:
    """From the end of each compiled graph to the begin of the next within the same outermost compiled region."""
    host, names = trace["host_events"], trace.names
    region = names.matching(_is_region)
    wanted = region | names.matching(kinds.is_compiled_graph)
    rows = rows_where(*rows_of_rank(host, rank), lambda part: wanted[host["name"][part]])
    for thread in distinct_values(host["thread"][rows]).tolist():
        yield from _of_thread(trace, rows[host["thread"][rows] == thread], region)


def _of_thread(trace: Trace, rows: Times, region: Mask) -> Iterator[_Gap]:
    host = trace["host_events"]
    start, end, name = (host[column][rows] for column in ("start", "end", "name"))
    order = np.lexsort((-end, start))
    around: list[tuple[int, str]] = []  # ends and ids of the regions that are open, the outermost first
    last: tuple[str, int, int] | None = None  # regions, end and outermost region's end of the graph before
    for begin, until, code in zip(start[order].tolist(), end[order].tolist(), name[order].tolist(), strict=True):
        while around and around[-1][0] <= begin:
            around.pop()
        if region[code]:
            around.append((until, kinds.compiled_region(trace.names[code])))
        elif around:
            if last is not None and last[2] == around[0][0]:
                yield last[0], last[1], begin
            last = (INSIDE.join(one for _, one in reversed(around)), until, around[0][0])


def _is_region(name: str) -> bool:
    return bool(kinds.compiled_region(name))


def _compiled_gaps_recorded(trace: Trace) -> bool:
    return bool(trace.names.matching(_is_region).any())


COMPILED_GAPS_ANALYZER = FileAnalyzer(
    "compiled_gaps",
    compiled_gaps_run,
    (
        Need(
            "compiled regions",
            "torch.profiler records them where torch.compile is used",
            _compiled_gaps_recorded,
            optional=True,
        ),
    ),
)


_Line = tuple[str, int | None, str]
"""File, line and reason of a graph break."""


@dataclass(frozen=True)
class Recorded:
    """The recorded steps of a run, rank by rank: compiling makes a step no steady one, so all of them count."""

    steps: Mapping[int, Sequence[StepWindow]]
    judged: Mapping[int, Sequence[StepWindow]]
    """Those of them that are judged."""

    @property
    def window(self) -> int:
        """ns of the judged steps."""
        return sum(step.end - step.start for steps in self.judged.values() for step in steps)

    @property
    def numbers(self) -> set[int]:
        """Of the judged steps."""
        return {step.step for steps in self.judged.values() for step in steps}

    @property
    def count(self) -> int:
        """Judged steps over all ranks."""
        return sum(map(len, self.judged.values()))

    def within(self, rank: int, spans: Spans, *, judged: bool) -> Spans:
        """What of some spans falls into the rank's steps."""
        steps = (self.judged if judged else self.steps).get(rank, ())
        start, end = (np.array([getattr(one, side) for one in steps], np.int64) for side in ("start", "end"))
        return intersect(spans, union(start, end))

    def step_at(self, rank: int, at: int) -> int | None:
        """The step of a rank that an instant lies in."""
        return next(
            (one.step for one in self.steps.get(rank, ()) if one.start <= at < one.end and one.step != NA), None
        )


def run(facts: RunFacts) -> Result:
    """The section `compilation`; findings `recompiling`, `compile_failed`, `graph_break` and `compile_divergence`."""
    result = Result(COMPILED_ANALYZER.name)
    trace, recorded = facts.trace, _recorded(facts)
    compiles = _compiles(trace, recorded)
    breaks, idle = _breaks(trace, recorded, facts.step_ns)
    spans = {rank: _spans(one for one in compiles if one["rank"] == rank) for rank in _ranks(compiles)}
    places = {} if facts.stages is None else facts.stages.places
    unlike = divergences(trace, compiles, {rank: stage for rank, (_, stage) in places.items()})
    section: CompilationSection = {
        "compiles": compiles,
        "graph_breaks": breaks,
        "divergence": unlike,
        "ranks": [_of_rank(rank, compiles, spans[rank], recorded) for rank in spans],
    }
    result.sections[COMPILATION] = section
    again = [one for one in compiles if one["recompiled"]]
    if again:
        result.findings.append(_recompiling(again, recorded))
    if failed := [one for one in compiles if one["failed"]]:
        result.findings.append(_failed(failed))
    if breaks:
        result.findings.append(_graph_break(breaks, idle, recorded))
    if unlike:
        first = unlike[0]
        alone = _alone(spans, recorded)
        place = frame_place(first["function"], first["file"], first["line"])
        result.findings.append(
            made(
                CompileDivergence(first["kind"], place, first["groups"]),
                ranks=sorted(rank for group in first["groups"][1:] for rank in group),
                share=alone / recorded.window if recorded.window else 0.0,
                cost_ns=alone,
                mean_ns=round(alone / max(recorded.count, 1)),
                severity="high" if first["kind"] == "schedule" else None,
            )
        )
    return result


def _recorded(facts: RunFacts) -> Recorded:
    steps = {lane.rank: [step for step in lane.steps if step.step != NA] for lane in facts.lanes}
    judged = {rank: [step for step in own if facts.steady.judged(step.step)] for rank, own in steps.items()}
    return Recorded(steps, judged)


def _ranks(compiles: Sequence[CompileEntry]) -> list[int]:
    return sorted({one["rank"] for one in compiles})


def _compiles(trace: Trace, recorded: Recorded) -> list[CompileEntry]:
    rows = sorted(
        trace.rows("compilations"), key=lambda row: (row["rank"], row["start"] or 0, row["frame"], row["nth"])
    )
    return [
        {
            "rank": row["rank"],
            "compile_id": row["compile_id"],
            "function": row["function"],
            "file": row["file"],
            "line": row["line"],
            "called_at": row["called_at"],
            "start_ns": row["start"],
            "dur_ns": None if None in (row["start"], row["end"]) else row["end"] - row["start"],
            "step": None if row["start"] is None else recorded.step_at(row["rank"], row["start"]),
            "recompiled": row["nth"] > 0,
            "reason": row["reason"],
            "failed": row["failed"],
            "cache": row["cache"],
        }
        for row in rows
    ]


def _spans(compiles: Iterable[CompileEntry]) -> Spans:
    timed = [
        (one["start_ns"], one["start_ns"] + one["dur_ns"])
        for one in compiles
        if one["start_ns"] is not None and one["dur_ns"] is not None
    ]
    if not timed:
        return EMPTY
    start, end = np.array(timed, np.int64).T
    return union(start, end)


def _of_rank(rank: int, compiles: Sequence[CompileEntry], spans: Spans, recorded: Recorded) -> CompiledRankEntry:
    own = [one for one in compiles if one["rank"] == rank]
    return {
        "rank": rank,
        "compiles": len(own),
        "recompiles": sum(one["recompiled"] for one in own),
        "failed": sum(one["failed"] is not None for one in own),
        "cache_misses": sum(one["cache"] == "miss" for one in own),
        "compile_ns": spans.total,
        "in_steps_ns": recorded.within(rank, spans, judged=False).total
        if _on_its_clock(rank, spans, recorded)
        else None,
    }


def _on_its_clock(rank: int, spans: Spans, recorded: Recorded) -> bool:
    """Whether a rank was recorded, within a day of its compilations: else the two clocks are not the same."""
    steps = recorded.steps.get(rank)
    if not steps or not len(spans.start):
        return False
    return int(spans.start[0]) < steps[-1].end + DAY_NS and int(spans.end[-1]) > steps[0].start - DAY_NS


DAY_NS = 86_400 * 10**9


def _recompiling(again: Sequence[CompileEntry], recorded: Recorded) -> FindingEntry:
    by_rank = {rank: _spans(one for one in again if one["rank"] == rank) for rank in _ranks(again)}
    cost = sum(recorded.within(rank, spans, judged=True).total for rank, spans in by_rank.items())
    inside = any(recorded.within(rank, spans, judged=False).total for rank, spans in by_rank.items())
    places: dict[str, list[CompileEntry]] = defaultdict(list)
    for one in again:
        places[frame_place(one["function"], one["file"], one["line"])].append(one)
    most, own = max(places.items(), key=lambda item: (sum(one["dur_ns"] or 0 for one in item[1]), len(item[1])))
    reason = own[-1]["reason"] or "torch gives no reason"
    return made(
        Recompiling(len(again), most, reason, inside),
        ranks=_ranks(again),
        share=cost / recorded.window if recorded.window else 0.0,
        cost_ns=cost,
        mean_ns=round(cost / max(recorded.count, 1)),
        severity="medium" if inside and not cost else None,
        evidence=[_evidence(one) for one in sorted(again, key=lambda one: -(one["dur_ns"] or 0))[:EVIDENCE]],
    )


def _failed(failed: Sequence[CompileEntry]) -> FindingEntry:
    places = Counter(frame_place(one["function"], one["file"], one["line"]) for one in failed)
    first = next(one for one in failed if frame_place(one["function"], one["file"], one["line"]) == next(iter(places)))
    return made(
        CompileFailed(next(iter(places)), first["failed"] or "", len(places)),
        ranks=_ranks(failed),
        evidence=[_evidence(one) for one in failed[:EVIDENCE]],
    )


def _evidence(one: CompileEntry) -> Evidence:
    return {
        "rank": one["rank"],
        "start_ns": one["start_ns"] or 0,
        "dur_ns": one["dur_ns"] or 0,
        "name": frame_place(one["function"], one["file"], one["line"]),
        "note": f"{one['compile_id']}: {one['failed'] or one['reason'] or 'no reason given'}",
    }


def _breaks(trace: Trace, recorded: Recorded, step_ns: int | None) -> tuple[list[GraphBreakEntry], int]:
    """Lines at which graphs break, with the time between graphs that each of them leaves; the idle time of all, ns."""
    at: dict[_Line, list[Row]] = defaultdict(list)
    for row in trace.rows("graph_breaks"):
        at[row["file"], row["line"], without_addresses(row["reason"])].append(row)
    gaps = [gap for gap in trace.rows("compiled_gaps") if gap["step"] in recorded.numbers]
    times = _between(gaps, {line: {row["compile_id"] for row in rows} for line, rows in at.items()})
    known = bool(gaps) and recorded.window > 0
    found: list[GraphBreakEntry] = []
    for line, rows in at.items():
        own = times.get(line, [])
        count, host, idle = (sum(gap[name] for gap in own) for name in ("count", "host_ns", "idle_ns"))
        found.append(
            {
                "file": line[0],
                "line": line[1],
                "reason": line[2],
                "explanation": rows[0]["explanation"],
                "hint": rows[0]["hint"],
                "ranks": sorted({row["rank"] for row in rows}),
                "compile_ids": sorted({row["compile_id"] for row in rows}),
                "per_step": count / recorded.count if known else None,
                "host_ns_per_step": per_step_ns(host / recorded.window, step_ns) if known else None,
                "idle_ns_per_step": per_step_ns(idle / recorded.window, step_ns) if known else None,
            }
        )
    found.sort(
        key=lambda one: (-(one["idle_ns_per_step"] or 0), in_library(one["file"]), one["file"], one["line"] or 0)
    )
    return found, sum(gap["idle_ns"] for own in times.values() for gap in own)


def _between(gaps: Iterable[Row], ids: Mapping[_Line, set[str]]) -> dict[_Line, list[Row]]:
    """The gaps that each line leaves: those after a graph of a frame that breaks there, or within a frame that does
    where none further in breaks."""

    found: dict[_Line, list[Row]] = defaultdict(list)
    for gap in gaps:
        for region in gap["regions"].split(INSIDE):
            lines = [line for line, own in ids.items() if _breaks_in(region, own)]
            if lines:
                found[lines[-1]].append(gap)
                break
    return found


def _breaks_in(region: str, ids: set[str]) -> bool:
    """Whether a compiled frame is of one of these compilations, or of another compilation of their frames."""
    return region.partition("/")[0] in {one.partition("/")[0] for one in ids}


def _graph_break(breaks: Sequence[GraphBreakEntry], cost: int, recorded: Recorded) -> FindingEntry:
    first = breaks[0]
    return made(
        GraphBreak(first["file"], first["line"], first["reason"], len(breaks)),
        ranks=sorted({rank for one in breaks for rank in one["ranks"]}),
        share=cost / recorded.window if recorded.window else 0.0,
        cost_ns=cost,
        mean_ns=round(cost / max(recorded.count, 1)),
    )


def _alone(spans: Mapping[int, Spans], recorded: Recorded) -> int:
    """ns that ranks compile in judged steps beyond the one that compiles least."""
    inside = [recorded.within(rank, own, judged=True).total for rank, own in spans.items() if rank in recorded.steps]
    return sum(inside) - len(inside) * min(inside, default=0)


def _logged(trace: Trace) -> bool:
    return bool(len(trace["compilations"]))


COMPILED_ANALYZER = RunAnalyzer(
    "compilation",
    run,
    (Need("logs of torch.compile", "TORCH_TRACE=DIR, or gpuscope record --compile-logs", _logged, optional=True),),
    (COMPILATION,),
)


Place = tuple[str, int, str]
"""File, line and name of a compiled function."""


def divergences(
    trace: Trace, compiles: Sequence[CompileEntry], stage_of: Mapping[int, int | None]
) -> list[DivergenceEntry]:
    """Functions that ranks of one pipeline stage compile unlike one another, collectives that differ first."""
    by_stage: dict[int | None, set[int]] = defaultdict(set)
    for one in compiles:
        by_stage[stage_of.get(one["rank"])].add(one["rank"])
    schedules = _schedules(trace)
    found: list[DivergenceEntry] = []
    for ranks in by_stage.values():
        found += _unlike("schedule", schedules, ranks, needs_all=False)
        found += _unlike("compilations", _reasons(compiles), ranks, needs_all=True)
    return sorted(found, key=lambda one: (one["kind"] != "schedule", one["file"] or "", one["line"] or 0))


def _reasons(compiles: Sequence[CompileEntry]) -> dict[Place, dict[int, str]]:
    """Per function and rank how often it was compiled, and why again."""
    told: dict[Place, dict[int, list[str]]] = defaultdict(lambda: defaultdict(list))
    for one in compiles:
        place = (one["file"] or "", one["line"] or 0, one["function"] or "")
        told[place][one["rank"]].append(without_addresses(one["failed"] or one["reason"] or "first"))
    return {place: {rank: _counted(reasons) for rank, reasons in own.items()} for place, own in told.items()}


_ADDRESS = when_used.pattern(r"\b0x[0-9a-fA-F]+")
_OF_AN_OBJECT = when_used.pattern(r"(?:\bid|_id|_version|\bhash)\(")
"""What compares an object's address, or a count that each process keeps for itself (`___check_obj_id(f, 140…)`)."""
_NUMBER_OF_PROCESS = when_used.pattern(r"(?<![\w.])\d{5,}(?![\w.])")
_OWN_DEVICE = when_used.pattern(r"\b(cuda:|device=)\d+")


def without_addresses(text: str) -> str:
    """A reason without what differs between processes that do the same: addresses and ids of objects, the rank's own
    device."""
    masked = _OWN_DEVICE.sub(r"\1…", _ADDRESS.sub("0x…", text))
    return _NUMBER_OF_PROCESS.sub("…", masked) if _OF_AN_OBJECT.search(masked) else masked


def _counted(reasons: Sequence[str]) -> str:
    return f"{units.plural(len(reasons), 'compilation')}: {'; '.join(dict.fromkeys(reasons))}"


def _schedules(trace: Trace) -> dict[Place, dict[int, str]]:
    """Per function and rank the collectives of its compiled code, where they were logged."""
    found: dict[Place, dict[int, str]] = defaultdict(dict)
    for row in trace.rows("compilations"):
        if row["schedule"] is not None:
            own = found[row["file"] or "", row["line"] or 0, row["function"] or ""]
            before = own.get(row["rank"])
            own[row["rank"]] = f"{before} then {row['schedule']}" if before else row["schedule"]
    return found


def _unlike(
    kind: str, told: Mapping[Place, Mapping[int, str]], ranks: Iterable[int], needs_all: bool
) -> list[DivergenceEntry]:
    """Entries of the functions that not all of some ranks have alike; with `needs_all` one that lacks it differs."""
    found: list[DivergenceEntry] = []
    for (file, line, function), own in told.items():
        groups: dict[str, list[int]] = defaultdict(list)
        for rank in sorted(ranks):
            if rank in own or needs_all:
                groups[own.get(rank, "never compiled")].append(rank)
        if len(groups) > 1:
            ordered = sorted(groups.items(), key=lambda item: (-len(item[1]), item[1]))
            found.append(
                {
                    "kind": kind,
                    "file": file or None,
                    "line": line or None,
                    "function": function or None,
                    "groups": [group for _, group in ordered],
                    "what": [what for what, _ in ordered],
                }
            )
    return found


ANALYZERS = (COMPILED_ANALYZER, COMPILED_GAPS_ANALYZER)

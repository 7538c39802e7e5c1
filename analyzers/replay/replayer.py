"""The replay of a run: unchanged, to show that it can be trusted, then with changes."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, Literal

import numpy as np

from gpuscope.analyzers.base.analyzer import Result
from gpuscope.analyzers.base.lanes import REPLAY
from gpuscope.analyzers.facts.pipeline_facts import Flush, Key, StageMap
from gpuscope.analyzers.facts.run_facts import RunFacts
from gpuscope.analyzers.replay.contention import NONE, Changed, Contended, Outcome, Slowdown, slowdown
from gpuscope.analyzers.replay.engine import (
    MODEL_ERROR,
    CircleError,
    Replayed,
    as_replayed,
    bounds,
    compute_floor,
    median_by_chance,
    paced_by_kernels,
    parts,
    replay,
)
from gpuscope.analyzers.replay.graph import Edge, Graph, Node, UnreplayableError
from gpuscope.analyzers.replay.recording import (
    MAX_ERROR,
    Recorded,
    chance,
    counted_steps,
    joined,
    mean_shares,
    missing,
    not_replayed,
    setting_of,
    step_of,
    unmatched_messages,
)
from gpuscope.analyzers.replay.rewrites.loader_workers import as_they_came
from gpuscope.analyzers.replay.rewrites.rewrite_table import rewrite
from gpuscope.analyzers.what_if_changes import (
    UNMATCHED,
    Change,
    LoaderWorkers,
    MicroBatches,
    MoreLoaderWorkers,
    PipelineChange,
    Predicted,
    Refused,
    RegroupedCommunication,
    ReplacedRank,
    of_pipeline_alone,
)
from gpuscope.schema.provenance import Provenance, Replay
from gpuscope.trace.schema import NA
from gpuscope.trace.table import Mask, Times
from gpuscope.welch import lower_median
from gpuscope.words import units

if TYPE_CHECKING:
    from gpuscope.analyzers.replay.device_contention import Disturbed
    from gpuscope.analyzers.replay.engine import PathSpan
    from gpuscope.analyzers.replay.rewrites.pipeline_layout import PipelineReplay


# What hosts need for a pipeline's steps, whatever its devices do: no other layout of its computations is faster.


def hosts_alone(
    graph: Graph, changes: Collection[PipelineChange], flushes: Sequence[Flush], stages: StageMap, *, paced: bool
) -> Graph:
    """The graph of a job on devices and links that take no time: hosts launch, and wait for batches.

    More micro-batches are so many times the launches of computations and messages. `paced`: batches come no sooner
    where loader workers fall behind.
    """
    times = 1.0
    for change in changes:
        if isinstance(change, MicroBatches):
            times *= change.count / max(flushes[0].micro_batches, 1)
    found = as_they_came(graph, ()).graph if paced else graph
    launching = np.append(_launching(graph, flushes, stages), np.zeros(len(found) - len(graph), np.bool_))
    dur = np.where(launching, np.rint(found.nodes["dur"] * times).astype(np.int64), found.nodes["dur"])
    device = found.of(Node.DEVICE, Node.ARRIVAL, Node.TRANSFER, Node.JOIN)
    launched = np.zeros(len(found), np.bool_)
    launched[found.edges["dst"][found.edges["why"] == Edge.LAUNCH]] = True
    return found.with_nodes(
        dur=np.where(device, 0, dur), release=np.where(device & launched, NA, found.nodes["release"])
    )


def _launching(graph: Graph, flushes: Sequence[Flush], stages: StageMap) -> Mask:
    """Host segments that end with the launch of something between a flush's first computation and its last one."""
    found = np.zeros(len(graph), np.bool_)
    nodes, launch = graph.nodes, graph.edges["why"] == Edge.LAUNCH
    src, dst = graph.edges["src"][launch], graph.edges["dst"][launch]
    rank_of = {place: rank for rank, place in stages.places.items()}
    for flush in flushes:
        for stage, own in enumerate(flush.stages):
            rank = rank_of.get((flush.pipeline, stage))
            inside = (nodes["rank"][dst] == rank) & (nodes["start"][dst] >= own[0].start)
            found[src[inside & (nodes["start"][dst] < own[-1].end)]] = True
    return found


_DEADLOCK = "in that order stages would deadlock"
_WAITING = "how much of its collectives is waiting for those ranks is not recorded, at worst all that would be gained"
_UNEVEN = "by how much its steps would differ, another run's may get no shorter"
_CUT = "what of a message is fixed cost, and whether smaller kernels fill the device, is not in the trace"
_CIRCLE = "the job waits for results earlier than the change would produce them: it is not structured in that way"


class Replayer:
    """A run's graph, its error, and what changes would bring. Without a graph it says why and refuses."""

    def __init__(
        self, facts: RunFacts, recorded: Sequence[Recorded], stand_ins: Mapping[int, int] | None = None
    ) -> None:
        """`stand_ins`: for each rank of which nothing is `recorded`, the one that stands for it."""
        self._stand_ins = dict(stand_ins or {})
        self.why = missing(recorded)
        self.broken = any(entry.broken for entry in recorded)
        self.ranks = len({entry.rank for entry in recorded})
        self.steps = 0
        """Steps replayed that count: the judged ones among those recorded."""
        self.measured_step_ns: int | None = None
        self.replayed_step_ns: int | None = None
        self.error_frac: float | None = None
        """|replayed − measured| / measured, of the mean step."""
        self._graph: Graph | None = None
        self._layouts: dict[tuple[PipelineChange, ...], Predicted | Refused] = {}
        self._reordered: dict[tuple[tuple[PipelineChange, ...], int], Graph | None] = {}
        self._facts = facts
        self._before = step_of(facts)
        self._outside = not_replayed(facts, recorded)
        self._counted = counted_steps(facts, recorded)
        self._core_waits = {entry.rank: entry.core_waits for entry in recorded if entry.core_waits}
        self._fixed = mean_shares([entry.fixed for entry in recorded])
        self._pauses = mean_shares([entry.pauses for entry in recorded])
        self._numbers = recorded[0].numbers if recorded else ()
        processes = any(entry.loader_processes for entry in recorded)
        generation = max((entry.generation for entry in recorded), default="")
        self._setting = replace(
            setting_of(facts), loader_processes=processes, stand_ins=self._stand_ins, generation=generation
        )
        self._variation = chance(recorded, self._counted, bool(self._setting.gpu))
        if not self.why:
            self._build(recorded)

    def _build(self, recorded: Sequence[Recorded]) -> None:
        graphs = [entry.graph for entry in recorded if entry.graph is not None]
        graph = joined(graphs, self._facts, self._stand_ins) if len(graphs) > 1 else graphs[0]
        try:
            self._unchanged = replay(graph)
        except CircleError as error:
            self.why = str(error)
            return
        replayed = self._mean(graph, self._unchanged)
        measured = float(np.mean([np.mean(np.array(entry.steps_ns)[self._counted]) for entry in recorded]))
        self.steps = int(self._counted.sum())
        self.measured_step_ns, self.replayed_step_ns = round(measured), round(replayed)
        self.error_frac = abs(replayed - measured) / measured if measured > 0 else 0.0
        self._graph, self._recorded = paced_by_kernels(graph), graph
        if self.error_frac > MAX_ERROR:
            self.why = (
                f"the replay is off by {units.share(self.error_frac)} of the unchanged step, more than "
                f"{units.whole_share(MAX_ERROR)}: operations waited for something that is not in the trace"
            )

    @cached_property
    def critical_path(self) -> list[PathSpan]:
        """Of what is replayed, as recorded; empty where it can't be replayed."""
        from gpuscope.analyzers.replay.engine import critical_path

        if self.why:
            return []
        offset = self._facts.clocks.offset if self.ranks > 1 else {}
        return critical_path(self._recorded, self._unchanged, offset)

    def predict(self, change: Change | Sequence[Change]) -> Predicted | Refused:
        """The step time with a change, or with several made one after the other."""
        changes = list(change) if isinstance(change, Sequence) else [change]
        if (pipelined := of_pipeline_alone(changes)) and self._in_graph(changes) is None:
            return self._pipelined(pipelined)
        if (refused := self._refuses(changes)) is not None:
            return refused
        assert self._graph is not None
        try:
            outcomes = self._outcomes(changes)
        except UnreplayableError as error:
            return Refused(str(error), error.code)
        except CircleError:
            return Refused(_CIRCLE)
        scale = self._scale
        times = [max(self._outside + outcome.step_ns * scale, outcome.floor_ns) for outcome in outcomes]
        after = times[0]
        missed, chance = max(self._error, outcomes[0].pipeline_error), max(self._variation, outcomes[0].chance)
        low, high = self._bounds(changes, self._before, times, missed, chance)
        regrouped = self._absent() and any(isinstance(one, RegroupedCommunication) for one in changes)
        if regrouped:  # what is waiting for the others, and stays
            high = max(high, round(self._before))
        low = max(low, min(round(after), round(min(outcome.floor_ns for outcome in outcomes))))
        uneven = chance * after > max(self._before - after, 0)
        rests_on = (
            self._basis(),
            outcomes[0].basis,
            outcomes[0].lacking,
            _WAITING if regrouped else "",
            _UNEVEN if uneven else "",
        )
        return Predicted(
            round(self._before),
            round(after),
            low,
            high,
            "; ".join(filter(None, rests_on)),
            provenance="assumed" if regrouped else outcomes[0].provenance,
            saved=self._saved(outcomes[0], scale),
            unshown=bool(outcomes[0].lacking) or uneven,
        )

    def _saved(self, outcome: Outcome, scale: float) -> dict[str, int]:
        if outcome.timeline is None:
            return {}
        now = parts(*outcome.timeline, self._counted)
        return {part: round((before - now[part]) * scale) for part, before in self._parts.items()}

    @cached_property
    def _parts(self) -> dict[str, float]:
        assert self._graph is not None
        return parts(self._graph, self._unchanged, self._counted)

    def estimate(self, change: Change | Sequence[Change]) -> int | Refused:
        """`predict(change).after` in a fraction of the time: as expected alone, without a range."""
        changes = list(change) if isinstance(change, Sequence) else [change]
        if (pipelined := of_pipeline_alone(changes)) and self._in_graph(changes) is None:
            outcome = self._pipelined(pipelined)
            return outcome if isinstance(outcome, Refused) else outcome.after
        if (refused := self._refuses(changes)) is not None:
            return refused
        assert self._graph is not None
        try:
            expected = self._replayed(self._changed(changes, 0), 0)
        except UnreplayableError as error:
            return Refused(str(error), error.code)
        except CircleError:
            return Refused(_CIRCLE)
        return round(max(self._outside + expected.step_ns * self._scale, expected.floor_ns))

    @cached_property
    def _scale(self) -> float:
        """What a replayed ns is of «the step»."""
        assert self._graph is not None
        return (self._before - self._outside) / self._step(self._graph, self._unchanged)

    def _refuses(self, changes: Sequence[Change]) -> Refused | None:
        """Why these changes can't be replayed, whatever they are."""
        if self.why or self._graph is None or not self.replayed_step_ns:
            return Refused(self.why or "nothing was replayed")
        if len(changes) > 1 and self._unmatched:
            ends = units.plural(self._unmatched, "message")
            why = f"the other ends of {ends} are not in the replayed steps, so what several changes together make of "
            return Refused(why + "them is not known: record all ranks, and whole steps", UNMATCHED)
        return None

    def _in_graph(self, changes: Sequence[Change], bias: int = 0) -> Graph | None:
        """The graph with the pipeline's changes among these, where they are of what it holds: devices' computations in
        another order, more and smaller ones, or as long on all stages. Else they are laid out anew."""
        own = tuple(change for change in changes if isinstance(change, PipelineChange))
        if not own or self.why or not self._setting.gpu:
            return None
        key = own, bias if any(isinstance(change, MicroBatches) for change in own) else 0
        if key not in self._reordered and self._graph is not None:
            from gpuscope.analyzers.replay.rewrites.pipeline_order import moved

            setting = replace(self._setting, bias=bias)
            self._reordered[key] = moved(self._graph, own, self._facts, self._numbers, self._counted, setting)
        return self._reordered.get(key)

    @cached_property
    def _unmatched(self) -> int:
        return 0 if self._graph is None else unmatched_messages(self._graph)

    def _pipelined(self, changes: tuple[PipelineChange, ...]) -> Predicted | Refused:
        """Another schedule, split or number of micro-batches alone: the pipeline's part of the step laid out anew."""
        if changes not in self._layouts:  # the report asks for some of them in several places
            try:
                self._layouts[changes] = self._laid_out(changes)
            except UnreplayableError as error:
                self._layouts[changes] = Refused(str(error), error.code)
            except CircleError:
                self._layouts[changes] = Refused(_DEADLOCK)
        return self._layouts[changes]

    def _laid_out(self, changes: Sequence[PipelineChange]) -> Predicted:
        """Raises `UnreplayableError` or `CircleError`."""
        pipeline = self._trusted_pipeline
        before = self._before or pipeline.step_ns
        floor = hosts = 0.0
        if self._graph is not None:
            floor = compute_floor(self._graph, self._unchanged, self._counted, changes)
            hosts = self._hosts_alone(self._graph, changes) if self._setting.gpu else 0.0
        times = [max(before - pipeline.saved(changes, bias), floor, hosts) for bias in (0, -1, 1)]
        low, high = self._bounds(changes, before, times, pipeline.error_frac, self._variation)
        low = max(low, round(min(floor, times[0])))
        basis, provenance = pipeline.basis(changes), pipeline.provenance(changes)
        # A device whose computations can't be put in that order has others among them: means tell little of it.
        unshown = provenance == "assumed" or (bool(self._setting.gpu) and self._graph is not None)
        return Predicted(round(before), round(times[0]), low, high, basis, provenance, unshown=unshown)

    def _hosts_alone(self, graph: Graph, changes: Sequence[PipelineChange]) -> float:
        """Mean ns that hosts need for a step with such changes: a device's queue evens out what they do in bunches, as
        batches come from workers. Raises `CircleError`."""

        stages = self._facts.stages
        assert stages is not None  # else there is no pipeline
        flushes, paced = self._trusted_pipeline.flushes, self._setting.loader_processes
        alone = hosts_alone(graph, changes, flushes, stages, paced=paced)
        times = [own[self._counted].mean() for own in replay(alone).steps(alone).values()]
        return self._outside + float(max(times)) * self._scale

    def _bounds(
        self, changes: Sequence[Change], before: float, times: Sequence[float], error: float, chance: float
    ) -> tuple[int, int]:
        """The range of a step of `times[0]` ns; the others are its cases.

        The baseline replay error may remain after a change; another run's step differs by `chance`; what no source
        of error covers is in proportion to what the change moves, or fitted.
        """
        from gpuscope.analyzers.replay.contention import margin

        errors = [error * times[0], chance * times[0]]
        if not self._setting.gpu:
            return bounds(times, [*errors, MODEL_ERROR * abs(before - times[0])])
        return bounds(times, errors, times[0] * margin(changes, self._graph))

    def pipeline_places(self, flush: Flush, change: PipelineChange) -> dict[Key, tuple[int, int]]:
        """Start and end of each computation of a flush with a change, as `predict` replays it, in ns after the pipeline
        began to fill; empty where `predict` refuses."""
        if isinstance(self.predict(change), Refused):
            return {}
        return self._trusted_pipeline.places(flush, change)

    @property
    def nodes(self) -> int:
        """Of the graph: a replay takes some tens of nanoseconds for each, in Python a microsecond."""
        return 0 if self._graph is None else len(self._graph)

    @property
    def _trusted_pipeline(self) -> PipelineReplay:
        """Raises `UnreplayableError` where there is none, or its unchanged replay misses."""
        pipeline = self._pipeline
        if pipeline.error_frac > MAX_ERROR:
            raise UnreplayableError(
                f"the replay is off by {units.share(pipeline.error_frac)} of the unchanged pipeline's length, more "
                f"than {units.whole_share(MAX_ERROR)}"
            )
        return pipeline

    @cached_property
    def _pipeline(self) -> PipelineReplay:
        from gpuscope.analyzers.replay.rewrites.pipeline_layout import pipeline_replay

        return pipeline_replay(self._facts, self._fixed, self._setting.gpu, self._pauses)

    def _pipeline_in(self, graph: Graph, done: Replayed) -> PipelineReplay:
        """The pipelines at the times of a replay with other changes. Raises `UnreplayableError` or `CircleError`."""

        recorded, stages = self._trusted_pipeline, self._facts.stages
        assert stages is not None  # else there are no flushes
        counted = {number for number, own in zip(self._numbers, self._counted.tolist(), strict=True) if own}
        return replace(recorded, flushes=as_replayed(graph, done, recorded.flushes, stages, counted))

    def _outcomes(self, changes: Sequence[Change]) -> list[Outcome]:
        """As expected, then where the change and what overlaps turn out well or badly, in each combination that
        matters. Raises `UnreplayableError` or `CircleError`."""
        expected = self._replayed(self._changed(changes, 0), 0)
        best, worst = (self._changed(changes, bias) for bias in (-1, 1))
        both = [(best, -1), (worst, 1)] + ([(best, 1), (worst, -1)] if expected.moved else [])
        return [expected] + [self._replayed(changed, beside) for changed, beside in both]

    def _changed(self, changes: Sequence[Change], bias: int) -> Changed:
        """The graph with these changes. Raises `UnreplayableError` or `CircleError`."""
        graph, basis, lacking = self._graph, [], ""
        provenance: Provenance = "inferred"
        replaced = frozenset(change.rank for change in changes if isinstance(change, ReplacedRank))
        alone = self._disturbed.alone if self._setting.gpu else None
        setting = replace(
            self._setting, bias=bias, cores_known=self._slowdown.significant, replaced=replaced, alone=alone
        )
        pipelined = [change for change in changes if isinstance(change, PipelineChange)]
        if any(isinstance(change, MicroBatches) and change.keep_batch for change in pipelined):
            provenance, lacking = "assumed", _CUT
        if (reordered := self._in_graph(changes, bias)) is not None:
            graph, pipelined = reordered, []
            basis.append("the pipeline's computations moved with their messages and launches")
        loaded = any(isinstance(change, LoaderWorkers | MoreLoaderWorkers) for change in changes)
        if graph is not None and changes and setting.loader_processes and not loaded:
            from gpuscope.analyzers.replay.rewrites.loader_workers import as_they_came

            found = as_they_came(graph, replaced, bias)
            graph, lacking = found.graph, found.lacking or lacking
            basis += [found.basis] if found.basis else []
        for change in changes:
            if isinstance(change, PipelineChange):
                continue
            assert graph is not None
            found = rewrite(graph, change, setting)
            graph = found.graph
            basis.append(found.basis)
            lacking = found.lacking or lacking
            provenance = "assumed" if found.provenance == "assumed" else provenance
        assert graph is not None
        if self._slowdown.significant:
            basis.append(self._slowdown.text())
        first = self._disturbed.as_fast(graph) if self._setting.gpu else None
        return Changed(graph, bias, pipelined, basis, provenance, lacking, first)

    def _replayed(self, made: Changed, beside: int) -> Outcome:
        beside_basis: list[str] = []
        bias, pipelined, basis, provenance = made.bias, made.pipelined, list(made.basis), made.provenance
        if made.first is not None:
            changed, done, beside_basis = self._disturbed.replay(made.first, beside)
        else:
            changed, done = self._contended.replay(made.graph, bias)
        step, pipeline_error = self._step(changed, done), 0.0
        if pipelined:
            pipeline = self._pipeline_in(changed, done)
            pipeline_error = pipeline.error_frac
            step -= pipeline.saved(pipelined, bias)
            basis.append(pipeline.basis(pipelined))
            provenance = "assumed" if pipeline.provenance(pipelined) == "assumed" else provenance
        floor = compute_floor(changed, done, self._counted, pipelined)
        return Outcome(
            step,
            floor,
            "; ".join([*basis, *beside_basis]),
            provenance,
            made.lacking,
            bool(beside_basis),
            pipeline_error,
            self._chance(changed, done),
            (changed, done) if bias == beside == 0 and not pipelined else None,
        )

    def _mean(self, graph: Graph, done: Replayed) -> float:
        """Mean of the steps that count, over ranks, in ns."""
        return float(np.mean([times[self._counted].mean() for times in done.steps(graph).values()]))

    def _step(self, graph: Graph, done: Replayed) -> float:
        """«The step» as it is of a run: the median over steps that count, in ns."""
        return float(lower_median(self._steps(graph, done).tolist()))

    def _steps(self, graph: Graph, done: Replayed) -> Times:
        """Of each step that counts the largest over ranks; where collectives join all of them and it is less in the
        median, from the earliest begin on any rank to the next; ns."""
        largest: Times = np.array(list(done.steps(graph).values())).max(axis=0)
        if not self._facts.steady.joined:
            return largest[self._counted]
        begun = np.array([done.start[marks] for marks in graph.marks.values()]).min(axis=0)
        together: Times = np.diff(begun)
        numbers = list(self._facts.steady.steps)
        ends = np.isin(self._numbers, (numbers[0], numbers[-1]))
        together[ends] = largest[ends]
        found = (largest[self._counted], together[self._counted])
        return min(found, key=lambda times: lower_median(times.tolist()))

    def _chance(self, graph: Graph, done: Replayed) -> float:
        """How far another run's step may lie off, of a GPU, relative, by how the steps differ."""
        return (median_by_chance(self._steps(graph, done)) or 0.0) if self._setting.gpu else 0.0

    @cached_property
    def _slowdown(self) -> Slowdown:
        if self._graph is None or len(self._core_waits) < len(self._graph.ranks):
            return NONE
        return slowdown(self._graph, self._unchanged, self._core_waits)

    @cached_property
    def _contended(self) -> Contended:
        assert self._graph is not None
        return Contended(self._graph, self._unchanged, self._slowdown)

    @cached_property
    def _disturbed(self) -> Disturbed:
        from gpuscope.analyzers.replay.device_contention import Disturbed

        assert self._graph is not None
        return Disturbed(self._graph, self._unchanged, self._setting.reach)

    def _basis(self) -> str:
        assert self.error_frac is not None
        steps = units.plural(self.steps, "step")
        absent = self._absent()
        others = f"; {absent} ranks are not in the trace and assumed to be like these" if absent else ""
        inferred = self._graph.inferred if self._graph is not None else 0
        waits = f", {units.plural(inferred, 'wait')} between streams inferred" if inferred else ""
        of = f" of {self.ranks} ranks, {len(self._stand_ins)} like one of these each," if self._stand_ins else ","
        missed = f"{100 * self.error_frac:.1f} %"
        return f"a replay of {steps}{of} which unchanged misses their time by {missed}{waits}{others}"

    @property
    def _error(self) -> float:
        return self.error_frac or 0.0

    def _absent(self) -> int:
        """Ranks of the job that no file holds, as far as the trace records its size."""
        return max(0, (self._facts.world_size or 0) - len(self._facts.trace.ranks))

    def section(self) -> Replay:
        """The `replay` section of the report."""
        return {
            "measured_step_ns": self.measured_step_ns,
            "replayed_step_ns": self.replayed_step_ns,
            "error_frac": self.error_frac,
            "steps": self.steps,
            "inferred_waits": None if self._graph is None else self._graph.inferred,
            "why": self.why,
        }

    def result(self) -> Result:
        """As an analysis of the run."""
        status: Literal["ok", "skipped", "failed"] = (
            "failed" if self.broken else "ok" if self._graph is not None else "skipped"
        )
        result = Result("replay", status, "" if status == "ok" else self.why)
        result.sections[REPLAY] = self.section()
        return result

"""A pipeline in another schedule, with other micro-batches or an even split: its computations laid out anew.

Kept as measured: how long computations take on each stage, and by how much these times differ, for where all stages are
equally busy every late one delays the others; one mean delay of messages each way for what their sender does next; per
stage one mean pause between computations of each two kinds. Smaller messages take less, as far as their cost is the
bytes'. The order on each stage is the schedule's. All but the pipeline's part of a step stays.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import field, replace
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from gpuscope.analyzers.facts.pipeline_facts import Computation, Flush, Key, mean_begin_to_begin
from gpuscope.analyzers.facts.run_facts import RunFacts
from gpuscope.analyzers.pipelines.schedules import recognise, schedule_order
from gpuscope.analyzers.replay.engine import CircleError, Replayed, replay
from gpuscope.analyzers.replay.graph import Edge, Graph, Node, UnreplayableError, edge_columns
from gpuscope.analyzers.what_if_changes import EvenStages, MicroBatches, PipelineChange, Schedule
from gpuscope.schema.provenance import Provenance
from gpuscope.trace.table import Times
from gpuscope.welch import fmean, median
from gpuscope.when_used import dataclass
from gpuscope.words import units

if TYPE_CHECKING:
    from gpuscope.analyzers.pipelines.schedules import MessageTime

FIXED_SHARE = 0.125
"""Share of a micro-batch's time that does not shrink with it (launches, small kernels), where none is recorded. An
assumption; at best none is, at worst twice as much. The same holds for a recorded share, for it is an estimate too."""
UNFILLED_SHARE = 0.25
"""The same share at worst on a GPU, which smaller kernels may not fill: a trace of one size does not show when."""
CHUNKS = 2
"""Model chunks per stage that an interleaved schedule is given where the job has one."""


@dataclass(frozen=True)
class Task:
    """A computation to lay out: F, B or W of a micro-batch on a model chunk."""

    kind: str
    micro_batch: int
    model_chunk: int
    dur: float
    """ns."""

    @property
    def key(self) -> Key:
        """What identifies it within its flush."""
        return self.kind, self.model_chunk, self.micro_batch


Plan = Sequence[Sequence[Task]]
"""Per stage, its tasks in order."""


@dataclass(frozen=True)
class Delays:
    """ns, means over a flush."""

    message: Mapping[str, float]
    """By kind of the computation that waits for it and kind of what its sender computes next (the latter empty, where
    nothing follows): a sender that computes on delays its message, one that waits for another does not."""
    pause: Sequence[Mapping[str, float]]
    """Per stage, between two computations where nothing else is waited for, by their kinds."""

    def arriving(self, kind: str, behind: str) -> float:
        """The delay of a message for a computation of a kind, whose sender then computes `behind`. If none was so, that
        of other messages for this kind."""
        if kind + behind in self.message:
            return self.message[kind + behind]
        others = [delay for kinds, delay in self.message.items() if kinds[0] == kind]
        return fmean(others) if others else 0.0

    def between(self, stage: int, first: str, second: str, behind: str = "") -> float:
        """The pause between computations of two kinds; the sender of a message for the second then computes `behind`.

        Of kinds that never follow each other there: what follows the first kind otherwise (on the last stage the loss),
        else what any do, on this stage if there is any. Where a message is received in it, that message too, unless
        such pauses are shorter.
        """
        own = self.pause[stage]
        if first + second in own:
            return own[first + second]
        fed = [ns for at, seen in enumerate(self.pause) for kinds, ns in seen.items() if self._fed(at, kinds[1])]
        alone = [
            {kinds: ns for kinds, ns in seen.items() if not self._fed(at, kinds[1])}
            for at, seen in enumerate(self.pause)
        ]
        others = [ns for kinds, ns in alone[stage].items() if kinds[0] == first] or list(alone[stage].values())
        others = others or [ns for seen in alone for ns in seen.values()]
        pause = fmean(others) if others else 0.0
        if not self._fed(stage, second):
            return pause
        received = pause + self.arriving(second, behind)
        return min(received, fmean(fed)) if fed else received

    def _fed(self, stage: int, kind: str) -> bool:
        """Whether computations of a kind get messages on a stage."""
        return stage != (0 if kind == "F" else len(self.pause) - 1) and kind != "W"

    def scaled(self, scale: float, shorter: float = 0.0) -> Delays:
        """With pauses that hold the loss as much shorter as micro-batches are, and messages `shorter` by so many ns,
        also where one was waited for in a pause, as nothing came later; others hold what each micro-batch costs."""
        pauses: list[Mapping[str, float]] = []
        for stage, own in enumerate(self.pause):
            pauses.append(
                {
                    kinds: pause * scale
                    if kinds == "FB" and not self._fed(stage, "B")
                    else pause - shorter
                    if self._fed(stage, kinds[1]) and pause >= shorter
                    else pause
                    for kinds, pause in own.items()
                }
            )
        return Delays({kind: max(0.0, ns - shorter) for kind, ns in self.message.items()}, pauses)


@dataclass(frozen=True)
class Baseline:
    """A flush with its delays, and its length in ns when replayed unchanged."""

    flush: Flush
    delays: Delays
    length: float


@dataclass(frozen=True)
class PipelineReplay:
    """The flushes of a run and how well they are replayed unchanged."""

    flushes: tuple[Flush, ...]
    fixed: Mapping[str, float]
    """Share of a micro-batch's time that the trace shows not to shrink with it, by kind of computation."""
    gpu: bool = False
    """Whether it computes on GPUs."""
    pauses: Mapping[str, float] = field(default_factory=dict)
    """The part of `fixed` that is measured and no assumption: with fewer micro-batches no more than that is gained."""
    message: MessageTime | None = None
    """What messages take, where they are known to shrink with their bytes."""

    @cached_property
    def baselines(self) -> tuple[Baseline, ...]:
        """The flushes replayed unchanged. Raises `CircleError`."""
        found = []
        for flush in self.flushes:
            delays = delays_of(flush, blocking=not self.gpu)
            found.append(Baseline(flush, delays, length(recorded(flush), delays)))
        return tuple(found)

    @cached_property
    def error_frac(self) -> float:
        """Relative error of the unchanged replay. Raises `CircleError`."""
        return abs(fmean(one.length / one.flush.length - 1 for one in self.baselines))

    @cached_property
    def step_ns(self) -> float:
        """Mean step of a job that recorded nothing but computations."""
        return mean_begin_to_begin(self.flushes)

    def saved(self, changes: Sequence[PipelineChange], bias: int) -> float:
        """ns per step that changes made one after the other save: mean over steps of the median over pipelines. Raises
        `UnreplayableError` or `CircleError`."""
        values: dict[int, dict[int, float]] = defaultdict(lambda: defaultdict(float))
        for one in self.baselines:
            after = float(np.max(self._changed(one, changes, bias)[1].end))
            values[one.flush.step][one.flush.pipeline] += one.length - after
        return fmean(median(own.values()) for own in values.values())

    def places(self, flush: Flush, change: PipelineChange) -> dict[Key, tuple[int, int]]:
        """Start and end of each computation of a flush with a change, ns after the pipeline began to fill: to look at,
        so all of a kind take equally long.

        Raises `UnreplayableError` or `CircleError`.
        """
        changed = plan(flush, change, self.shrink(flush, change, 0))
        mean = _means([task for own in changed for task in own])
        tasks = [[replace(task, dur=mean[task.kind]) for task in own] for own in changed]
        replayed = laid_out(tasks, delays_of(flush, blocking=not self.gpu))
        keys = [task.key for own in tasks for task in own]
        return dict(zip(keys, zip(replayed.start.tolist(), replayed.end.tolist(), strict=True), strict=True))

    def _changed(self, one: Baseline, changes: Sequence[PipelineChange], bias: int) -> tuple[Plan, Replayed]:
        flush, delays = one.flush, one.delays
        for change in changes:
            scale = self.shrink(flush, change, bias)
            tasks = plan(flush, change, scale)
            delays = delays.scaled(fmean(scale.values()), self._shorter(flush, change, bias))
            replayed = laid_out(tasks, delays)
            flush = _as_flush(flush, tasks, replayed)
        return tasks, replayed

    def shrink(self, flush: Flush, change: PipelineChange, bias: int) -> dict[str, float]:
        """What of its time a micro-batch takes after the change, by kind: less where the batch is cut into more."""
        if not isinstance(change, MicroBatches) or not change.keep_batch or change.count < 1:
            return dict.fromkeys("FB", 1.0)
        least = UNFILLED_SHARE if self.gpu and bias > 0 else 0.0
        known = self.pauses if self.pauses and change.count < flush.micro_batches else self.fixed
        fixed = {kind: min(1.0, max(least, (1 + bias) * known.get(kind, FIXED_SHARE))) for kind in "FB"}
        return {kind: own + (1 - own) * flush.micro_batches / change.count for kind, own in fixed.items()}

    def _shorter(self, flush: Flush, change: PipelineChange, bias: int) -> float:
        """ns by which messages are shorter after the change."""
        if self.message is None or not isinstance(change, MicroBatches) or not change.keep_batch:
            return 0.0
        return self.message.shorter(flush.micro_batches / max(1, change.count), bias)

    def provenance(self, changes: Sequence[PipelineChange]) -> Provenance:
        """`assumed` where a share that does not shrink is, else `inferred`."""
        cut = any(isinstance(change, MicroBatches) and change.keep_batch for change in changes)
        return "assumed" if cut and (self.gpu or not self.fixed) else "inferred"

    def basis(self, changes: Sequence[PipelineChange]) -> str:
        """What a prediction rests on."""
        steps = len({flush.step for flush in self.flushes})
        how = ", ".join(self._how(change) for change in changes)
        missed = f"{100 * self.error_frac:.1f} %"
        return f"a replay of the pipelines of {steps} steps, which unchanged misses their time by {missed}; {how}"

    def _how(self, change: PipelineChange) -> str:
        if isinstance(change, EvenStages):
            return "each stage with the mean stage's time"
        if isinstance(change, Schedule):
            return f"the same computations in the order of {change.name}"
        if not change.keep_batch:
            return f"{change.count} micro-batches"
        share = fmean(self.fixed.get(kind, FIXED_SHARE) for kind in "FB")
        why = "operators' dispatch, as recorded" if self.fixed else "an assumption"
        if self.fixed and self.gpu:
            why = "pauses between kernels, as recorded, and their own start; up to "
            why += f"{units.whole_share(UNFILLED_SHARE)} where smaller kernels do not fill the device"
        fixed = f"{units.whole_share(share)} of a micro-batch's time assumed to be fixed ({why})"
        return f"{change.count} micro-batches of the same batch, {fixed}"


def pipeline_replay(
    facts: RunFacts, fixed: Mapping[str, float], gpu: str = "", pauses: Mapping[str, float] | None = None
) -> PipelineReplay:
    """The pipelines of a run. Raises `UnreplayableError` where their computations are not recorded whole.

    `fixed` is the share of a computation's time that its batch does not change, by kind, as far as the trace shows it;
    `pauses` is the measured part of it; `gpu` is the model of its devices, empty where training threads are.
    """
    if facts.stages is not None and facts.stages.incomplete:
        raise UnreplayableError(facts.stages.incomplete)
    found, _ = facts.flushes
    if not found:
        raise UnreplayableError(
            "no step holds all computations of a pipeline: record every stage, with ranges per micro-batch"
        )
    from gpuscope.analyzers.pipelines.schedules import message_time

    replayed = PipelineReplay(found, fixed, bool(gpu), pauses or {}, message_time(facts, gpu) if gpu else None)
    try:
        _ = replayed.baselines
    except CircleError:
        raise UnreplayableError("the recorded computations wait for each other in a circle") from None
    return replayed


def _as_flush(flush: Flush, tasks: Plan, replayed: Replayed) -> Flush:
    """What was laid out, as if it had been recorded so: for the next change."""
    times = iter(zip(replayed.start.tolist(), replayed.end.tolist(), strict=True))
    return replace(
        flush,
        stages=tuple(
            tuple(Computation(task.kind, task.micro_batch, task.model_chunk, *next(times)) for task in own)
            for own in tasks
        ),
    )


def recorded(flush: Flush) -> list[list[Task]]:
    """The computations as they were."""
    return [[Task(one.kind, one.micro_batch, one.model_chunk, one.duration) for one in own] for own in flush.stages]


def plan(flush: Flush, change: PipelineChange, scale: Mapping[str, float]) -> Plan:
    """The computations after a change, each taking `scale` of its time by kind. Raises `UnreplayableError`."""
    own = recorded(flush)
    if isinstance(change, EvenStages):
        mean, of_stage = _means([task for tasks in own for task in tasks]), [_means(tasks) for tasks in own]
        return [
            [replace(task, dur=task.dur * mean[task.kind] / max(usual[task.kind], 1.0)) for task in tasks]
            for tasks, usual in zip(own, of_stage, strict=True)
        ]
    if any(task.kind == "W" for tasks in own for task in tasks):
        raise UnreplayableError("weight gradients are computed apart here: only an even split is modelled")
    found = recognise(flush)
    if isinstance(change, Schedule):
        return _ordered(flush, change.name, found.micro_batches, scale)
    if change.count < 1:
        raise UnreplayableError("a batch has at least one micro-batch")
    if found.name == "unknown":
        raise UnreplayableError(f"the schedule is not one of those known: {found.why}")
    return _ordered(flush, found.name, change.count, scale)


def _means(tasks: Sequence[Task]) -> dict[str, float]:
    """Mean ns by kind."""
    return {kind: fmean(task.dur for task in tasks if task.kind == kind) for kind in {task.kind for task in tasks}}


def _durations(tasks: Sequence[Task], kind: str, count: int) -> list[float]:
    """ns of so many computations of a kind: the mean of those recorded, differing as they do."""
    found = [task.dur for task in tasks if task.kind == kind]
    taken = [found[at % len(found)] for at in range(count)]
    return [dur * fmean(found) / max(fmean(taken), 1.0) for dur in taken]


def _ordered(flush: Flush, name: str, micro_batches: int, scale: Mapping[str, float]) -> Plan:
    """Each stage's tasks in the order of a schedule, as long as those recorded of their kind are on average."""
    stages = len(flush.stages)
    chunks = max(len({one.model_chunk for one in own}) for own in flush.stages)
    wanted = chunks if name == "looped_bfs" else max(chunks, CHUNKS) if name == "interleaved_1f1b" else 1
    if name not in ("gpipe", "1f1b", "interleaved_1f1b", "looped_bfs"):
        raise UnreplayableError(f"{name} computes weight gradients apart: how long these take is not recorded")
    plans: list[list[Task]] = []
    for stage, own in enumerate(recorded(flush)):
        lasting = {kind: iter(_durations(own, kind, micro_batches * wanted)) for kind in ("F", "B")}
        counts: dict[tuple[str, int], int] = defaultdict(int)
        tasks: list[Task] = []
        for kind, chunk in schedule_order(name, stage, stages, micro_batches, wanted):
            # Stages keep what they hold; more chunks are cut evenly, fewer joined.
            dur = next(lasting[kind]) * scale[kind] * chunks / wanted
            tasks.append(Task(kind, counts[kind, chunk], stage + chunk * stages, dur))
            counts[kind, chunk] += 1
        plans.append(tasks)
    return plans


def delays_of(flush: Flush, blocking: bool = False) -> Delays:
    """Messages: from a neighbour's end to the start of what waited for it. Pauses: between what waited for nothing.

    Where a stage blocks for its messages (`blocking`), one that was sent before is received within the pause: it takes
    no longer than that, which is all that is known of messages that nobody waited for.
    """
    ends = {one.key: one.end for own in flush.stages for one in own}
    last_chunk = max(one.model_chunk for own in flush.stages for one in own)
    behind = _behind(flush.stages)
    message: dict[str, list[int]] = defaultdict(list)
    within: dict[str, list[int]] = defaultdict(list)
    pauses: list[Mapping[str, float]] = []
    for own in flush.stages:
        pause: dict[str, list[int]] = defaultdict(list)
        for before, one in zip((None, *own[:-1]), own, strict=True):
            source = _other(one.kind, one.model_chunk, one.micro_batch, last_chunk)
            there = ends.get(source) if source is not None else None
            if source is not None and there is not None and (before is None or there > before.end):
                message[one.kind + behind[source]].append(max(0, one.start - there))
            elif before is not None:
                pause[before.kind + one.kind].append(max(0, one.start - before.end))
                if source is not None and blocking:
                    within[one.kind + behind[source]].append(max(0, one.start - before.end))
        pauses.append({kinds: fmean(seen) for kinds, seen in pause.items()})
    return Delays({kinds: fmean(found) for kinds, found in (within | message).items()}, pauses)


def _behind(stages: Sequence[Sequence[Task | Computation]]) -> dict[Key, str]:
    """Of each computation, the kind of its stage's next one; empty of the last."""
    return {
        one.key: other.kind if other is not None else ""
        for own in stages
        for one, other in zip(own, (*own[1:], None), strict=True)
    }


def _other(kind: str, chunk: int, micro_batch: int, last_chunk: int) -> tuple[str, int, int] | None:
    """What a computation gets a message from."""
    if kind == "F":
        return ("F", chunk - 1, micro_batch) if chunk else None
    return ("B", chunk + 1, micro_batch) if kind == "B" and chunk < last_chunk else None


def length(tasks: Plan, delays: Delays) -> float:
    """ns from filling to draining. Raises `CircleError` where the order can't be followed."""
    return float(np.max(laid_out(tasks, delays).end))


def laid_out(tasks: Plan, delays: Delays) -> Replayed:
    """When each task runs, in the order of the plan, from 0 on. Raises `CircleError`."""
    last_chunk = max(task.model_chunk for own in tasks for task in own)
    place = {task.key: at for at, task in enumerate(task for own in tasks for task in own)}
    behind = _behind(tasks)
    edges: list[tuple[int, int, int, int]] = []
    for stage, own in enumerate(tasks):
        for before, task in zip((None, *own[:-1]), own, strict=True):
            there = _other(task.kind, task.model_chunk, task.micro_batch, last_chunk)
            then = behind.get(there, "") if there is not None else ""
            if before is not None:
                lag = round(delays.between(stage, before.kind, task.kind, then))
                edges.append((place[before.key], place[task.key], lag, Edge.PROGRAM))
            if there in place:
                edges.append((place[there], place[task.key], round(delays.arriving(task.kind, then)), Edge.EVENT))
            if task.kind != "F" and ("F", task.model_chunk, task.micro_batch) in place:
                edges.append((place["F", task.model_chunk, task.micro_batch], place[task.key], 0, Edge.EVENT))
    dur = np.array([round(task.dur) for own in tasks for task in own], np.int64)
    return replay(Graph(_computing(dur), edge_columns(edges), (), (), {}))


def _computing(dur: Times) -> dict[str, Times]:
    """The columns of nodes that the engine reads."""
    return {"kind": np.full(len(dur), Node.DEVICE, np.int64), "release": np.zeros(len(dur), np.int64), "dur": dur}

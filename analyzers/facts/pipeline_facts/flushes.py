"""The computations of each pipeline between two flushes, in the order each stage ran them."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from gpuscope.analyzers.facts.pipeline_facts.stages import StageMap
from gpuscope.analyzers.step_graph.dependencies import BACKWARD, FORWARD, WEIGHT
from gpuscope.trace.columns.name_pool import NamePool
from gpuscope.trace.columns.table import Table
from gpuscope.trace.schema import NA
from gpuscope.when_used import dataclass

KINDS = {FORWARD: "F", BACKWARD: "B", WEIGHT: "W"}
Key = tuple[str, int, int]
"""Kind, model chunk and micro-batch: what identifies a computation within its flush."""


@dataclass(frozen=True)
class Computation:
    """One computation of a stage, in ns on the run's clock."""

    kind: str
    """F, B or W (weight gradients computed apart; B is then that of the inputs alone)."""
    micro_batch: int
    model_chunk: int
    start: int
    end: int

    @property
    def duration(self) -> int:
        """ns that it took."""
        return self.end - self.start

    @property
    def key(self) -> Key:
        """What identifies it within its flush."""
        return self.kind, self.model_chunk, self.micro_batch


@dataclass(frozen=True)
class Flush:
    """What a pipeline computes from filling to draining: per stage, in recorded order. Usually one per step."""

    pipeline: int
    step: int
    stages: tuple[tuple[Computation, ...], ...]

    @property
    def micro_batches(self) -> int:
        """Micro-batches that went through."""
        return len({one.micro_batch for one in self.stages[0]})

    @property
    def span(self) -> tuple[int, int]:
        """From the first computation of any stage to the end of the last one."""
        return min(own[0].start for own in self.stages), max(one.end for own in self.stages for one in own)

    @property
    def length(self) -> int:
        """ns of its span, at least 1."""
        start, end = self.span
        return max(end - start, 1)


def flushes(table: Table, names: NamePool, stages: StageMap) -> tuple[list[Flush], int]:
    """(flushes with all their computations, how many lack some). `table` is on one clock.

    A flush lacks some where a stage has another number of forwards, or of backwards, per micro-batch than the others:
    the recording begins or ends within it.
    """
    found: dict[tuple[int, int, int], dict[int, list[Computation]]] = defaultdict(lambda: defaultdict(list))
    for pipeline, stage, step, number, one in _computations(table, names, stages):
        found[pipeline, step, number][stage].append(one)
    count = stages.stages
    whole = []
    for (pipeline, step, _), own in sorted(found.items()):
        rows = tuple(tuple(_in_order(own[stage])) for stage in range(count))
        if _is_whole(rows):
            whole.append(Flush(pipeline, step, rows))
    return whole, len(found) - len(whole)


def mean_begin_to_begin(found: Sequence[Flush]) -> float:
    """Mean ns from the first computation of a step to the next step's: the step of a job of which nothing but its
    computations is recorded. Of a single step, its first flush."""
    begins: dict[int, int] = {}
    for flush in found:
        begins[flush.step] = min(flush.span[0], begins.get(flush.step, flush.span[0]))
    ordered = [begins[step] for step in sorted(begins)]
    if len(ordered) < 2:
        return float(found[0].length)
    return (ordered[-1] - ordered[0]) / (len(ordered) - 1)


def _in_order(own: Sequence[Computation]) -> list[Computation]:
    """By start. Where no gradients of inputs are computed (the first chunk has none), the weights' are the backward."""
    backward = {one.key for one in own if one.kind == "B"}
    alone = [
        replace(one, kind="B") if one.kind == "W" and ("B", one.model_chunk, one.micro_batch) not in backward else one
        for one in own
    ]
    return sorted(alone, key=lambda one: (one.start, one.end))


def _is_whole(stages: Sequence[Sequence[Computation]]) -> bool:
    forwards = [{one.micro_batch for one in own if one.kind == "F"} for own in stages]
    backwards = [{one.micro_batch for one in own if one.kind == "B"} for own in stages]
    counts = {Counter(one.kind for one in own)["F"] for own in stages}
    return bool(forwards[0]) and len(counts) == 1 and all(own == forwards[0] for own in (*forwards, *backwards))


def _computations(table: Table, names: NamePool, stages: StageMap) -> Iterator[tuple[int, int, int, int, Computation]]:
    """(pipeline, stage, step, number of the flush in the step, computation) of each row that computes."""
    codes = {names.find(op): kind for op, kind in KINDS.items()}
    columns = ("rank", "step", "op", "start", "end", "micro_batch", "chunk", "global_chunk")
    computing = np.flatnonzero(np.isin(table["op"], list(codes)) & np.isin(table["rank"], list(stages.places)))
    order = computing[np.lexsort((table["start"][computing], table["rank"][computing]))]
    seen: Counter[tuple[int, ...]] = Counter()
    for row in zip(*(table[column][order].tolist() for column in columns), strict=True):
        rank, step, op, start, end, recorded, chunk, model_chunk = row
        pipeline, stage = stages.places[rank]
        if model_chunk == NA:  # chunks go round the stages, where timers number them at all
            model_chunk = stage + (chunk * stages.stages if chunk != NA else 0)
        key = (rank, step, op, model_chunk)
        micro_batch = recorded if recorded != NA else seen[key]
        seen[key] += 1
        number = seen[*key, micro_batch] if recorded != NA else 0
        seen[*key, micro_batch] += 1
        yield pipeline, stage, step, number, Computation(codes[op], micro_batch, model_chunk, start, end)

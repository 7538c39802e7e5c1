"""Which rank is which stage of which pipeline, and what that rests on."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from gpuscope.analyzers.facts.clocks import Clocks
from gpuscope.analyzers.step_graph.dependencies import BACKWARD, FORWARD, WEIGHT
from gpuscope.analyzers.step_graph.pipeline_messages import between_stages
from gpuscope.schema.provenance import Provenance
from gpuscope.trace.name_pool import NO_NAME, NamePool, is_pipeline_group
from gpuscope.trace.schema import NA
from gpuscope.trace.table import Mask, Table
from gpuscope.trace.trace import Trace
from gpuscope.when_used import dataclass
from gpuscope.words import units


@dataclass(frozen=True)
class StageMap:
    """Place of each rank: (pipeline, stage); all stages of all pipelines are there."""

    places: dict[int, tuple[int, int]]
    basis: str
    provenance: Provenance
    incomplete: str = ""
    """Why ranks are missing from it, or what it leaves open; empty where it is complete."""

    @property
    def stages(self) -> int:
        """Number of stages of a pipeline."""
        return max(stage for _, stage in self.places.values()) + 1


def is_timed(trace: Trace) -> bool:
    """Whether the operations are those that a job's own timers recorded."""
    return any("workers" in source.facts for source in trace.sources)


def stage_map(trace: Trace, world: int | None, exchanged: Mask) -> StageMap | None:
    """The map from the job's timers, its ranges, its process groups or its messages, in this order; None where
    nothing looks like a pipeline. `world` is the number of ranks of the job, where that is known, `exchanged` says
    which rows of `collectives` are no messages between stages."""
    table = trace["operations"]
    timed = is_timed(trace)
    if timed and len(table):
        return _from_timers(trace, table)
    chunked = table.take(np.flatnonzero(table["global_chunk"] != NA))
    if len(chunked):
        return _from_ranges(trace, chunked, world, exchanged)
    found = _from_groups(trace) or _from_messages(trace, world, exchanged)
    return found if found is None else _with_computations(found, set(table["rank"][table["stage"] == NA].tolist()))


def _with_computations(found: StageMap, computed: set[int]) -> StageMap:
    """Complete where every stage's computations are known from the messages around them."""
    lacking = found.places.keys() - computed
    if lacking == found.places.keys():
        return found
    if not lacking:
        return replace(found, basis=found.basis + "; computations lie between messages", incomplete="")
    ranks = units.rank_words(lacking)
    return replace(found, incomplete=f"the messages of {ranks} do not show what is computed for which micro-batch")


def _from_timers(trace: Trace, table: Table) -> StageMap | None:
    if len(np.unique(table["stage"])) < 2:
        return None
    rows = zip(*(table[name].tolist() for name in ("rank", "dp_rank", "stage")), strict=True)
    places = {rank: (replica, stage) for rank, replica, stage in dict.fromkeys(rows)}
    workers = max(int(source.facts.get("workers", 0)) for source in trace.sources)
    lacking = f"only {len(places)} of {workers} ranks are analysed" if len(places) < workers else ""
    return StageMap(places, "the stage recorded by the job's own timers", "measured", lacking)


def _from_ranges(trace: Trace, table: Table, world: int | None, exchanged: Mask) -> StageMap | None:
    stage = dict(zip(table["rank"].tolist(), table["stage"].tolist(), strict=True))
    basis = "the stage in the names of the ranges around each computation"
    world = world or len(stage)
    if world < 2:
        return None
    if len(stage) < world:
        return StageMap(
            {rank: (0, own) for rank, own in stage.items()},
            basis,
            "measured",
            f"only {len(stage)} of {world} ranks have computations: record all ranks",
        )
    stages = list(range(max(stage.values()) + 1))
    of_stage = [sorted(rank for rank, own in stage.items() if own == at) for at in stages]
    width = len(stage) // len(stages)
    if any(len(own) != width for own in of_stage):
        return StageMap(
            {rank: (0, own) for rank, own in stage.items()}, basis, "measured", "stages with different numbers of ranks"
        )
    linked = [
        _Linked(
            _components(_messages(trace, world, exchanged)),
            "; ranks that send to each other are one pipeline",
            "measured",
        ),
        _Linked(_group_members(trace), "; process groups show which ranks are one pipeline", "measured"),
        _Linked(
            [set(own) for own in zip(*of_stage, strict=True)],
            "; pipelines take the ranks of each stage in their order",
            "measured" if width == 1 else "assumed",
        ),
    ]
    ordered = ((_by_stage(one.ranks, stage), one) for one in linked)
    pipelines, linked_by = next(
        (found, one)
        for found, one in ordered  # the last one always fits
        if len(found) == width and all([stage[rank] for rank in own] == stages for own in found)
    )
    places = {rank: (at, stage[rank]) for at, own in enumerate(pipelines) for rank in own}
    return StageMap(places, basis + linked_by.how, linked_by.provenance)


class _Linked(NamedTuple):
    """Which ranks may be one pipeline, and what says so."""

    ranks: list[set[int]]
    how: str
    provenance: Provenance


def _by_stage(pipelines: Iterable[set[int]], stage: Mapping[int, int]) -> list[list[int]]:
    """The ranks of each pipeline that have a stage, in its order."""
    return sorted(sorted(own & stage.keys(), key=lambda rank: stage[rank]) for own in pipelines)


def _from_groups(trace: Trace) -> StageMap | None:
    """The order of the ranks in groups that are called pipelines."""
    found = sorted(_group_lists(trace))
    if not found or len({rank for own in found for rank in own}) != sum(map(len, found)):
        return None
    places = {rank: (at, stage) for at, own in enumerate(found) for stage, rank in enumerate(own)}
    basis = "the order of ranks in the process groups that are described as pipelines"
    return StageMap(places, basis, "inferred", _NO_ORDER)


_NO_ORDER = (
    "neither ranges nor the order of messages tell forward from backward and one micro-batch from another: record "
    "with `gpuscope train`, with ranges `forward#micro_batch=0,stage=0` of "
    "gpuscope.instrumented_runtime.record.ranges, or with a schedule of torch.distributed.pipelining that writes "
    "`PP:0F0`"
)


def _group_lists(trace: Trace) -> set[tuple[int, ...]]:
    groups = trace["groups"]
    found: set[tuple[int, ...]] = set()
    # Every rank lists its groups: each is looked at once.
    listed = set(zip(groups["description"].tolist(), groups["ranks"].tolist(), strict=True))
    for description, ranks in listed:
        if description == NO_NAME or ranks == NO_NAME or not is_pipeline_group(trace.names[description]):
            continue
        members = tuple(int(number) for number in re.findall(r"\d+", trace.names[ranks]))
        if len(members) > 1:
            found.add(members)
    return found


def _group_members(trace: Trace) -> list[set[int]]:
    return [set(own) for own in _group_lists(trace)]


def _messages(trace: Trace, world: int | None, exchanged: Mask) -> Table:
    """Sends and receives with a known peer, but for those of exchanges."""
    table = trace["collectives"]
    one_way = between_stages(trace) & ~exchanged
    peer, ranks = table["peer"], trace.ranks
    if len(ranks) == 2 and world == 2:  # then there is only one other
        peer = np.where(one_way, sum(ranks) - table["rank"], peer)
    return Table(table.schema, {**table.columns, "peer": peer}).take(np.flatnonzero((peer != NA) & one_way))


def _components(messages: Table) -> list[set[int]]:
    """Ranks connected by messages."""
    linked: dict[int, set[int]] = {}
    for rank, peer in set(zip(messages["rank"].tolist(), messages["peer"].tolist(), strict=True)):
        joined = linked.get(rank, {rank}) | linked.get(peer, {peer})
        for member in joined:
            linked[member] = joined
    return list({id(own): own for own in linked.values()}.values())


def _from_messages(trace: Trace, world: int | None, exchanged: Mask) -> StageMap | None:
    """Chains of ranks that send to each other. The first stage is the end that begins with a send alone; a ring, or
    ends that begin in the same way, may be anything."""
    messages = _messages(trace, world, exchanged)
    peers: dict[int, set[int]] = defaultdict(set)
    for rank, peer in zip(messages["rank"].tolist(), messages["peer"].tolist(), strict=True):
        peers[rank].add(peer)
    senders = _senders(trace, messages)
    pipelines = [_chain(own, peers, senders) for own in _components(messages)]
    if not pipelines or any(own is None for own in pipelines):
        return None
    chains = sorted(own for own in pipelines if own is not None)
    if len(set(map(len, chains))) != 1:
        return None
    places = {rank: (at, stage) for at, own in enumerate(chains) for stage, rank in enumerate(own)}
    basis = "chains of ranks that send to each other, from the one that sends first"
    return StageMap(places, basis, "inferred", _NO_ORDER)


def _senders(trace: Trace, messages: Table) -> set[int]:
    """Ranks whose first message of the recording is a send, with no receive under way at once."""
    rank, start, end = (messages[name] for name in ("rank", "start", "end"))
    order = np.lexsort((start, rank))
    head = np.flatnonzero(np.diff(rank[order], prepend=-1))
    sizes = np.diff(np.append(head, len(order)))
    first = order[head]
    sends = np.asarray(trace.names.matching("send".__eq__)[messages["op"]], np.bool_)
    # A receive under way with the first message: which of them came first is then not known.
    under_way = np.zeros(len(order), np.bool_)
    under_way[order] = start[order] < np.repeat(end[first], sizes)
    receives = np.add.reduceat((under_way & ~sends)[order].astype(np.int64), head) if len(head) else head
    return set(rank[first[sends[first] & (receives == 0)]].tolist())


def _chain(members: Iterable[int], peers: dict[int, set[int]], senders: set[int]) -> list[int] | None:
    own = sorted(members)
    ends = [rank for rank in own if len(peers[rank]) == 1]
    first = [rank for rank in ends if rank in senders]
    if len(own) < 2 or len(ends) != 2 or len(first) != 1 or any(len(peers[rank]) > 2 for rank in own):
        return None
    chain = [first[0]]
    while len(chain) < len(own):
        onward = peers[chain[-1]] - set(chain)
        if len(onward) != 1:
            return None
        chain += onward
    return chain


# The operations of all ranks of a pipeline job on one clock, each with its pipeline.


def of_recorded_ranks(trace: Trace) -> bool:
    """Whether the operations are a pipeline's, known from ranges or messages and not from timers of the job."""
    table = trace["operations"]
    return not is_timed(trace) and bool(((table["global_chunk"] != NA) | (table["stage"] == NA)).any())


def computations_alone(trace: Trace, operations: Table) -> bool:
    """Whether a job's timers know where each computation belongs, and nothing of messages between the stages."""
    computes = np.isin(operations["op"], [trace.names.find(op) for op in (FORWARD, BACKWARD, WEIGHT)])
    return is_timed(trace) and bool((computes & (operations["global_chunk"] != NA)).all())


def assembled(trace: Trace, stages: StageMap, clock: Clocks) -> Table:
    """`operations` with `dp_rank` and `stage` as the map says, times on the clock of the lowest rank."""
    table = trace["operations"]
    if not of_recorded_ranks(trace):
        return table
    table = table.take(np.isin(table["rank"], list(stages.places)))
    ranks = table["rank"].tolist()
    stage = np.array([stages.places[rank][1] for rank in ranks], np.int64)
    by_messages = (table["stage"] == NA) & (table["micro_batch"] != NA)
    columns = {
        "dp_rank": np.array([stages.places[rank][0] for rank in ranks], np.int64),
        "stage": stage,
        "global_chunk": np.where(by_messages, stage, table["global_chunk"]),
        "start": clock.common(table["rank"], table["start"]),
        "end": clock.common(table["rank"], table["end"]),
    }
    return Table(table.schema, {**table.columns, **columns})


# The computations of each pipeline between two flushes, in the order each stage ran them.

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

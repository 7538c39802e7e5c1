"""Which rank is which stage of which pipeline, and what that rests on."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from gpuscope.analyzers.step_graph.pipeline_messages import between_stages
from gpuscope.schema.provenance import Provenance
from gpuscope.trace.columns.name_pool import NO_NAME
from gpuscope.trace.columns.table import Mask, Table
from gpuscope.trace.naming.process_groups import is_pipeline_group
from gpuscope.trace.schema import NA
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

"""What waits for what in a step of a Megatron-like job: operations, streams, groups.

The model is that of «Understanding Stragglers in Large Model Training Using What-if Analysis» (OSDI 2025).
The order of a stream is the recorded one of the first replica's first step.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterable, Sequence

import numpy as np

from gpuscope.trace.name_pool import NamePool
from gpuscope.trace.schema import NA
from gpuscope.trace.table import Array, Mask, Table, Times
from gpuscope.when_used import dataclass

# The operations of a job as one pattern that every data-parallel replica repeats in every step.


class UnmodelledError(Exception):
    """The operations don't fit the model; the message says in what."""


@dataclass(frozen=True)
class Grid:
    """Times of every operation of the pattern, in ns, shape (operations, replicas, steps)."""

    op: list[str]
    """Type of each operation of the pattern."""
    stage: Times
    seq: Times
    chunk: Times
    """Model chunk within the stage, or NA."""
    global_chunk: Times
    """Model chunk within the model, or NA."""
    start: Times
    end: Times
    ranks: Times
    """The rank that was timed, shape (stages, replicas)."""
    replicas: Times
    steps: Times
    left_out: int
    """Steps whose operations are not those of the pattern."""

    def __len__(self) -> int:
        return len(self.op)

    @property
    def stages(self) -> int:
        """Number of pipeline stages."""
        return len(self.ranks)


def grid(table: Table, names: NamePool) -> Grid:
    """The pattern most replicas and steps share, and its times in the steps that all replicas ran so.

    Raises `UnmodelledError` where stages are missing or no step is whole.
    """
    stages, at_stage = np.unique(table["stage"], return_inverse=True)
    if not np.array_equal(stages, np.arange(len(stages))):
        raise UnmodelledError(f"of {int(stages.max()) + 1} pipeline stages only {len(stages)} are there")
    replicas, at_replica = np.unique(table["dp_rank"], return_inverse=True)
    steps, at_step = np.unique(table["step"], return_inverse=True)
    ranks = _ranks(table, at_stage, at_replica, (len(stages), len(replicas)))
    key = _keys(at_stage, table["op"], table["seq"])
    row = _rows(key, at_replica, at_step, (int(key.max()) + 1, len(replicas), len(steps)))
    kept, whole = _pattern(row >= 0)
    rows = row[kept][:, :, whole]
    first = rows[:, 0, 0]
    return Grid(
        op=[names[code] for code in table["op"][first].tolist()],
        stage=table["stage"][first],
        seq=table["seq"][first],
        chunk=table["chunk"][first],
        global_chunk=table["global_chunk"][first],
        start=table["start"][rows],
        end=table["end"][rows],
        ranks=ranks,
        replicas=replicas,
        steps=steps[whole],
        left_out=int((~whole).sum()),
    )


def _keys(stage: Array, op: Array, seq: Times) -> Times:
    """A number for each distinct (stage, type, sequence number), from 0 on without gaps."""
    seqs, at_seq = np.unique(seq, return_inverse=True)
    code = (stage.astype(np.int64) * (int(op.max()) + 1) + op) * len(seqs) + at_seq
    return np.asarray(np.unique(code, return_inverse=True)[1], np.int64)


def _ranks(table: Table, at_stage: Array, at_replica: Array, shape: tuple[int, int]) -> Times:
    found = np.full(shape, NA, np.int64)
    found[at_stage, at_replica] = table["rank"]
    if bool((found[at_stage, at_replica] != table["rank"]).any()):
        raise UnmodelledError("several ranks of one pipeline stage and replica: keep one of them with --ranks")
    return found


def _rows(key: Array, at_replica: Array, at_step: Array, shape: tuple[int, int, int]) -> Times:
    """The row of each operation, replica and step; −1 where there is none."""
    row = np.full(shape, -1, np.int64)
    row[key, at_replica, at_step] = np.arange(len(key))
    if int((row >= 0).sum()) != len(key):
        raise UnmodelledError("operations of one rank, step and type share a number")
    return row


def _pattern(there: Mask) -> tuple[Mask, Mask]:
    """(operations of the pattern, steps that all replicas ran so) from (operations, replicas, steps)."""
    cells = there.reshape(len(there), -1)
    # Packed, because signatures are compared as a whole.
    packed = np.packbits(cells, axis=0)
    _, first, count = np.unique(packed, axis=1, return_index=True, return_counts=True)
    kept = cells[:, first[np.lexsort((first, -count))[0]]]
    whole = np.asarray((there == kept[:, None, None]).all(axis=(0, 1)))
    if not whole.any():
        raise UnmodelledError("in no step did all data-parallel replicas run the same operations")
    return kept, whole


FORWARD, BACKWARD, WEIGHT = "forward-compute", "backward-compute", "weight-compute"
"""`weight-compute`: gradients of the weights where a zero-bubble schedule computes them apart."""
TRANSFERS = ("forward-send", "forward-recv", "backward-send", "backward-recv")
GATHER, SCATTER, SEPARATE = "params-all-gather", "grads-reduce-scatter", "separate-grads-all-reduce"
LAYERNORM, EMBEDDING = "layernorm-grads-all-reduce", "embedding-grads-all-reduce"
ALL_REDUCE = "grads-all-reduce"
"""Gradients synchronised in one go behind the backward, as data-parallel jobs without Megatron do."""
CLIP, OPTIMIZER, GC = "optimizer-clip-main-grad", "optimizer", "gc"
COMMUNICATION = frozenset({*TRANSFERS, GATHER, SCATTER, SEPARATE, LAYERNORM, EMBEDDING, ALL_REDUCE, CLIP})
KNOWN = COMMUNICATION | {FORWARD, BACKWARD, OPTIMIZER, GC}

_NEXT = {"forward-send": 1, "forward-recv": -1, "backward-send": -1, "backward-recv": 1}
"""Where the other end is: stages (and model chunks) up or down."""
_PEER = {
    "forward-send": "forward-recv",
    "forward-recv": "forward-send",
    "backward-send": "backward-recv",
    "backward-recv": "backward-send",
}
CLOCK_ERROR = 50_000
"""ns by which timers of one rank disagree on what came first."""


@dataclass(frozen=True)
class Group:
    """Operations that end together: one alone, the two ends of a message, or a collective's members."""

    members: tuple[int, ...]
    synchronises: bool
    """Its time is that from the latest start on, not from its own."""
    over_replicas: bool = False


@dataclass(frozen=True)
class Graph:
    """`after[i]` are the operations that operation i waits for; groups stand behind all they wait for."""

    after: list[list[int]]
    groups: list[Group]


def dependencies(grid: Grid) -> Graph:
    """The dependency graph of the pattern. Raises `UnmodelledError` where the operations don't fit it."""
    unknown = sorted(set(grid.op) - KNOWN)
    if unknown:
        raise UnmodelledError(f"operations that the model does not know: {', '.join(unknown)}")
    links = _Links(grid)
    for stage in range(grid.stages):
        links.compute_and_transfers(stage)
        links.parameters(stage)
        links.after_compute(stage)
    groups = [*_messages(grid, links.idle), *_collectives(grid)]
    grouped = {member for group in groups for member in group.members}
    groups += [Group((i,), False) for i in range(len(grid)) if i not in grouped]
    return Graph([sorted(own) for own in links.after], ordered(links.after, groups))


class _Links:
    """Collects, stage by stage, which operation waits for which."""

    def __init__(self, grid: Grid) -> None:
        self.grid = grid
        self.start, self.end = grid.start[:, 0, 0], grid.end[:, 0, 0]
        self.after: list[set[int]] = [set() for _ in range(len(grid))]
        self.idle: set[int] = set()
        """Sends and receives with nothing behind them."""
        self._of: dict[tuple[int, str], list[int]] = defaultdict(list)
        for i in np.lexsort((grid.seq, self.start)).tolist():
            self._of[int(grid.stage[i]), grid.op[i]].append(i)
        self.overlapped = SEPARATE in grid.op

    def of(self, stage: int, *ops: str) -> list[int]:
        """The operations of a stage of some types, in recorded order."""
        found = [i for op in ops for i in self._of.get((stage, op), [])]
        return sorted(found, key=lambda i: (self.start[i], self.grid.seq[i], self.grid.op[i]))

    def chain(self, operations: Iterable[int]) -> None:
        """Each waits for the one before it."""
        before: int | None = None
        for i in operations:
            if before is not None:
                self.after[i].add(before)
            before = i

    def compute_and_transfers(self, stage: int) -> None:
        """Compute in order, each kind of transfer in order on its own stream, and what feeds what."""
        compute = self.of(stage, FORWARD, BACKWARD)
        if not compute:
            raise UnmodelledError(f"stage {stage} computes nothing")
        self.chain(compute)
        for op in TRANSFERS:
            transfers = self.of(stage, op)
            self.chain(transfers)
            if transfers:
                self._feed(stage, op, transfers)
        first = next((place for place, i in enumerate(compute) if self.grid.op[i] == BACKWARD), 0)
        if first >= 2:
            for op in ("backward-send", "backward-recv"):
                for i in self.of(stage, op)[:1]:
                    self.after[i].add(compute[first - 2])

    def _feed(self, stage: int, op: str, transfers: Sequence[int]) -> None:
        """Compute → its send; the compute before → a receive → its compute, matched by order."""
        compute = self.of(stage, f"{op.split('-')[0]}-compute")
        receives = op.endswith("recv")
        # What lies outside the compute was recorded but never launched.
        if receives:
            real = [i for i in transfers if compute and self.start[i] <= self.start[compute].max() + CLOCK_ERROR]
        else:
            real = [i for i in transfers if compute and self.end[i] >= self.end[compute].min() - CLOCK_ERROR]
        self.idle.update(set(transfers) - set(real))
        missing = len(compute) - len(real)
        if real and missing not in (0, 1):
            raise UnmodelledError(f"stage {stage}: {len(real)} of {op} for {len(compute)} computations")
        own = compute[missing:] if receives else compute
        for place, (transfer, fed) in enumerate(zip(real, own, strict=False)):
            if receives:
                self.after[fed].add(transfer)
                before = place + len(compute) - len(own) - 1
                if before >= 0:
                    self.after[transfer].add(compute[before])
            else:
                self.after[transfer].add(fed)
            if self._at_the_end(op, fed, stage):
                self.idle.add(transfer)

    def _at_the_end(self, op: str, fed: int, stage: int) -> bool:
        """Whether there is no model chunk on the other side."""
        chunk_of = self.grid.global_chunk
        chunks = int(chunk_of.max()) + 1 if int(chunk_of.max()) >= 0 else self.grid.stages
        own = int(chunk_of[fed]) if int(chunk_of[fed]) >= 0 else stage
        return not 0 <= own + _NEXT[op] < max(chunks, self.grid.stages)

    def parameters(self, stage: int) -> None:
        """Gathering before a chunk's first forward; where it overlaps, scattering behind its last backward."""
        self.chain(self.of(stage, GATHER, SCATTER))
        gathers = {int(self.grid.chunk[i]): i for i in self.of(stage, GATHER)}
        for chunk, last in gathers.items():
            own = [i for i in self.of(stage, FORWARD) if chunk < 0 or self.grid.chunk[i] == chunk]
            for first in own[:1]:
                self.after[first].add(last)
        if self.overlapped:
            scatters = {int(self.grid.chunk[i]): i for i in reversed(self.of(stage, SCATTER))}
            for chunk, scatter in scatters.items():
                own = [i for i in self.of(stage, BACKWARD) if chunk < 0 or self.grid.chunk[i] == chunk]
                if own:
                    self.after[scatter].add(max(own, key=lambda i: self.end[i]))

    def after_compute(self, stage: int) -> None:
        """From the last compute to the optimizer."""
        last = max(self.of(stage, FORWARD, BACKWARD), key=lambda i: self.end[i])
        synchronised = SEPARATE if self.overlapped else SCATTER
        behind = [
            i
            for op in (GC, LAYERNORM, EMBEDDING, synchronised, ALL_REDUCE, CLIP, OPTIMIZER)
            for i in self.of(stage, op)
        ]
        self.chain([last, *behind])
        if self.overlapped:
            scatters = self.of(stage, SCATTER)
            rest = [i for i in behind if self.grid.op[i] != GC]
            if scatters and rest:
                self.after[rest[0]].add(scatters[-1])


def _messages(grid: Grid, idle: set[int]) -> list[Group]:
    """The two ends of each message, paired by order; those with nothing behind them stand alone."""
    groups = [Group((i,), True) for i in sorted(idle)]
    start = grid.start[:, 0, 0]
    ends: dict[tuple[int, str], list[int]] = defaultdict(list)
    for i in np.lexsort((grid.seq, start)).tolist():
        if grid.op[i] in TRANSFERS and i not in idle:
            ends[int(grid.stage[i]), grid.op[i]].append(i)
    for (stage, op), own in ends.items():
        peer = (stage + _NEXT[op]) % grid.stages
        others = ends.get((peer, _PEER[op]), [])
        if len(own) != len(others):
            raise UnmodelledError(
                f"{len(own)} of {op} on stage {stage} but {len(others)} of {_PEER[op]} on stage {peer}"
            )
        if op.endswith("send"):
            groups += [Group(pair, True) for pair in zip(own, others, strict=True)]
    return groups


def _collectives(grid: Grid) -> list[Group]:
    """Over the replicas of a stage, over the first and last stage, over everyone."""
    groups: list[Group] = []
    everyone: dict[tuple[str, int], list[int]] = defaultdict(list)
    for i, op in enumerate(grid.op):
        if op in (GATHER, SCATTER, SEPARATE, ALL_REDUCE):
            groups.append(Group((i,), True, over_replicas=True))
        elif op in (EMBEDDING, CLIP):
            everyone[op, int(grid.seq[i])].append(i)
    groups += [Group(tuple(own), True, over_replicas=op == CLIP) for (op, _), own in everyone.items()]
    return groups


def ordered(after: Sequence[set[int]], groups: Sequence[Group]) -> list[Group]:
    """Groups behind all they wait for. Raises `UnmodelledError` for a circle."""
    group_of = {member: place for place, group in enumerate(groups) for member in group.members}
    waits = [{group_of[i] for member in group.members for i in after[member]} for group in groups]
    follows: list[list[int]] = [[] for _ in groups]
    for place, own in enumerate(waits):
        for before in own:
            follows[before].append(place)
    left = [len(own) for own in waits]
    ready = deque(place for place, count in enumerate(left) if not count)
    order: list[Group] = []
    while ready:
        place = ready.popleft()
        order.append(groups[place])
        for behind in follows[place]:
            left[behind] -= 1
            if not left[behind]:
                ready.append(behind)
    if len(order) != len(groups):
        raise UnmodelledError("operations wait for each other in a circle")
    return order

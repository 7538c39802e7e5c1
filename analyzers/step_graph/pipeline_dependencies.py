"""What waits for what in a step of a pipeline whose computations are known by model chunk and micro-batch.

For jobs known from their own ranges, whatever the schedule. Messages have no rows of their own there: they are added
to the operations, from when both ends could begin to when the computing that they feed began.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from itertools import pairwise

import numpy as np

from gpuscope.analyzers.step_graph.dependencies import (
    ALL_REDUCE,
    BACKWARD,
    CLIP,
    FORWARD,
    WEIGHT,
    Graph,
    Grid,
    Group,
    UnmodelledError,
    ordered,
)
from gpuscope.trace.name_pool import NamePool
from gpuscope.trace.schema import NA
from gpuscope.trace.table import Mask, Table, Times, distinct_values
from gpuscope.when_used import dataclass

COMPUTES = (FORWARD, BACKWARD, WEIGHT)
_MESSAGES = {FORWARD: ("forward-send", "forward-recv", -1), BACKWARD: ("backward-send", "backward-recv", 1)}
"""What brings a computation its input: both ends of the message, and how many chunks away it comes from."""


@dataclass(frozen=True)
class Numbering:
    """Numbers that identify computations by flush, model chunk and micro-batch, whatever their order in time."""

    chunks: int
    micro_batches: int

    def number(self, flush: int, chunk: int, micro_batch: int) -> int:
        """The `seq` of a computation."""
        return (flush * self.chunks + chunk) * self.micro_batches + micro_batch

    def source(self, number: int, op: str) -> int | None:
        """The number of the computation that this one gets its input from; None at the end of the pipeline."""
        chunk = number // self.micro_batches % self.chunks
        step = _MESSAGES[op][2]
        return number + step * self.micro_batches if 0 <= chunk + step < self.chunks else None


def with_messages(table: Table, names: NamePool) -> tuple[Table, Numbering]:
    """`operations`, computations renumbered, with a send and a receive for each that feeds another rank's."""
    computes = np.isin(table["op"], [names.find(op) for op in COMPUTES])
    own = table.take(computes)
    numbering = Numbering(int(own["global_chunk"].max()) + 1, int(own["micro_batch"].max()) + 1)
    own = Table(own.schema, {**own.columns, "seq": _numbers(own, numbering)})
    messages = _rows(own, names, numbering)
    parts = [own, table.take(~computes), messages]
    columns = {c.name: np.concatenate([part[c.name] for part in parts]) for c in table.schema.columns}
    return Table(table.schema, columns), numbering


def _numbers(own: Table, numbering: Numbering) -> Times:
    seen: Counter[tuple[int, ...]] = Counter()
    columns = [own[name].tolist() for name in ("rank", "step", "op", "global_chunk", "micro_batch")]
    found = np.empty(len(own), np.int64)
    for row in np.lexsort((own["start"], own["rank"])).tolist():
        key = tuple(column[row] for column in columns)
        found[row] = numbering.number(seen[key], key[3], key[4])
        seen[key] += 1
    return found


def _rows(own: Table, names: NamePool, numbering: Numbering) -> Table:
    """Both ends of each message; its number is that of the computation it feeds."""
    columns = [own[name].tolist() for name in ("dp_rank", "step", "op", "seq")]
    at = {key: row for row, key in enumerate(zip(*columns, strict=True))}
    backward = names.find(BACKWARD)
    rows: list[tuple[int, str, int, int, int]] = []  # the computation whose place it takes over, type, number, times
    for fed, before in _with_the_one_before(own):
        number, op = int(own["seq"][fed]), names[int(own["op"][fed])]
        place = int(own["dp_rank"][fed]), int(own["step"][fed])
        if op == WEIGHT and (*place, backward, number) not in at:  # the first chunk's: no gradients of inputs
            op = BACKWARD
        source = numbering.source(number, op) if op in _MESSAGES else None
        row = at.get((*place, names.find(op), source)) if source is not None else None
        if row is None or own["rank"][row] == own["rank"][fed]:
            continue
        sent = int(own["end"][row])
        ready = int(own["end"][before]) if before is not None else sent
        begun = max(int(own["start"][fed]), ready, sent)
        send, receive, _ = _MESSAGES[op]
        rows += [(row, send, number, sent, begun), (fed, receive, number, ready, begun)]
    takes = np.array([row[0] for row in rows], np.int64)
    values = {
        **{name: own[name][takes] for name in ("rank", "dp_rank", "stage", "step")},
        "op": names.codes([row[1] for row in rows]),
        "seq": [row[2] for row in rows],
        "start": [row[3] for row in rows],
        "end": [row[4] for row in rows],
    }
    return Table.build(own.schema, len(rows), values)


def _with_the_one_before(own: Table) -> Iterator[tuple[int, int | None]]:
    """Each computation, and the one that its rank ran before it in the step."""
    last: dict[tuple[int, int], int] = {}
    for row in np.lexsort((own["start"], own["rank"])).tolist():
        key = int(own["rank"][row]), int(own["step"][row])
        yield row, last.get(key)
        last[key] = row


def pipeline_graph(grid: Grid, numbering: Numbering) -> Graph:
    """The dependency graph of the pattern; a stage's order is that of the first replica's first step.

    Raises `UnmodelledError` where operations wait for each other in a circle.
    """
    after: list[set[int]] = [set() for _ in range(len(grid))]
    place = {(op, int(seq)): i for i, (op, seq) in enumerate(zip(grid.op, grid.seq, strict=True)) if op in COMPUTES}
    before: dict[int, int] = {}
    for stage in range(grid.stages):
        _chain(grid, stage, after, before)
    messages: dict[tuple[str, int], list[int]] = defaultdict(list)
    everyone: dict[int, list[int]] = defaultdict(list)
    groups: list[Group] = []
    for i, op in enumerate(grid.op):
        number = int(grid.seq[i])
        kind = FORWARD if op.startswith("forward") else BACKWARD
        if op.endswith("-send"):
            source = numbering.source(number, kind)
            after[i].add(place[kind, source if source is not None else number])
            messages[kind, number].append(i)
        elif op.endswith("-recv"):
            fed = place[kind, number] if (kind, number) in place else place[WEIGHT, number]
            after[fed].add(i)
            if fed in before:
                after[i].add(before[fed])
            messages[kind, number].append(i)
        elif op == CLIP:
            everyone[number].append(i)
        else:
            groups.append(Group((i,), op == ALL_REDUCE, over_replicas=op == ALL_REDUCE))
    groups += [Group(tuple(own), True) for own in messages.values()]
    groups += [Group(tuple(own), True, over_replicas=True) for own in everyone.values()]
    return Graph([sorted(own) for own in after], ordered(after, groups))


def _chain(grid: Grid, stage: int, after: list[set[int]], before: dict[int, int]) -> None:
    """A stage's computations in order, and what follows the last of them."""
    own = [i for i in np.argsort(grid.start[:, 0, 0], kind="stable").tolist() if grid.stage[i] == stage]
    computes = [i for i in own if grid.op[i] in COMPUTES]
    if not computes:
        raise UnmodelledError(f"stage {stage} computes nothing")
    behind = [i for i in own if grid.op[i] not in COMPUTES and not grid.op[i].endswith(("-send", "-recv"))]
    chain = [*computes, *behind]
    for one, following in pairwise(chain):
        after[following].add(one)
        before[following] = one


def check_alone(table: Table, collectives: Table, point_to_point: Times, names: NamePool) -> None:
    """Raise `UnmodelledError` where ranks wait for each other inside their computing (tensor, sharded or expert
    parallelism): from such waits the replay can't separate what a computation itself takes.

    Gradients reduced beside a chunk's last backward do no harm. `point_to_point`: codes of sends and receives.
    `table` and `collectives` have the ranks' own clocks.
    """
    computing = table.take(np.isin(table["op"], [names.find(op) for op in COMPUTES]))
    last = _last_backwards(computing, names)
    computing = computing.take(~last)
    rows = collectives.take((collectives["start"] != NA) & ~np.isin(collectives["op"], point_to_point))
    for rank in distinct_values(computing["rank"]).tolist():
        own = computing.take(computing["rank"] == rank)
        begun = rows["start"][rows["rank"] == rank]
        order = np.argsort(own["start"], kind="stable")
        at = np.searchsorted(own["start"][order], begun, "right") - 1
        inside = (at >= 0) & (begun < own["end"][order][np.maximum(at, 0)])
        if bool(inside.any()):
            raise UnmodelledError(
                f"rank {rank} is in {int(inside.sum())} collectives within its computations: the replay can't "
                "separate computing from waiting there"
            )


def _last_backwards(computing: Table, names: NamePool) -> Mask:
    """Whether each row is the last backward of its rank, step and chunk."""
    last: dict[tuple[int, int, int], int] = {}
    backward = names.find(BACKWARD)
    for row in np.argsort(computing["start"], kind="stable").tolist():
        if computing["op"][row] == backward:
            last[tuple(int(computing[name][row]) for name in ("rank", "step", "global_chunk"))] = row  # type: ignore[index]
    found = np.zeros(len(computing), np.bool_)
    found[list(last.values())] = True
    return found

"""The operations of a job as one pattern that every data-parallel replica repeats in every step."""

from __future__ import annotations

import numpy as np

from gpuscope.trace.columns.name_pool import NamePool
from gpuscope.trace.columns.table import Array, Mask, Table, Times
from gpuscope.trace.schema import NA
from gpuscope.when_used import dataclass


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

"""What ranks compute beside the median of the others: equal to asking rank by rank."""

from __future__ import annotations

import numpy as np
import pytest

from gpuscope.analyzers.collectives.lateness import WorkOfRanks, medians_of_others
from gpuscope.trace.builder import TraceBuilder
from gpuscope.trace.name_pool import NO_NAME
from gpuscope.trace.schema import NA, SCHEMAS
from gpuscope.trace.table import Table


@pytest.mark.parametrize("count", [2, 3, 4, 7, 40])
def test_medians_of_others(count: int) -> None:
    values = np.random.default_rng(count).integers(0, 9, count).astype(np.float64)  # with ties
    expected = [np.median(np.delete(values, place)) for place in range(count)]
    assert medians_of_others(values).tolist() == expected


def test_as_rank_by_rank() -> None:
    draw = np.random.default_rng(3)
    rows = [
        (rank, operation, dims, int(draw.integers(1, 6)), int(draw.integers(1, 9000)), 3)
        for rank in range(9)
        for operation in range(4)
        for dims in ((5, 6, NO_NAME) if operation == 2 else (5, 6, 7))
        if draw.random() < 0.8
    ]
    columns = zip(("rank", "operation", "dims", "count", "dur", "steps"), zip(*rows, strict=True), strict=True)
    builder = TraceBuilder()
    builder.names.codes([f"name {number}" for number in range(8)])
    work = WorkOfRanks(Table.build(SCHEMAS["work"], len(rows), {"elements": NA, **dict(columns)}))
    for rank in range(9):
        slower, more, known = by_hand(rows, rank)
        longer, place = work.longer, work.place(rank)
        found = longer.slower[place], longer.more[place], longer.known[place]
        assert np.allclose(np.array(found, np.float64).ravel(), (slower, more, known), rtol=1e-12)


@pytest.mark.parametrize(("norm", "adam", "expected"), [(150, 30, (0.5, 0.0)), (100, 33, (0.0, 0.1)), (150, 0, None)])
def test_batches_beside_the_optimizer(norm: int, adam: int, expected: tuple[float, float] | None) -> None:
    """Of rank 1; rank 0 takes 100 and 30 (none where rank 1 takes none), and its products are left out."""
    builder = TraceBuilder()
    codes = builder.names.codes(["layer_norm_kernel", "multi_tensor_apply_kernel", "gemm"])
    columns = {
        "operation": [*codes] * 2,
        "rank": [0, 0, 0, 1, 1, 1],
        "dims": NO_NAME,
        "elements": NA,
        "count": 1,
        "dur": [200, 60 if adam else 0, 80, 2 * norm, 2 * adam, 800],
        "steps": 2,
    }
    work = WorkOfRanks(Table.build(SCHEMAS["work"], 6, columns))
    assert work.beside_optimizer(builder.names, 1) == (expected and pytest.approx(expected))


def by_hand(rows: list[tuple[int, ...]], rank: int) -> tuple[float, float, float]:
    """The sums for one rank, one operation and shape after another."""
    others = sorted({row[0] for row in rows} - {rank})

    def of(one: int, operation: int) -> tuple[float, float]:
        own = [row for row in rows if row[:2] == (one, operation)]
        return sum(row[3] / row[5] for row in own), sum(row[4] / row[5] for row in own)

    slower = more = known = 0.0
    for operation in {row[1] for row in rows}:
        count, spent = of(rank, operation)
        usual = np.median([of(other, operation) for other in others], axis=0)
        excess, same = spent - usual[1], 0.0
        for own in (row for row in rows if row[:2] == (rank, operation)):
            each = [row[4] / row[3] for row in rows if row[0] != rank and row[1:3] == own[1:3]]
            same += (own[4] - own[3] * float(np.median(each))) / own[5] if each else 0.0
        slower, more = slower + same, more + excess - same
        sized = all(row[2] != NO_NAME for row in rows if row[1] == operation)
        if sized:
            known += abs(excess)
        elif abs(count - usual[0]) > 0.05 * max(count, usual[0]):
            known += abs(excess - same)
    return slower, more, known

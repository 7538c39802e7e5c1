"""What of a computation its batch does not change."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from helpers.kineto import op, write

import gpuscope
from gpuscope.analyzers.replay.record.batch_overhead import fixed_shares, own_times
from gpuscope.trace.columns.table import Table
from gpuscope.trace.schema import SCHEMAS


def test_own_times() -> None:
    """0–100 holds 10–40 (which holds 20–30) and 50–60; 100–120 stands alone."""
    start, end = np.array([0, 10, 20, 50, 100]), np.array([100, 40, 30, 60, 120])
    assert own_times(start, end).tolist() == [60, 20, 10, 10, 20]


def test_pythons_and_the_operators_share(tmp_path: Path) -> None:
    """A forward of 100: operators of 40 (10 of it within another), 4 and 6, so 50 are Python; of 30, 10, 4 and 6 by
    themselves the median is 8, so 8 + 8 + 4 + 6 are dispatch."""
    found = gpuscope.open_trace(
        write(
            tmp_path / "rank0.json",
            op(10, 40, "aten::linear"), op(20, 10, "aten::mm"), op(60, 4, "aten::t"), op(70, 6, "aten::t"),
        )
    )  # fmt: skip
    columns = {"rank": [0], "dp_rank": [0], "stage": [0], "step": [0], "seq": [0], "start": [0], "end": [100_000]}
    columns |= {"op": found.names.codes(["forward-compute"]), "micro_batch": [0], "chunk": [0], "global_chunk": [0]}
    table = Table.build(SCHEMAS["operations"], 1, columns)
    assert fixed_shares(found, 0, table) == {"F": 0.76}
    assert fixed_shares(found, 1, table) == {}

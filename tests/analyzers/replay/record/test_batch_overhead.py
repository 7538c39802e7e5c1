"""What of a computation its batch does not change."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from helpers.kineto import call, kernel, op, write

import gpuscope
from gpuscope.analyzers.base.lanes import views
from gpuscope.analyzers.replay.from_trace.batch_overhead import fixed_shares, fixed_shares_on_device, own_times
from gpuscope.trace.columns.table import Table
from gpuscope.trace.schema import SCHEMAS
from gpuscope.trace.trace import Trace


def forward(trace: Trace, end: int) -> Table:
    """The table of one forward from 0 on."""
    columns = {"rank": [0], "dp_rank": [0], "stage": [0], "step": [0], "seq": [0], "start": [0], "end": [end]}
    columns |= {"op": trace.names.codes(["forward-compute"]), "micro_batch": [0], "chunk": [0], "global_chunk": [0]}
    return Table.build(SCHEMAS["operations"], 1, columns)


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
    table = forward(found, 100_000)
    assert fixed_shares(found, 0, table) == {"F": 0.76}
    assert fixed_shares(found, 1, table) == {}


def test_the_pauses_and_the_kernels_of_a_gpu(tmp_path: Path) -> None:
    """Three kernels of 20, 20 and 40 us in 100 us, so pauses of 20, and 1 us of each kernel."""
    times = ((0, 20), (25, 20), (60, 40))
    events = [row for n, (at, dur) in enumerate(times, 1) for row in (call(at, 1, n), kernel(at, dur, n))]
    found = gpuscope.open_trace(write(tmp_path / "rank0.json", *events))
    [view] = views(found)
    assert fixed_shares_on_device(found, view, forward(found, 100_000)) == {"F": 0.23}
    assert fixed_shares_on_device(found, view, forward(found, 100_000).take(np.empty(0, np.int64))) == {}

"""Memory over time by what allocated it, on a published snapshot."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from gpuscope.analyzers.run.runner import Options
from gpuscope.dashboards.data.memory.memory_stacks import memory_over_time
from gpuscope.dashboards.data.open_runs import open_run


def test_the_kinds_sum_to_what_is_allocated(shared_traces: Path) -> None:
    run = open_run("1", str(shared_traces / "memory" / "wedsonlin_medium_128_training.pickle"), Options())
    assert run.trace is not None
    (entry,) = run.report["memory"]
    found = memory_over_time(run.trace, entry)
    assert found is not None
    assert found.timed
    assert {"forward", "optimizer", "before the recording"} <= set(found.used)
    peak = int(np.sum(list(found.used.values()), axis=0).max())
    # Requests are rounded up to 512 bytes.
    assert entry["peak_allocated_bytes"] is not None
    assert peak == pytest.approx(entry["peak_allocated_bytes"], rel=0.005)

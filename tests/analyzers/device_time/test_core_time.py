"""What a recorder counted of cores, from a trace's metadata."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from helpers.kineto import note, op, write

import gpuscope
from gpuscope.analyzers.facts.run_facts import core_waits
from gpuscope.schema.document import FindingEntry


def told(tmp_path: Path, **header: Any) -> dict[int, int]:
    return core_waits(gpuscope.open_trace(write(tmp_path / "rank3.json", op(0, 10), rank=3, **header)), 3)


def test_waits_by_step(tmp_path: Path) -> None:
    counted = {"cores": 2, "columns": ["step", "ran_ns", "waited_ns"], "steps": [[2, 50, 7], [3, 60, 8]]}
    assert told(tmp_path, gpuscope_cores=counted) == {2: 7, 3: 8}


@pytest.mark.parametrize(
    "counted",
    [7, {}, {"columns": ["step"], "steps": [[1]]}, {"columns": ["step", "waited_ns"], "steps": [[1], 5, [2, -3]]}],
)
def test_what_can_not_be_read_counts_nothing(tmp_path: Path, counted: Any) -> None:
    assert told(tmp_path, gpuscope_cores=counted) == {}


def test_other_recorders_count_nothing(tmp_path: Path) -> None:
    assert told(tmp_path) == {}


def test_a_thread_without_a_core_is_found(tmp_path: Path) -> None:
    """Of two steps of 100 ms it waited 5 and 15 ms for a core; of 0.5 and 0.5 nothing is said."""
    steps = [note(number * 100_000, 100_000, f"ProfilerStep#{number}") for number in (2, 3)]
    busy = [op(number * 100_000, 90_000) for number in (2, 3)]

    def found(*waited: int) -> list[FindingEntry]:
        rows = [[number, 0, ns] for number, ns in zip((2, 3), waited, strict=True)]
        info = {"backend": "gloo", "rank": 0, "world_size": 1}
        counted = {"cores": 1, "columns": ["step", "ran_ns", "waited_ns"], "steps": rows}
        path = write(tmp_path / "rank0.json", *steps, *busy, rank=None, gpuscope_cores=counted, distributedInfo=info)
        return [one for one in gpuscope.analyze(path).report["findings"] if one["code"] == "waits_for_core"]

    (finding,) = found(5_000_000, 15_000_000)
    assert finding["cost_ns_per_step"] == 10_000_000
    assert finding["share_frac"] == pytest.approx(0.1, rel=0.06)  # the last step ends with its last operator
    assert [entry["name"] for entry in finding["evidence"]] == ["step 3", "step 2"]
    assert found(500_000, 500_000) == []

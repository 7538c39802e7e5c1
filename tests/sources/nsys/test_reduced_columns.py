"""Exports that other tools reduced to some columns: the process of work that does not tell it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from helpers.nsys import BACKENDS, KERNEL, MEMCPY, RUNTIME, Export

import gpuscope
from gpuscope import open_trace
from gpuscope.trace.schema import NA


def job(pids: tuple[int, ...] = (10,), **metadata: str) -> Export:
    export = Export(**metadata)
    for pid in pids:
        for i in range(12):
            export.call(1_000_000 * i, 1_000_000 * i + 5_000, i + 1, pid=pid)
            export.kernel(1_000_000 * i + 10_000, 1_000_000 * (i + 1), i + 1, pid=pid, device=pid % 2)
            export.copy(1_000_000 * i + 2_000, 1_000_000 * i + 3_000, 100 + i, pid=pid)
            export.call(1_000_000 * i + 500, 1_000_000 * i + 900, 100 + i, "cudaMemcpyAsync_v3020", pid=pid)
    return export


def without(export: Export, column: str, *tables: str) -> Export:
    for table in tables:
        for row in export.tables[table]:
            del row[column]
    return export


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(
    ("column", "tables"), [("globalPid", (KERNEL, MEMCPY)), ("globalPid", (MEMCPY,)), ("globalTid", (RUNTIME,))]
)
def test_one_process(tmp_path: Path, backend: str, column: str, tables: tuple[str, ...]) -> None:
    path = without(job(), column, *tables).write(tmp_path, backend)
    trace = open_trace(path)
    whole = open_trace(job().write(tmp_path / "whole", backend))
    assert trace.ranks == [0]
    assert (trace["device_events"]["launch"] != NA).all()
    assert np.array_equal(trace["device_events"]["launch"], whole["device_events"]["launch"])
    verdict = gpuscope.analyze(path).report["verdict"]
    assert (verdict["bound_by"], verdict["abstained"]) == ("compute", False)


def test_two_processes_stay_open(tmp_path: Path) -> None:
    """Whose a kernel is, nothing tells: nothing is guessed."""
    trace = open_trace(without(job((10, 11)), "globalPid", KERNEL, MEMCPY).write(tmp_path))
    assert (trace["device_events"]["launch"] == NA).all()


def test_one_report_per_node(tmp_path: Path) -> None:
    """Several files are numbered by the processes at work in them."""
    for node in range(2):
        export = without(job((10 + 2 * node,)), "globalPid", KERNEL, MEMCPY)
        export.host(f"node{node}", ["GPU-a", "GPU-b"], epoch_ns=1_000_000_000)
        export.write(tmp_path, name=f"node{node}")
    trace = open_trace(tmp_path)
    assert trace.ranks == [0, 1]
    assert (trace["device_events"]["launch"] != NA).all()

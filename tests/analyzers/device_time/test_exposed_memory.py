"""Exposed memory time: copies apart from unified-memory paging."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from helpers.kineto import call, copy, kernel, write

import gpuscope
from gpuscope.analyzers.base.lanes import views
from gpuscope.analyzers.device_time import work_profile
from gpuscope.trace.builder import TraceBuilder
from gpuscope.trace.schema import Kind


def test_copy_is_exposed_only_where_nothing_else_runs(tmp_path: Path) -> None:
    """Copy 10–40, kernel 30–50: 20 µs exposed, 10 hidden."""
    path = write(
        tmp_path / "r.json", kernel(0, 10), call(5, 2, 9, name="cudaMemcpyAsync"), copy(10, 30, 9), kernel(30, 20)
    )
    (rank,) = gpuscope.analyze(path).report["ranks"]
    assert rank["stall_ns"]["memory"] == {"copy": 20_000}


def test_migrations_are_paging_where_exposed(tmp_path: Path) -> None:
    """Migrations at 0–30 and 50–60; a kernel hides 20–30; a memset covers 50–55."""
    builder = TraceBuilder()
    code = builder.names.code
    source = builder.source(tmp_path, "test", "", 4, {})
    builder.add("ranks", 1, {"rank": 0, "device": 0, "source": source})
    builder.add(
        "device_events",
        4,
        {
            "rank": 0,
            "device": 0,
            "start": np.array([0, 50, 20, 50]),
            "end": np.array([30, 60, 40, 55]),
            "kind": np.array([Kind.MEMORY, Kind.MEMORY, Kind.COMPUTE, Kind.MEMORY]),
            "name": code("x"),
            "copy_kind": np.array([code("migration HtoD")] * 2 + [-1, code("memset")]),
        },
    )
    trace = builder.finish()
    (causes,) = work_profile.exposed_memory_run(trace, views(trace)).causes.values()
    assert {cause: found.total for cause, found in causes.items()} == {"copy": 5, "paging": 25}
    assert causes["paging"].evidence[0]["dur_ns"] == 20
    assert (causes["paging"].operations, causes["paging"].busy) == (2, 40)  # exposed or not

"""The search for settings: rounds judged, tuner rows, targets of a trace. Processes are stood in for."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch.distributed as dist

from gpuscope.errors import GpuscopeError, UsageError
from gpuscope.instrumented_runtime.bench.processes import run_processes
from gpuscope.instrumented_runtime.bench.topology_links import CollectiveOptions
from gpuscope.instrumented_runtime.tune import communication as searching
from gpuscope.instrumented_runtime.tune.communication import (
    Options,
    Planned,
    Searched,
    Target,
    Tried,
    first_calls,
    of_trace,
    planned,
    search,
    tuner_text,
)

KIB = 1 << 10
Run = Callable[..., Any]


def machine(times: dict[str, dict[int, list[float]]], calls: list[str], broken: str = "") -> Run:
    """In place of processes: µs of each round by candidate and size."""

    def run(
        _: object, ranks: int, backend: str, options: CollectiveOptions, _pieces: int, *, limit_s: float
    ) -> list[tuple[int, int]]:
        assert limit_s > 0
        assert (ranks, backend) == (2, "nccl")
        if "NCCL_DEBUG_FILE" in os.environ:
            lines = [
                "n:1:1 [0] NCCL INFO comm 0xa rank 0 nRanks 2 nNodes 1",
                "n:1:1 [0] NCCL INFO 8 coll channels, 0 collnet channels, 8 p2p channels",
            ]
            lines += [f"n:1:1 [0] NCCL INFO AllReduce: {size} Bytes -> Algo TREE proto LL128" for size in options.sizes]
            Path(os.environ["NCCL_DEBUG_FILE"].replace("%h.%p", "n.1")).write_text("\n".join(lines))
            return [(1, 0)]
        name = f"{os.environ.get('NCCL_ALGO', '')}/{os.environ.get('NCCL_PROTO', '')}".strip("/").lower() or "default"
        name = f"{os.environ['NCCL_MAX_NCHANNELS']} channels" if "NCCL_MAX_NCHANNELS" in os.environ else name
        if name == broken:
            raise GpuscopeError("rank 1 failed")
        calls.append(name)
        return [
            (round(times.get(name, times["default"])[size][calls.count(name) - 1] * 1000), 0) for size in options.sizes
        ]

    return run


TIMES = {
    "default": {64 * KIB: [100, 110, 104], 1024 * KIB: [200, 210, 205]},
    "ring/ll": {64 * KIB: [60, 70, 65], 1024 * KIB: [400, 390, 410]},
    "ring/simple": {64 * KIB: [105, 90, 95], 1024 * KIB: [198, 150, 150]},
}


def whole(*sizes: int) -> Planned:
    """A plan for an all-reduce of these sizes, each called as often."""
    return Planned((Target("all_reduce", 2, sizes, (10,) * len(sizes)),), 3, 0.0, 0)


def test_a_gain_is_certain_where_its_slowest_round_beats_the_default_s_fastest(monkeypatch: pytest.MonkeyPatch) -> None:
    """ring/simple is faster at 1 MiB in two rounds of three: its slowest, 198 µs, still beats 200 µs. At 64 KiB its
    slowest is 105 µs against 100."""
    calls: list[str] = []
    monkeypatch.setattr(searching, "run_processes", machine(TIMES, calls, broken="tree/ll"))
    report = search(whole(64 * KIB, 1024 * KIB), Options("nccl"), math.inf, lambda _: None)
    assert calls[:4] == ["default", "ring/ll", "ring/simple", "tree/simple"]  # in turn
    assert report.failed == {"tree/ll": "rank 1 failed"}
    assert {row.nbytes: row.candidate for row in report.best()} == {64 * KIB: "ring/ll", 1024 * KIB: "ring/simple"}
    (simple,) = [row for row in report.rows if (row.candidate, row.nbytes) == ("ring/simple", 64 * KIB)]
    assert not simple.certain
    lines = [line for line in tuner_text(report).splitlines() if not line.startswith("#")]
    assert lines[:2] == ["allreduce,0,262143,ring,ll,8,1,2", "allreduce,262144,18446744073709551615,ring,simple,8,1,2"]
    assert "NCCL_ALGO" not in os.environ


def test_where_nothing_gains_nccl_s_own_choice_is_written_without_ll128(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(searching, "run_processes", machine({"default": TIMES["default"]}, []))
    report = search(whole(64 * KIB), Options("nccl"), math.inf, lambda _: None)
    assert [row.candidate for row in report.best()] == ["default"]
    assert "allreduce,0,18446744073709551615,tree,simple,8,1,2" in tuner_text(report)


def test_an_all_reduce_in_pieces_sums_right() -> None:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        ns, wrong = searching._cut(64 * KIB, CollectiveOptions(iterations=2, warmup=1), 4)
    finally:
        dist.destroy_process_group()
    assert wrong == 0
    assert ns > 0


def test_the_sizes_and_groups_of_a_trace(samples: Path) -> None:
    (target, *_) = of_trace([str(samples / "ddp_healthy")])
    assert (target.op, target.ranks) == ("all_reduce", 2)
    assert list(target.sizes) == sorted(target.sizes)
    assert 0 < len(target.sizes) <= 8
    assert len(target.calls) == len(target.sizes)
    assert min(target.calls) > 0


def test_a_launcher_s_processes_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(UsageError, match="processes of its own"):
        first_calls(Target("all_reduce", 2, (8,), (1,)), Options("gloo"), 60.0)


def test_what_fits_into_the_time_that_is_left() -> None:
    """gloo has four candidates of an all-reduce and two of a broadcast. A set of processes takes 10 s: both operations
    three times are 180 s, twice 120 s; the costlier one alone three times 120 s, twice 80 s."""
    targets = [Target("all_reduce", 2, (8,), (1,)), Target("broadcast", 2, (8,), (1,))]

    def fits(left_s: float) -> tuple[int, int, float]:
        plan = planned(targets, Options("gloo"), 10.0, left_s)
        return len(plan.targets), plan.rounds, plan.seconds

    assert [fits(left) for left in (180, 179, 119, 79)] == [(2, 3, 180.0), (2, 2, 120.0), (1, 2, 80.0), (0, 2, 80.0)]


def test_at_the_deadline_only_whole_rounds_count(monkeypatch: pytest.MonkeyPatch) -> None:
    """Eight candidates; the clock ends in the third round, whose times are dropped, or in the second: no result."""

    def rounds_by(sets: int) -> set[int]:
        calls: list[str] = []
        monkeypatch.setattr(searching, "run_processes", machine(TIMES, calls))
        report = search(whole(64 * KIB), Options("nccl"), sets + 0.5, lambda _: None, clock=lambda: float(len(calls)))
        assert len(calls) == sets + 1  # the one that began before the deadline
        return {len(row.rounds_ns) for row in report.rows}

    assert rounds_by(19) == {2}
    assert rounds_by(11) == set()


def test_processes_that_do_not_end_are_killed_at_the_limit() -> None:
    began = time.monotonic()
    with pytest.raises(GpuscopeError, match="not done after"):
        run_processes(time.sleep, 1, "gloo", 600, limit_s=1.0)
    assert time.monotonic() - began < 60


def tried(candidate: str, nbytes: int, calls: int, times: tuple[int, int], settings: dict[str, str]) -> Tried:
    """A row of which only its times matter."""
    return Tried(
        "all_reduce", 2, nbytes, calls, candidate, settings, 1, sum(times) // 2, times, 0.0, True, None, None, 1
    )


def test_variables_are_those_that_gain_over_all_calls_of_the_job() -> None:
    """Loopback saves 10 of 100 ns at the size that is called nine times, and loses 50 at the one that is called once:
    90 - 50 saved in all, but not if the two have as many calls."""
    lo = {"GLOO_SOCKET_IFNAME": "lo"}

    def found(small_calls: int) -> Searched:
        rows = [
            tried("default", 8, small_calls, (100, 100), {}),
            tried("default", 64, 1, (100, 100), {}),
            tried("loopback", 8, small_calls, (90, 90), lo),
            tried("loopback", 64, 1, (150, 150), lo),
        ]
        return Searched("gloo", "2.13", 2, 20, tuple(rows), {})

    assert found(9).variables() == lo
    assert found(1).variables() == {}

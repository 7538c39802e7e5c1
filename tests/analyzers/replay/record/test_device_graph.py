"""The graph of a rank with a device, from a trace written by hand; times in µs."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from helpers.jobs import steps
from helpers.kineto import Event, arrow, call, helper, kernel, node, op, write

import gpuscope
from gpuscope.analyzers.base.lanes import views
from gpuscope.analyzers.replay.device_graph import device_graph
from gpuscope.analyzers.replay.engine import replay
from gpuscope.analyzers.replay.graph import Edge, Graph, Node, UnreplayableError
from gpuscope.analyzers.replay.graph_builder import window


def graph(path: Path, *events: Event) -> Graph:
    trace = gpuscope.open_trace(write(path / "trace.json", *events))
    (view,) = views(trace)
    kept = window(trace, view)
    assert kept is not None
    return device_graph(trace, view, kept)


def launched(number: int, at: int, begin: int, dur: int, name: str = "gemm", stream: int = 7) -> list[Event]:
    return [op(at, 4), call(at, 3, number), kernel(begin, dur, number, name, stream)]


def test_launches_queues_and_waits(tmp_path: Path) -> None:
    """k1 10–110; k2 launched at 20 is queued: 111–161; the host waits until 164 and launches k3 at 180: 190–200.
    Launches take 10, the pause in the queue is 1, the wait returns 3 later. k1 in 40: k2 51–101, k3 130–140."""
    found = graph(
        tmp_path,
        *launched(1, 0, 10, 100),
        *launched(2, 20, 111, 50),
        call(40, 124, 3, "cudaStreamSynchronize"),
        *launched(4, 180, 190, 10),
    )
    assert steps(found) == [190_000]  # from the first kernel's start, 10, to the last one's end, 200
    dur = np.where(found.nodes["dur"] == 100_000, 40_000, found.nodes["dur"])
    assert steps(found.with_nodes(dur=dur)) == [130_000]


def test_a_collective_waits_for_what_was_launched_before_it_and_compute_for_the_collective(tmp_path: Path) -> None:
    """gemm 10–110 on stream 7; NCCL on 20 from 112 to 212; the next gemm, launched long before, starts at 214."""
    found = graph(
        tmp_path,
        *launched(1, 0, 10, 100),
        *launched(2, 20, 112, 100, "ncclDevKernel_AllReduce_Sum_f32_RING_LL", 20),
        *launched(3, 40, 214, 10),
    )
    assert steps(found) == [214_000]
    events = found.edges["why"] == Edge.EVENT
    kinds = found.nodes["kind"]
    pairs = zip(kinds[found.edges["src"][events]].tolist(), kinds[found.edges["dst"][events]].tolist(), strict=True)
    assert sorted(pairs) == [(Node.DEVICE, Node.ARRIVAL), (Node.TRANSFER, Node.DEVICE)]


def replayed(found: Graph, event: int, dur: int) -> dict[int, int]:
    """Start of each kernel, ns after the first, if the one that took `event` ns took `dur`; by its measured start."""
    own = found.nodes["kind"] == Node.DEVICE
    durations = np.where(own & (found.nodes["dur"] == event), dur, found.nodes["dur"])
    start = replay(found.with_nodes(dur=durations)).start
    first = int(found.nodes["start"][own].min())
    return dict(zip((found.nodes["start"][own] - first).tolist(), (start[own] - first).tolist(), strict=True))


def test_nodes_of_a_graph_wait_for_the_nodes_recorded_before_them(tmp_path: Path) -> None:
    """a 6–108 on stream 7 and b 7–107 on 8, then c on 9 at 111: it waits for b, as recorded, though a ends later.
    Halving a then moves nothing; halving b moves c by 50."""
    a, b, c = node(6, 102, 1, 1, "a", 7), node(7, 100, 1, 2, "b", 8), node(111, 30, 1, 3, "c", 9)
    events = [op(0, 6), call(0, 5, 1, "cudaGraphLaunch"), a, b, c]
    told = graph(tmp_path, *events, *arrow(0, b, c))
    assert told.inferred == 0
    assert replayed(told, 1, 1)[105_000] - replayed(told, 102_000, 51_000)[105_000] == 0
    assert replayed(told, 1, 1)[105_000] - replayed(told, 100_000, 50_000)[105_000] == 50_000
    silent = graph(tmp_path, *events)  # the counter-example: nothing is recorded, so nothing holds it
    assert replayed(silent, 1, 1)[105_000] < 100_000


def test_a_function_on_the_host_between_two_nodes_takes_its_time(tmp_path: Path) -> None:
    """a 10–110, a host function of 55, then b at 167 on the same stream: halving a moves b to 117, not to 61."""
    a, host, b = node(10, 100, 1, 1, "a"), helper(111, 55, 1, stream=9), node(167, 30, 1, 2, "b")
    events = [op(0, 6), call(0, 5, 1, "cudaGraphLaunch"), a, host, b]
    told = graph(tmp_path, *events, *arrow(0, a, host), *arrow(1, host, b))
    assert replayed(told, 100_000, 50_000)[157_000] == 107_000


def test_a_lost_launch_comes_after_the_call_before_it(tmp_path: Path) -> None:
    """Of 41 kernels the call of the second is lost: it is placed behind the first one's, and nothing else moves."""
    events = [event for n in range(41) for event in launched(n + 1, 20 * n, 20 * n + 10, 5, f"k{n}")]
    events = [event for event in events if not (event["cat"] == "cuda_runtime" and event["args"]["correlation"] == 2)]
    found = graph(tmp_path, *events)
    assert abs(steps(found)[0] - (20 * 40 + 15 - 10) * 1000) < 1000
    assert int((found.edges["why"] == Edge.LAUNCH).sum()) == 41


def test_without_launches_there_is_no_replay(tmp_path: Path) -> None:
    with pytest.raises(UnreplayableError, match="launches of 9 of 10"):
        graph(tmp_path, *launched(1, 0, 10, 5), *(kernel(20 * n, 5) for n in range(1, 10)))


def test_measured_starts_are_not_replayed_with(tmp_path: Path) -> None:
    """Only releases of the host's first point hold the graph to the clock."""
    found = graph(tmp_path, *launched(1, 0, 10, 100), *launched(2, 20, 111, 50))
    moved = found.with_nodes(start=found.nodes["start"] * 0, end=found.nodes["end"] * 0)
    assert replay(moved).start.tolist() == replay(found).start.tolist()


def test_a_launch_into_a_full_queue_waits_for_the_device(tmp_path: Path) -> None:
    """1,500 kernels of 100, back to back; the host launches one in 5 until 600 are pending, then each call returns as
    another kernel ends, the last one at 90,010. Kernels of 50 take 75,000: the host is not slower by itself."""
    events: list[Event] = []
    free = 0
    for n in range(1_500):
        returned = max(free + 3, 110 + 100 * (n - 600)) if n >= 600 else free + 3
        events += [op(free, returned - free + 1), call(free, returned - free, n + 1)]
        events += [kernel(10 + 100 * n, 100, n + 1, f"k{n}")]
        free = returned + 2
    found = graph(tmp_path, *events)
    assert steps(found) == [150_000_000]
    half = np.where(found.of(Node.DEVICE), 50_000, found.nodes["dur"])
    assert steps(found.with_nodes(dur=half))[0] == pytest.approx(75_000_000, rel=0.01)

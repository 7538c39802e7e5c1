"""Threads that launch, a full launch queue, and idle time before what was queued already; by hand (µs)."""

from __future__ import annotations

from pathlib import Path

import pytest
from helpers.kineto import Event, call, kernel, write

import gpuscope
from gpuscope.analyzers.base.lanes import views
from gpuscope.analyzers.device_time.idleness.launching_threads import Turns, blocking_calls, launching_threads


def turns(path: Path, *events: Event) -> list[Turns]:
    trace = gpuscope.open_trace(write(path / "rank0.json", *events))
    (view,) = views(trace)
    return launching_threads(trace, view, blocking_calls(trace, view))


@pytest.mark.parametrize(
    ("inside", "sequences"),
    [
        ([], 1),  # main and autograd take turns
        ([3], 1),  # one of ten blocking calls with a launch of the other thread inside is no more than a tenth
        ([3, 7], 2),
    ],
)
def test_threads_that_run_at_once(tmp_path: Path, inside: list[int], sequences: int) -> None:
    """Thread 1 blocks ten times, at 100, 200, …, for 50; thread 2 launches inside some of these calls."""
    events: list[Event] = [call(0, 2, 1), kernel(5, 10, 1), call(10, 2, 2, tid=2), kernel(20, 10, 2)]
    for number in range(1, 11):
        events.append(call(100 * number, 50, 100 + number, name="cudaStreamSynchronize"))
        if number in inside:
            at = 100 * number + 20
            events += [call(at, 2, 10 + number, tid=2), kernel(at + 10, 5, 10 + number)]
    found = turns(tmp_path, *events)
    assert len(found) == sequences
    assert [len(own.threads) for own in found] == ([2] if sequences == 1 else [1, 1])


@pytest.mark.parametrize(("launches", "waited"), [(601, 99_000), (400, 0)])
def test_a_full_queue_holds_the_launch_up(tmp_path: Path, launches: int, waited: int) -> None:
    """One launch per µs into kernels of 100 that begin at 1000; the last call takes 100, of which a launch takes 1.
    600 pending ones are a queue that can be full, 399 are not."""
    events: list[Event] = []
    for number in range(launches):
        last = number == launches - 1
        events += [call(number, 100 if last else 1, number), kernel(1000 + 100 * number, 100, number)]
    (own,) = turns(tmp_path, *events)
    assert int((own.queue_waits.end - own.queue_waits.start).sum()) == waited


def test_idle_before_what_was_queued_is_launch_latency_and_then_unattributed(tmp_path: Path) -> None:
    """Both are launched by 4; the second could begin at 20 and does at 50: 10 of launch latency, 20 without a cause."""
    path = write(tmp_path / "r.json", call(0, 1, 1), call(3, 1, 2), kernel(10, 10, 1), kernel(50, 10, 2))
    (rank,) = gpuscope.analyze(path).report["ranks"]
    assert (rank["stall_ns"]["cpu"], rank["stall_ns"]["unattributed"]) == ({"launch": 10_000}, 20_000)

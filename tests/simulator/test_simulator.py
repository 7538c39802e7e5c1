"""The simulator against programs worked by hand; times in ns.

Unless said otherwise a launch call lasts 3,500, the device sees the work 5,000 after the call began, a queued operation
starts 1,000 after the one before it (2,000 across streams), and a blocking call returns 5,000 after what it waited for.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

import gpuscope
from simulator import spans
from simulator.catalogue import CASES, COMPUTE
from simulator.counterfactuals import COUNTERFACTUALS, varied
from simulator.device import Hardware, Link
from simulator.instructions import (
    Allocate,
    Batch,
    Collective,
    Graph,
    Host,
    Instruction,
    Kind,
    Launch,
    Reason,
    Record,
    Step,
    StreamWait,
    Synchronize,
    Work,
)
from simulator.job import Job
from simulator.judged import Case
from simulator.kineto_rows import Profiler, write_kineto
from simulator.machine import MAIN, execute
from simulator.nsys_rows import write_nsys
from simulator.recorded import Recorded
from simulator.training import programs, simulate
from simulator.truth import device_steps, truth_of

EXACT = Hardware(queue_gap=0, wait_gap=0, sync_return=0)


def one(*program: Instruction, hardware: Hardware | None = None) -> Recorded:
    """A single rank that runs the program."""
    return execute({0: {MAIN: program}}, hardware).ranks[0]


def times(recorded: Recorded) -> list[tuple[str, int, int]]:
    """Each operation's start and end."""
    return [(o.name, o.start, o.end) for o in recorded.operations]


def kernel(name: str, dur: int, stream: int = 7) -> Launch:
    return Launch(Work(name, dur, stream))


def reduce(seq: int = 1, group: str = "0", size: int = 1_000_000, stream: int = 20) -> Collective:
    return Collective("all_reduce", size, group, (0, 1), seq, stream)


def test_a_launch_takes_its_time_to_reach_the_device() -> None:
    ran = one(kernel("a", 20_000), kernel("b", 10_000), Host(50_000), kernel("c", 1_000))
    # b is seen at 8,500 and waits for a; c's call begins at 57,000, long after b.
    assert times(ran) == [("a", 5_000, 25_000), ("b", 26_000, 36_000), ("c", 62_000, 63_000)]
    assert [(c.start, c.end) for c in ran.calls] == [(0, 3_500), (3_500, 7_000), (57_000, 60_500)]


def test_a_full_queue_blocks_the_launch() -> None:
    ran = one(*(kernel(name, 100_000) for name in "abc"), hardware=Hardware(queue=2))
    assert times(ran) == [("a", 5_000, 105_000), ("b", 106_000, 206_000), ("c", 207_000, 307_000)]
    # The third call finds two operations pending and waits until the first has ended.
    assert (ran.calls[2].start, ran.calls[2].end, ran.calls[2].waited) == (7_000, 108_500, 98_000)


def test_events_order_streams() -> None:
    ran = one(kernel("a", 20_000), Record("e", 7), kernel("b", 30_000), StreamWait("e", 20), kernel("x", 5_000, 20))
    # x waits for a and not for b: the event was recorded between them.
    assert times(ran) == [("a", 5_000, 25_000), ("b", 26_000, 56_000), ("x", 27_000, 32_000)]
    record, wait = ran.calls[1], ran.calls[3]
    assert wait.sync is not None
    assert wait.sync["wait_on_cuda_event_record_corr_id"] == record.correlation
    assert (wait.sync["wait_on_stream"], wait.sync["stream"]) == (7, 20)


@pytest.mark.parametrize(("target", "returns"), [(7, 30_000), ("e", 30_000), (None, 113_500), (9, 9_000)])
def test_a_synchronisation_waits_for_what_it_names(target: int | str | None, returns: int) -> None:
    """Stream 7 ends at 25,000, stream 20 at 108,500 (its call begins at 3,500); stream 9 is empty."""
    launched = (kernel("a", 20_000), kernel("x", 100_000, 20), Record("e", 7, dur=0))
    assert one(*launched, Synchronize(target)).calls[-1].end == returns


def test_a_pageable_copy_holds_its_call() -> None:
    copy = Work("Memcpy HtoD (Pageable -> Device)", 10_000, kind=Kind.MEMORY, category="gpu_memcpy")
    ran = one(kernel("a", 20_000), Launch(copy, "cudaMemcpyAsync", blocks=True), kernel("b", 1_000))
    assert times(ran)[1:] == [(copy.name, 26_000, 36_000), ("b", 46_000, 47_000)]
    assert (ran.calls[1].start, ran.calls[1].end) == (3_500, 41_000)


def test_freeing_memory_drains_the_device() -> None:
    ran = one(kernel("a", 20_000), Allocate("cudaFree", 7_000, drains=True), Allocate("cudaMalloc", 4_000))
    assert [(c.start, c.end) for c in ran.calls[1:]] == [(3_500, 32_000), (32_000, 36_000)]
    assert [(h.start, h.end, h.reason) for h in ran.held] == [
        (3_500, 32_000, Reason.ALLOCATOR),
        (32_000, 36_000, Reason.ALLOCATOR),
    ]


def test_loading_a_module_delays_its_first_launch() -> None:
    ran = one(Launch(Work("a", 1_000), load=2_000_000))
    assert (times(ran), ran.calls[0].end) == ([("a", 2_005_000, 2_006_000)], 2_003_500)
    assert ran.held[0].reason is Reason.HOST_OTHER


def test_a_graph_is_one_launch() -> None:
    ran = one(Graph((Work("a", 1_000), Work("b", 2_000))), kernel("c", 1_000))
    # Seen at 8,000; nodes are 700 apart; what follows on the stream is an ordinary queued operation.
    assert times(ran) == [("a", 8_000, 9_000), ("b", 9_700, 11_700), ("c", 17_000, 18_000)]
    assert len({o.correlation for o in ran.operations[:2]}) == 1


def test_a_collective_ends_when_the_last_has_come_and_all_is_sent() -> None:
    hardware = Hardware(Link(alpha=10_000, rate=100.0))
    run = execute({0: {MAIN: [reduce()]}, 1: {MAIN: [Host(50_000), reduce()]}}, hardware)
    # Launched at 0 and 50,000, seen 7,000 later; 10,000 and 1 MB · 2(n − 1)/n at 100 B/ns from the later one on.
    found = [run.ranks[rank].operations[0] for rank in (0, 1)]
    assert [(o.start, o.transfer, o.end) for o in found] == [(7_000, 57_000, 77_000), (57_000, 57_000, 77_000)]


@pytest.mark.parametrize(("own", "end"), [(False, 47_000), (True, 27_000)])
def test_two_collectives_share_a_link(own: bool, end: int) -> None:
    """Both begin together: on one link at half speed each, on links of their own at full speed."""
    link = Link(alpha=10_000, rate=100.0)
    both = [replace(reduce(group="0"), dur=0), replace(reduce(group="1", stream=24), dur=0)]
    run = execute({0: {MAIN: both}, 1: {MAIN: both}}, Hardware(link, {"1": link} if own else {}))
    assert [o.end for o in run.ranks[0].operations] == [end, end]


def test_kernels_and_collectives_slow_each_other() -> None:
    hardware = Hardware(Link(alpha=10_000, rate=100.0), compute_slow=2.0, transfer_slow=1.25)
    program: list[Instruction] = [kernel("a", 30_000), replace(reduce(), latency=11_500)]
    run = execute({0: {MAIN: program}, 1: {MAIN: program}}, hardware)
    # a is alone from 5,000 to 15,000 and has 20,000 left; the transfer of 20,000 takes 25,000 beside it. By its end at
    # 40,000 a has done 12,500 of them; the last 7,500 are alone again.
    assert [(o.start, o.end) for o in run.ranks[0].operations] == [(5_000, 47_500), (15_000, 40_000)]


def test_a_rank_that_never_comes_is_a_hang() -> None:
    with pytest.raises(RuntimeError, match="hangs"):
        execute({0: {MAIN: [reduce()]}, 1: {MAIN: []}})


def test_a_loader_that_is_slower_than_the_step() -> None:
    # Two workers, 100,000 a batch, one ahead each: two batches per 100,000, and steps of 10,000.
    batch = Batch(workers=2, prefetch=1, load=100_000, own=0)
    ran = one(*(item for k in range(5) for item in (Step(k), batch, Host(10_000))))
    # Batches 0 and 1 are there at 0; each worker begins the next when its last was taken, at 0 and 10,000.
    assert [start for start, _ in ran.steps.values()] == [0, 10_000, 20_000, 110_000, 120_000]
    assert [(h.start, h.end) for h in ran.held] == [(20_000, 100_000), (120_000, 200_000)]


def test_device_steps_begin_with_the_first_operation_launched_in_them() -> None:
    ran = one(Step(0), kernel("a", 20_000), Step(1), kernel("b", 10_000), kernel("c", 10_000, 20))
    # b waits for a; c, launched later in step 1, starts before both have ended.
    assert device_steps(ran) == {0: (5_000, 12_000), 1: (12_000, 36_000)}


def drained_queue(interval: int) -> list[Instruction]:
    """Small kernels of 10 us, one of 200 us, and a call that waits for it, three times; one launch per `interval`."""
    pause, made = Host(interval - 5_000), list[Instruction]()
    for step in range(3):
        made.append(Step(step))
        for name, dur in [*((f"s{n}", 10_000) for n in range(4)), ("big", 200_000)]:
            made += [Launch(Work(name, dur), dur=5_000, latency=5_000), pause if name != "big" else Host(5_000)]
        made += [Synchronize(7, own=0), pause]
    return made


@pytest.mark.parametrize(
    ("interval", "window", "launch", "sync"),
    [(20_000, 600_000, 40_000, 80_000), (100_000, 1_400_000, 625_000, 295_000)],
)
def test_idle_time_is_divided_by_what_would_be_left_without_blocking(
    interval: int, window: int, launch: int, sync: int
) -> None:
    """With 20 us: idle 60 us a step; without the blocking call 40 us in step 0 and none in step 1.
    With 100 us: idle 460 us a step; without it 360 and 265 us."""
    programs = {0: {MAIN: drained_queue(interval)}}
    truth = truth_of(execute(programs, EXACT), programs, EXACT)
    assert truth.steady == (0, 1)
    assert sum(truth.steps[k] for k in truth.steady) == window
    assert {cause: round(share * window) for cause, share in truth.verdict.causes.items()} == {
        "launch": launch,
        "sync": sync,
    }


def test_a_rank_late_by_its_batch_makes_the_others_wait() -> None:
    hardware = replace(EXACT, link=Link(alpha=0, rate=1.0))
    late = {0: 10_000, 1: 30_000}
    written = {
        rank: {
            MAIN: [
                item
                for step in range(3)
                for item in (
                    Step(step),
                    Launch(Work("a", dur), dur=1_000, latency=1_000),
                    Record("e", dur=0),
                    StreamWait("e", 20, dur=0),
                    replace(reduce(step, size=5_000), dur=1_000, latency=1_000),
                    Record("r", 20, dur=0),
                    StreamWait("r", 7, dur=0),
                )
            ]
        }
        for rank, dur in late.items()
    }
    truth = truth_of(execute(written, hardware), written, hardware)
    # Steps of 30 + 5 us; rank 0 waits 20 us in each, both transfer 5 us.
    assert [truth.steps[k] for k in truth.steady] == [35_000, 35_000]
    assert truth.verdict.causes == {"straggler": pytest.approx(20 / 70), "bandwidth": pytest.approx(10 / 70)}
    assert truth.caused_wait == {1: 40_000}


def test_sets_of_instants() -> None:
    assert spans.union([(5, 7), (0, 3), (2, 4), (9, 9)]) == [(0, 4), (5, 7)]
    assert spans.minus([(0, 10), (20, 30)], [(2, 3), (5, 22), (29, 40)]) == [(0, 2), (3, 5), (22, 29)]
    assert spans.both([(0, 10)], [(2, 3), (9, 12)]) == [(2, 3), (9, 10)]


def test_a_change_leaves_everything_else_alone() -> None:
    before, after = (programs(replace(COMPUTE, wire=wire))[1][MAIN] for wire in (1.0, 0.5))
    differing = [(a, b) for a, b in zip(before, after, strict=True) if a != b]
    assert differing
    assert all(isinstance(a, Collective) and replace(a, bytes=a.bytes // 2) == b for a, b in differing)


def test_the_recording_holds_what_was_run(tmp_path: Path) -> None:
    job = Job(name="small", layers=2, gemms=2, smalls=1, steps=3, items=1)
    run = simulate(job)
    (path, _) = write_kineto(tmp_path, job, run)
    rows = [row for row in json.loads(path.read_text())["traceEvents"] if row["ph"] == "X"]
    of = {cat: [row for row in rows if row["cat"] == cat] for cat in {row["cat"] for row in rows}}
    assert len(of["kernel"]) + len(of["gpu_memcpy"]) == len(run.ranks[0].operations)
    launching = {row["args"]["correlation"] for row in of["cuda_runtime"]}
    assert launching >= {row["args"]["correlation"] for row in of["kernel"]}
    ids = [row["args"]["External id"] for row in of["cpu_op"] + of["user_annotation"]]
    assert sorted(ids) == list(range(1, len(ids) + 1))
    assert {row["args"]["cuda_sync_kind"] for row in of["cuda_sync"]} == {"Stream Sync", "Stream Wait Event"}
    trace = gpuscope.open_trace(tmp_path)
    starts = sorted(o.start for recorded in run.ranks.values() for o in recorded.operations)
    read = sorted(trace["device_events"]["start"].tolist())
    assert [start - read[0] for start in read] == [start - starts[0] for start in starts]


def test_an_export_of_nsys_holds_the_same(tmp_path: Path) -> None:
    job = Job(name="small", layers=2, gemms=2, smalls=1, steps=3, items=1, copy_bytes=4_096, copy="pageable")
    run = simulate(job)
    trace = gpuscope.open_trace(write_nsys(tmp_path, run))
    true = sorted((o.start, o.end, o.rank) for recorded in run.ranks.values() for o in recorded.operations)
    events = trace["device_events"]
    read = sorted(zip(events["start"].tolist(), events["end"].tolist(), events["rank"].tolist(), strict=True))
    since = read[0][0] - true[0][0]
    assert [(start - since, end - since, rank) for start, end, rank in read] == true


def test_a_recording_can_hold_less(tmp_path: Path) -> None:
    job = Job(name="small", layers=2, gemms=2, smalls=1, steps=3)
    run = simulate(job)
    profiler = Profiler(cuda_sync=False, kept=0.3, left_out=(1,))
    (path,) = write_kineto(tmp_path, job, run, profiler)
    rows = json.loads(path.read_text())["traceEvents"]
    kept = sum(row.get("cat") == "kernel" for row in rows) / len(run.ranks[0].operations)
    assert 0.15 < kept < 0.45
    assert not any(row.get("cat") == "cuda_sync" for row in rows)


def test_a_varied_counterfactual_keeps_its_change() -> None:
    one = next(one for one in COUNTERFACTUALS if one.name == "faster_link")
    other = varied(one, seed=5)
    assert varied(one, seed=5) == other
    assert 12.0 <= other.job.rate <= 24.0  # 18 and a third
    assert other.job.rate != one.job.rate
    assert other.changed["rate"] == pytest.approx(2 * other.job.rate)
    assert other.after.job.gemm_ns == other.job.gemm_ns != one.job.gemm_ns


def test_catalogues_are_large_enough_and_named_once() -> None:
    assert len(CASES) >= 25
    assert len(COUNTERFACTUALS) >= 30
    for names in ([case.name for case in CASES], [one.name for one in COUNTERFACTUALS]):
        assert len(set(names)) == len(names)


@pytest.mark.parametrize("case", [c for c in CASES if c.name.endswith(("_strong", "_weak"))], ids=lambda c: c.name)
def test_what_is_injected_alone_is_the_cause(case: Case) -> None:
    injected = case.name.partition("_")[0]
    named = {"host": "host_other", "bubble": "pipeline_bubble", "slow": "straggler"}
    assert case.truth.verdict.cause == named.get(injected, injected)

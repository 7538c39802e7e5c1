"""Whose lateness a wait goes back to, in which phase and operation; worked out by hand (µs)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.kineto import call, kernel, note, write
from helpers.synthetic_job import MS, Job, simulate, trace_of

import gpuscope
from gpuscope.analyzers.base.lanes import STRAGGLERS
from gpuscope.analyzers.collectives.lateness import Lateness
from gpuscope.analyzers.run.file_part import Options, reduce_trace
from gpuscope.schema.document import Report
from gpuscope.trace.trace import merge


def nccl(ts: int, dur: int, seq: int, group: str = "0", ranks: tuple[int, ...] = (0, 1)) -> Any:
    told = {
        "Collective name": "allreduce",
        "In msg nelems": 256,
        "Out msg nelems": 256,
        "dtype": "Float",
        "Group size": len(ranks),
        "Process Group Name": group,
        "Process Group Ranks": str(list(ranks)),
        "Seq": seq,
    }
    return kernel(ts, dur, None, "ncclDevKernel_AllReduce_Sum_f32_RING_LL(x)", 13, **told)


def work(ts: int, dur: int, correlation: int, name: str, phase: str) -> list[Any]:
    """A kernel launched as it starts, within a range of its phase."""
    return [note(ts, dur, phase), call(ts, 1, correlation), kernel(ts + 1, dur - 1, correlation, name)]


def step(at: int, number: int, late: int, ranks: tuple[int, ...] = (0, 1)) -> list[Any]:
    """Forward 100 (+ `late`), backward 200, an all-reduce that ends at 400 for all, optimizer 50."""
    first = number * 10
    return [
        note(at, 1000, f"ProfilerStep#{number}"),
        *work(at, 100 + late, first + 1, "fwd_gemm", "forward"),
        *work(at + 100 + late, 200, first + 2, "bwd_gemm", "backward"),
        nccl(at + 300 + late, 100 - late, number, ranks=ranks),
        *work(at + 400, 50, first + 3, "adam", "optimizer"),
    ]


def analyzed(folder: Path, late: dict[int, list[int]]) -> Report:
    """The report of a run in which rank r is late by `late[r][step]`."""
    for rank, delays in late.items():
        events = [
            event
            for number, delay in enumerate(delays)
            for event in step(number * 1000, number, delay, tuple(sorted(late)))
        ]
        write(folder / f"rank{rank}.json", *events, rank=rank, world_size=len(late))
    return gpuscope.analyze(folder).report


def test_late_in_forward_although_backward_ends_alike(tmp_path: Path) -> None:
    """Rank 1's forward takes 60 longer, its peer waits 60 behind backward: with waiting, the others' backward
    looks longer. In the first step nothing precedes; the others say forward, in `fwd_gemm`. The last of the six
    steps lacks the wait for its successor's input: five are judged."""
    (entry,) = analyzed(tmp_path, {0: [0] * 6, 1: [60] * 6})["stragglers"]
    assert (entry["rank"], entry["phase"], entry["operation"]) == (1, "forward", "fwd_gemm")
    assert entry["caused_wait_ns"] == entry["root_wait_ns"] == 5 * 60_000
    assert entry["recurrent"] is True


def test_caused_wait_per_step_is_that_of_one_waiting_rank(tmp_path: Path) -> None:
    """Two ranks wait 60 for rank 1 in each of six steps, of which all but the last are judged."""
    (entry,) = analyzed(tmp_path, {0: [0] * 6, 1: [60] * 6, 2: [0] * 6})["stragglers"]
    assert (entry["caused_wait_ns"], entry["caused_wait_ns_per_step"]) == (2 * 5 * 60_000, 60_000)


def test_rotating_culprit(tmp_path: Path) -> None:
    """Ranks take turns: nobody is last beyond chance, and the finding says that it changes. Rank 0 is late in steps
    0, 2, 4 and 6, rank 1 in 1, 3, 5 and in the last one, which is not judged."""
    turns = [60, 0]
    report = analyzed(tmp_path, {0: turns * 4, 1: turns[::-1] * 4})
    assert [(e["caused_wait_ns"], e["recurrent"]) for e in report["stragglers"]] == [(240_000, False), (180_000, False)]
    (finding,) = [finding for finding in report["findings"] if finding["code"] == "straggler"]
    assert "the last rank changes" in finding["message"]
    assert finding["ranks"] == [0, 1]


@pytest.mark.parametrize(
    ("steps", "said"), [(1, "too few steps to test for a persistent straggler"), (3, "rank 1 is consistently late")]
)
def test_how_many_steps_tell(tmp_path: Path, steps: int, said: str) -> None:
    """Of three steps two are judged."""
    report = analyzed(tmp_path, {0: [0] * steps, 1: [60] * steps})
    (finding,) = [finding for finding in report["findings"] if finding["code"] == "straggler"]
    assert said in finding["message"]


def test_rank_by_step(tmp_path: Path) -> None:
    cells = analyzed(tmp_path, {0: [0, 30], 1: [60, 0]})["rank_steps"]
    told = [(c["rank"], c["step"], c["wait_caused_ns"], c["wait_suffered_ns"]) for c in cells]
    assert told == [(0, 0, 0, 60_000), (0, 1, 30_000, 0), (1, 0, 60_000, 0), (1, 1, 0, 30_000)]
    assert [cell["step_ns"] for cell in cells if cell["rank"] == 0] == [1_001_000, 999_000]  # 0 to 1001, then to 2000


def test_caused_waits_are_literal_and_stalls_are_what_is_exposed(tmp_path: Path) -> None:
    """Two buckets wait from 100 and 120 for rank 1, who comes at 200 and 210: it caused 100 + 90, the first 150
    hidden behind compute or not. Rank 0's device stalls from 150 on, but for the transfers of 200–205 and 210–215."""
    write(tmp_path / "rank0.json", kernel(0, 150), nccl(100, 105, 0), nccl(120, 95, 1), rank=0, world_size=2)
    write(tmp_path / "rank1.json", kernel(0, 210), nccl(200, 5, 0), nccl(210, 5, 1), rank=1, world_size=2)
    report = gpuscope.analyze(tmp_path).report
    assert [entry["caused_wait_ns"] for entry in report["stragglers"]] == [190_000]
    assert report["collectives"][0]["wait_ns"] == 190_000
    assert report["ranks"][0]["stall_ns"]["communication"] == {"straggler": 55_000, "latency": 10_000}


def test_two_steps_show_who_is_late_in_both(tmp_path: Path) -> None:
    """Rank 1 is 40 late for each of eight all-reduces in three steps, of which two are judged."""
    for rank, late in ((0, 0), (1, 40)):
        events: list[Any] = []
        for number in range(3):
            events.append(note(1000 * number, 1000, f"ProfilerStep#{number}"))
            for turn in range(8):
                at, place = 1000 * number + 100 * turn, 8 * number + turn
                events += [
                    call(at + 1, 2, place + 1),
                    kernel(at + 10, 30 + late, place + 1),
                    nccl(at + 40 + late, 50 - late, place),
                ]
        write(tmp_path / f"rank{rank}.json", *events, rank=rank, world_size=2)
    (entry,) = gpuscope.analyze(tmp_path).report["stragglers"]
    assert (entry["rank"], entry["caused_wait_ns"], entry["recurrent"]) == (1, 2 * 8 * 40_000, True)


def test_synthetic_job_traces_lateness_through_its_groups() -> None:
    """64 synthetic ranks: rank 21 is 5 ms late in each of five steps, before it receives from the stage before.

    Of these 5 ms, stage 0 computes through 2 × 0.35: nobody would have gone on sooner. Its three mates then wait
    4.3 in an all-reduce, later stages for messages, and at the sum of gradients three replicas of 16 ranks wait 4.3
    for the ranks of its own. Four of the five steps are judged. That stages wait for each other at the last all-reduce
    of all is the pipeline's drain.
    """
    job = Job(dp=4, tp=4, pp=4, layers=2, steps=5, late_rank=21)
    made = simulate(job)
    parts = [reduce_trace(trace_of(job, made, rank), Options()) for rank in range(job.ranks)]
    found = communication(parts)
    entries = {entry["rank"]: entry for entry in found.sections[STRAGGLERS]}
    assert [problem.code for problem in found.problems if problem.code.startswith("coll")] == []
    assert [rank for rank, entry in entries.items() if entry["recurrent"]] == [21]
    assert (entries[21]["phase"], entries[21]["operation"]) == ("forward", "gemm")
    assert entries[21]["root_wait_ns"] == pytest.approx(4 * (3 + 3 * 16) * 4.3 * MS, rel=0.05)
    assert sum(e["root_wait_ns"] for rank, e in entries.items() if rank != 21) < 0.05 * entries[21]["root_wait_ns"]


def test_each_rank_is_compared_with_those_of_its_stage() -> None:
    """Four ranks as two stages, two steps of 100 µs: rank 3 takes 40 µs longer than rank 2, which is 20 more than their
    median; of all four ranks together, stage 1 would be late."""
    delay = np.array([[0.0, 0.0, -20.0, 20.0]] * 4) * 1_000
    every = [np.ones(4, np.bool_)]
    found = Lateness(np.arange(4), delay, [[0, 1], [2, 3]], 100_000, every)
    assert {rank: (late.usual, late.period) for rank, late in found.recurrent().items()} == {3: (20_000, 1)}
    assert found.testable
    assert not Lateness(np.arange(4), delay, [[0], [1], [2], [3]], 100_000, every).testable
    assert not Lateness(np.arange(1), delay[:1], [[0, 1], [2, 3]], 100_000, [every[0][:1]]).testable


def communication(parts: list[Any]) -> Any:
    from gpuscope.analyzers.collectives.exposed_communication import run
    from gpuscope.analyzers.facts.run_facts import RunFacts

    return run(RunFacts(merge([part.trace for part in parts]), [lane for part in parts for lane in part.lanes]))


def test_what_stays_of_a_file_grows_with_collectives_not_with_events() -> None:
    """Four times the kernels between the same collectives: the same summary, to the byte."""
    sizes = []
    for kernels in (5, 20):
        job = Job(dp=2, tp=2, pp=2, layers=3, steps=4, kernels=kernels)
        trace = trace_of(job, simulate(job), 0)
        kept = reduce_trace(trace, Options()).trace
        tables = [kept[name] for name in kept.tables]
        sizes.append((len(trace["device_events"]), sum(a.nbytes for t in tables for a in t.columns.values())))
    (few, small), (many, large) = sizes
    assert many > 3 * few
    assert large == small

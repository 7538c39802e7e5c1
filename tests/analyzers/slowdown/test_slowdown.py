"""What-if on operations: jobs whose timelines are worked by hand, and the published ones."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from helpers.analysed import report as report_of
from helpers.kineto import Event, call, kernel, note
from helpers.kineto import write as write_kineto
from helpers.operations import Row, rows, write

import gpuscope
from gpuscope.catalogue.straggler_sentences import slowest_ranks
from gpuscope.errors import UsageError
from gpuscope.schema.document import FindingEntry, Report, Slowdown

MS = 1_000_000

# Two stages, two micro-batches, forward 10 ms and backward 20 ms, messages in no time: the step takes 100 ms.
FAST = """
0 forward-compute 0-10 10-20
1 forward-compute 10-20 40-50
1 backward-compute 20-40 50-70
0 backward-compute 40-60 70-90
0 forward-send 10-10 20-20
1 forward-recv 10-10 20-20
1 backward-send 40-40 70-70
0 backward-recv 40-40 70-70
0 optimizer-clip-main-grad 90-90
1 optimizer-clip-main-grad 90-90
0 optimizer 90-100
1 optimizer 90-100
"""
# The same with stage 0 at half the speed: 140 ms.
SLOW = """
0 forward-compute 0-20 20-40
1 forward-compute 20-30 50-60
1 backward-compute 30-50 60-80
0 backward-compute 50-90 90-130
0 forward-send 20-20 40-40
1 forward-recv 20-20 40-40
1 backward-send 50-50 80-80
0 backward-recv 50-50 80-80
0 optimizer-clip-main-grad 130-130
1 optimizer-clip-main-grad 130-130
0 optimizer 130-140
1 optimizer 130-140
"""
# FAST beside SLOW: it waits for it at the clip.
WAITING = FAST.replace("90-90", "90-130").replace("90-100", "130-140")


def analysed(path: Path, *parts: list[Row]) -> Report:
    return gpuscope.analyze(write(path / "job.parquet", *parts)).report


def slowdown(report: Report) -> Slowdown:
    assert [a["why"] for a in report["analyzers"] if a["name"] == "slowdown"] == [""]
    return report["slowdown"]


def of_slowdown(report: Report) -> list[FindingEntry]:
    """The findings of this analysis: the same jobs may have too few micro-batches too."""
    return [finding for finding in report["findings"] if finding["code"].startswith("slow_")]


def test_one_slow_worker_of_four(tmp_path: Path) -> None:
    """Ideal: forward (6·10 + 2·20)/8 = 12.5 ms, backward (6·20 + 2·40)/8 = 25 ms. Then stage 0 computes
    0–12.5–25, stage 1 12.5–25–50 and 50–62.5–87.5, stage 0 50–75 and 87.5–112.5, and the optimizer ends at 122.5.

    The slow worker alone: stage 0 0–20–40, stage 1 20–32.5–57.5 and 57.5–70–95, stage 0 57.5–97.5–137.5: 147.5.
    All but it: stage 0 0–12.5–25, stage 1 12.5–22.5–42.5 and –52.5–72.5, stage 0 42.5–67.5, 72.5–97.5: 107.5.
    """
    report = analysed(tmp_path, rows(WAITING, 0, replicas=2), rows(SLOW, 1, replicas=2))
    found = slowdown(report)
    assert (found["recorded_step_ns"], found["replayed_step_ns"]) == (140 * MS, 140 * MS)
    assert found["ideal_step_ns"] == 122.5 * MS
    assert found["total"] == pytest.approx(140 / 122.5)
    assert found["by_rank"]["1"] == pytest.approx(147.5 / 122.5)
    assert found["explained"]["by_rank"]["1"] == pytest.approx((140 - 107.5) / (140 - 122.5))
    (finding,) = of_slowdown(report)
    assert (finding["code"], finding["severity"], finding["ranks"]) == ("slow_worker", "high", [1])
    # 32.5 ms go away with it, for the others are quicker than the mean; it costs no more than all slowness does.
    assert finding["cost_ns_per_step"] == 17.5 * MS
    assert finding["share_frac"] == pytest.approx(1 - 1 / found["total"])
    first = finding["evidence"][0]
    assert (first["rank"], first["name"], first["dur_ns"]) == (1, "backward-compute", 40 * MS)


def test_a_stage_that_is_slow_in_every_replica_is_no_worker(tmp_path: Path) -> None:
    report = analysed(tmp_path, rows(SLOW, 0, replicas=2), rows(SLOW, 1, replicas=2))
    (finding,) = of_slowdown(report)
    assert (finding["code"], finding["ranks"]) == ("slow_stage", [0, 1])
    assert "Pipeline stage 0 (the first)" in finding["message"]


def test_one_replica_leaves_it_open_whether_stage_or_rank(tmp_path: Path) -> None:
    (finding,) = of_slowdown(analysed(tmp_path, rows(SLOW)))
    assert finding["code"] == "slow_stage"
    assert finding["message"].endswith("an uneven split can't be distinguished from a slow rank")


def test_equal_operations_have_no_slowdown(tmp_path: Path) -> None:
    """Forward and backward take 15 ms everywhere, so the ideal is the job itself."""
    even = """
    0 forward-compute 0-15
    0 backward-compute 15-30
    0 optimizer 30-40
    """
    report = analysed(tmp_path, rows(even))
    assert slowdown(report)["total"] == 1
    assert set(slowdown(report)["explained"]["by_operation"].values()) == {0}
    assert report["findings"] == []


def test_a_culprit_that_moves_is_nobody(tmp_path: Path) -> None:
    """One stage, two replicas: in each step another one is slow. Ideal 15 + 10, replayed 20 + 10."""
    slow, fast = ("0 forward-compute 0-20", "0 forward-compute 0-10")
    end = "\n0 optimizer-clip-main-grad 20-20\n0 optimizer 20-30"
    fast_end = "\n0 optimizer-clip-main-grad 10-20\n0 optimizer 20-30"
    report = analysed(
        tmp_path,
        *(rows(slow + end, by_turns, by_turns, replicas=2) for by_turns in (0, 1)),
        *(rows(fast + fast_end, 1 - by_turns, by_turns, replicas=2) for by_turns in (0, 1)),
    )
    assert slowdown(report)["total"] == pytest.approx(30 / 25)
    (finding,) = of_slowdown(report)
    assert (finding["code"], finding["ranks"]) == ("slow_operations", [])
    assert finding["message"].endswith("forward-compute explains 1.000 of that")


def test_an_operation_that_synchronises_lasts_from_the_latest_start(tmp_path: Path) -> None:
    """Replica 0 gathers from 0 to 10 ms, replica 1 from 6 to 10: 4 ms; clocks that disagree make no time.
    So 4 + 10 (forward) + 0 (clip, ended before replica 1 began) + 5 (optimizer)."""
    first = """
    0 params-all-gather@0 0-10
    0 forward-compute@0 10-20
    0 optimizer-clip-main-grad 20-21
    0 optimizer 22-27
    """
    second = first.replace("0-10\n", "6-10\n").replace("20-21", "21.5-21.8")
    found = slowdown(analysed(tmp_path, rows(first, 0, replicas=2), rows(second, 1, replicas=2)))
    # Only replica 1's clip took time after the latest start: 0.3 ms; replica 0's is -0.5, taken as 0.
    assert found["replayed_step_ns"] == pytest.approx(19.3 * MS, abs=2)


AFTER_COMPUTE = """
0 forward-compute@0 0-10
0 backward-compute@0 10-30
0 gc 30-31
0 layernorm-grads-all-reduce 35-37
0 grads-reduce-scatter@0 50-55
0 optimizer-clip-main-grad 60-61
0 optimizer 61-65
"""


def test_reduce_scatter_behind_the_all_reduces_where_it_does_not_overlap(tmp_path: Path) -> None:
    """10 + 20, gc 1, layernorm 2, reduce-scatter 5, clip 1, optimizer 4."""
    assert slowdown(analysed(tmp_path, rows(AFTER_COMPUTE)))["replayed_step_ns"] == pytest.approx(43 * MS, abs=2)


def test_reduce_scatter_beside_gc_where_it_overlaps(tmp_path: Path) -> None:
    """Reduce-scatter 30–35 beside gc 30–31; layernorm –37, separate –40, clip –41, optimizer –45."""
    overlapped = AFTER_COMPUTE + "0 separate-grads-all-reduce 56-59\n"
    assert slowdown(analysed(tmp_path, rows(overlapped)))["replayed_step_ns"] == pytest.approx(45 * MS, abs=2)


def test_model_chunks_go_round_the_stages(tmp_path: Path) -> None:
    """Two stages of two chunks, one micro-batch: eight computations of 10 ms, one after the other; the receive
    before the first chunk and the send behind the last are recorded, and nothing is behind them."""
    looped = """
    0 forward-compute@0/0 0-10
    1 forward-compute@0/1 10-20
    0 forward-compute@1/2 20-30
    1 forward-compute@1/3 30-40
    1 backward-compute@1/3 40-50
    0 backward-compute@1/2 50-60
    1 backward-compute@0/1 60-70
    0 backward-compute@0/0 70-80
    0 forward-recv 0-0 20-20
    0 forward-send 10-10 30-30
    1 forward-recv 10-10 30-30
    1 forward-send 20-20 40-40
    1 backward-recv 40-40 60-60
    1 backward-send 50-50 70-70
    0 backward-recv 50-50 70-70
    0 backward-send 60-60 80-80
    0 optimizer 80-85
    1 optimizer 70-75
    """
    found = slowdown(analysed(tmp_path, rows(looped)))
    assert (found["replayed_step_ns"], found["total"]) == (85 * MS, 1)


def test_steps_without_all_operations_are_left_out_and_said(tmp_path: Path) -> None:
    parts = [rows(FAST, step=step) for step in range(3)]
    report = analysed(tmp_path, *parts[:2], parts[2][:-1])
    (entry,) = [one for one in report["analyzers"] if one["name"] == "slowdown"]
    assert (entry["status"], entry["why"]) == ("ok", "1 step without the operations of the others left out")
    assert report["slowdown"]["steps"] == 2


def test_only_the_steps_asked_for(tmp_path: Path) -> None:
    path = write(tmp_path / "job.parquet", rows(FAST, step=4), rows(SLOW, step=5))
    only = gpuscope.analyze(path, steps=(5, 5)).report["slowdown"]
    assert (only["steps"], only["replayed_step_ns"]) == (1, 140 * MS)
    with pytest.raises(UsageError, match="no rank has a step between 7 and 9"):
        gpuscope.analyze(path, steps=(7, 9))


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("0 forward-compute 0-10\n2 forward-compute 0-10", "of 3 pipeline stages only 2 are there"),
        ("0 forward-compute 0-10\n0 tea-break 10-20", "operations that the model does not know: tea-break"),
        ("0 optimizer 0-10", "stage 0 computes nothing"),
        (
            "0 forward-compute 0-10 10-20\n0 forward-send 10-10 20-20\n1 forward-compute 10-20\n1 forward-recv 10-10",
            "2 of forward-send on stage 0 but 1 of forward-recv on stage 1",
        ),
    ],
)
def test_what_the_model_does_not_fit_is_skipped_with_the_reason(tmp_path: Path, text: str, says: str) -> None:
    report = analysed(tmp_path, rows(text))
    (entry,) = [one for one in report["analyzers"] if one["name"] == "slowdown"]
    assert (entry["status"], entry["why"]) == ("skipped", says)
    assert "slowdown" not in report


def test_without_all_ranks_nobody_is_blamed(tmp_path: Path) -> None:
    path = write(tmp_path / "job.parquet", rows(SLOW))
    report = gpuscope.analyze(path, ranks=[0]).report
    assert "slowdown" not in report
    assert not report["findings"]


def test_the_verdict_rests_on_the_slowdown(tmp_path: Path) -> None:
    """Operations are all there is: 1.143 times as long is more than 1.1, and 1 − 1/1.143 = 0.125 of the step."""
    verdict = analysed(tmp_path, rows(WAITING, 0, replicas=2), rows(SLOW, 1, replicas=2))["verdict"]
    assert (verdict["abstained"], verdict["bound_by"], verdict["cause"]) == (False, "communication", "straggler")
    assert verdict["share_frac"] == pytest.approx(0.125, abs=0.0005)
    assert "the step takes 1.143 times as long as without stragglers" in verdict["why"]


def ranged_step(forward: int) -> list[Event]:
    """A step of a GPU whose host runs ahead: everything is launched in the first 6 µs. Backward computes for
    20 µs, the all-reduce ends at 80 µs on each rank, the optimizer takes 10 µs."""
    reduced_at = forward + 20
    return [
        note(0, 6, "train step 1"),
        note(0, 1, "forward"),
        note(2, 2, "backward"),
        note(5, 1, "optimizer"),
        call(0, 1, 1),
        call(2, 1, 2),
        call(3, 1, 3),
        call(5, 1, 4),
        kernel(2, forward - 2, 1),
        kernel(forward, 20, 2),
        kernel(reduced_at, 80 - reduced_at, 3, "ncclDevKernel_AllReduce_Sum_f32_RING_LL", stream=9),
        kernel(80, 10, 4),
        note(200, 6, "train step 2"),
    ]


def test_ranges_of_a_data_parallel_job_on_devices(tmp_path: Path) -> None:
    """Forward 10 µs (2 to 10: the window begins with the first kernel) against 50 (2 to 50). Rank 1 waits for
    nobody: its all-reduce takes 10 µs from 70 on. So 48 + 20 + 10 + 10 = 88, and ideally (8 + 48)/2 in place of 48.
    """
    for rank, forward in ((0, 10), (1, 50)):
        write_kineto(tmp_path / f"rank{rank}.json", *ranged_step(forward), rank=rank, world_size=2)
    found = slowdown(gpuscope.analyze(tmp_path).report)
    assert (found["replayed_step_ns"], found["ideal_step_ns"]) == (88_000, 68_000)
    assert found["by_rank"]["0"] == 1
    assert found["explained"]["by_rank"]["1"] == 1


def test_ranges_of_a_data_parallel_job_on_cpu(samples: Path) -> None:
    """Rank 1 of two computes 60 ms more in each step (sample_traces/MANIFEST.md): 30 ms more than the mean."""
    report = report_of(samples / "ddp_slow_rank")
    found = slowdown(report)
    assert found["replayed_step_ns"] == pytest.approx(found["recorded_step_ns"], rel=0.02)
    assert found["replayed_step_ns"] - found["ideal_step_ns"] == pytest.approx(30 * MS, rel=0.05)
    assert found["explained"]["by_rank"]["1"] > 0.9
    assert "slow_worker" not in {finding["code"] for finding in report["findings"]}  # `straggler` says it
    assert "slowdown" not in gpuscope.analyze(samples / "ddp_slow_rank", ranks=[1]).report


@pytest.mark.parametrize("sample", ["fsdp_healthy", "zero1_healthy", "tp_healthy", "3d_healthy"])
def test_ranks_that_wait_for_each_other_elsewhere_get_no_slowdown(samples: Path, sample: str) -> None:
    report = report_of(samples / sample)
    assert "slowdown" not in report


@pytest.mark.parametrize(("sample", "last_stage"), [("pp_1f1b", (0.9, 1.1)), ("pp_unbalanced_stage", (1.2, 1.3))])
def test_ranges_of_a_pipeline_job(samples: Path, sample: str, last_stage: tuple[float, float]) -> None:
    """The last of two stages runs its blocks' forward four times in the second (sample_traces/MANIFEST.md)."""
    found = slowdown(report_of(samples / sample))
    assert found["replayed_step_ns"] == pytest.approx(found["recorded_step_ns"], rel=0.07)
    low, high = last_stage
    assert low < found["by_stage"]["1"] < high


PUBLISHED: list[tuple[str, float, str, list[int], str]] = [
    # job, S, culprit, its ranks, the worker that mw-*.json is about
    ("ST", 1.179, "slow_stage", [6, 7], "7"),
    ("AR", 1.973, "slow_worker", [0], "0"),
]


@pytest.mark.parametrize(("job", "total", "code", "ranks", "worker"), PUBLISHED)
def test_published_jobs(shared_traces: Path, job: str, total: float, code: str, ranks: list[int], worker: str) -> None:
    """Figures of the artefact: step times and M of the last stage (ms) and of the worst worker (mw)."""
    folder = shared_traces / "straggler"
    of_stage, of_worker = (json.loads((folder / f"{kind}-{job}.json").read_text()) for kind in ("ms", "mw"))
    report = report_of(folder / f"trace-{job}.parquet")
    found = slowdown(report)
    assert round(found["total"], 3) == total
    assert found["replayed_step_ns"] / 1e9 == pytest.approx(of_stage["tori"], rel=1e-6)
    assert found["ideal_step_ns"] / 1e9 == pytest.approx(of_stage["tideal"], rel=1e-6)
    explained: dict[str, Any] = dict(found["explained"])
    assert explained["by_stage"]["3"] == pytest.approx(of_stage["Ms"], abs=1e-4)
    assert explained["by_rank"][worker] == pytest.approx(of_worker["Mw"], abs=1e-4)
    (finding,) = of_slowdown(report)
    assert (finding["code"], finding["severity"], finding["ranks"]) == (code, "high", ranks)
    by, told = (("by_stage", of_stage), ("by_rank", of_worker))[code == "slow_worker"]
    lost = found["replayed_step_ns"] - found["ideal_step_ns"]
    without = found["replayed_step_ns"] - explained[by]["3" if code == "slow_stage" else worker] * lost
    assert without / 1e9 == pytest.approx(told["trem"], rel=1e-6)
    assert finding["share_frac"] <= report["verdict"]["share_frac"] + 1e-9
    assert all(share <= report["verdict"]["share_frac"] + 1e-9 for _, share in slowest_ranks(found))


def test_the_slow_worker_is_predicted_as_its_finding_says(shared_traces: Path) -> None:
    report = report_of(shared_traces / "straggler" / "trace-AR.parquet")
    (finding,) = of_slowdown(report)
    (change,) = [one for one in report["suggestions"] if one["finding"] == "slow_worker"]
    predicted, step = change["predicted"], report["step_time"]
    assert step is not None
    assert predicted["step_ns_before"] == step["median_ns"]
    assert predicted["step_ns_before"] - predicted["step_ns_after"] == finding.get("per_step_ns")
    assert predicted["low_ns"] <= predicted["step_ns_after"] <= predicted["high_ns"]
    assert predicted["basis"]

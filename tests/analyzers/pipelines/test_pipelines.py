"""Pipelines: schedules laid out by hand, bubbles and their parts, stage maps, and recorded runs."""

from __future__ import annotations

import gzip
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.analysed import report
from helpers.kineto import Event, call, kernel, note
from helpers.kineto import write as write_kineto
from helpers.operations import rows, write
from hypothesis import given, settings
from hypothesis import strategies as st
from simulator.catalogue import COMPUTE
from simulator.judged import Case

import gpuscope
from gpuscope.analyzers.facts.pipeline_facts import Computation, Flush
from gpuscope.analyzers.pipelines.pipeline_parallelism import bubbles, shared_out
from gpuscope.analyzers.pipelines.schedules import ideal, recognise
from gpuscope.analyzers.replay.engine import CircleError
from gpuscope.analyzers.replay.rewrites.pipeline_layout import Delays, length, recorded
from gpuscope.analyzers.what_if_changes import EvenStages, MicroBatches, Predicted
from gpuscope.catalogue.prediction_sentences import step_change
from gpuscope.schema.document import Report
from gpuscope.schema.provenance import Pipeline, PipelineComputation

MS = 1_000_000


def flush(*stages: str) -> Flush:
    """Stages as text, one word per computation: `F0.1` is the forward of chunk 0, micro-batch 1; each takes 1 ns."""
    return Flush(0, 0, tuple(_stage(text) for text in stages))


def _stage(text: str) -> tuple[Computation, ...]:
    told = [(word[0], *map(int, word[1:].split("."))) for word in text.split()]
    return tuple(Computation(kind, batch, chunk, at, at + 1) for at, (kind, chunk, batch) in enumerate(told))


def at_once(one: Flush) -> float:
    """Length of a flush replayed in its order with messages in no time."""
    return length(recorded(one), Delays({}, [{} for _ in one.stages]))


def pipeline(report: Report) -> Pipeline:
    assert [a["status"] for a in report["analyzers"] if a["name"] == "pipeline"] == ["ok"]
    return report["pipeline"]


# ---- schedules ----

GPIPE = flush("F0.0 F0.1 B0.0 B0.1", "F1.0 F1.1 B1.0 B1.1")
ONE_BY_ONE = flush("F0.0 F0.1 B0.0 F0.2 B0.1 B0.2", "F1.0 B1.0 F1.1 B1.1 F1.2 B1.2")
# Narayanan et al. 2021, figure 4, for two stages of two chunks: 2(p-s-1) + (v-1)p = 4 and 2 forwards ahead.
INTERLEAVED = flush(
    "F0.0 F0.1 F2.0 F2.1 F0.2 B2.0 F0.3 B2.1 F2.2 B0.0 F2.3 B0.1 B2.2 B2.3 B0.2 B0.3",
    "F1.0 F1.1 F3.0 B3.0 F3.1 B3.1 F1.2 B1.0 F1.3 B1.1 F3.2 B3.2 F3.3 B3.3 B1.2 B1.3",
)
BREADTH_FIRST = flush("F0.0 F0.1 F2.0 F2.1 B2.0 B2.1 B0.0 B0.1", "F1.0 F1.1 F3.0 F3.1 B3.0 B3.1 B1.0 B1.1")
# Qi et al. 2024: stage 0 of two holds chunks 0 and 3 and begins with 3 forwards, stage 1 holds 1 and 2.
ZBV = flush(
    "F0.0 F0.1 F0.2 F3.0 B3.0 W3.0 F3.1 B3.1 W3.1 F0.3 B0.0 W0.0 F3.2 B3.2 W3.2 B0.1 W0.1 F3.3 B3.3 W3.3 B0.2 W0.2 "
    "B0.3 W0.3",
    "F1.0 F2.0 F1.1 F2.1 B2.0 W2.0 F1.2 B1.0 W1.0 F2.2 B2.1 W2.1 F1.3 B1.1 W1.1 F2.3 B2.2 W2.2 B1.2 B2.3 B1.3 W1.2 "
    "W2.3 W1.3",
)


@pytest.mark.parametrize(
    ("one", "name", "bubble"),
    [
        (GPIPE, "gpipe", 1 / 3),
        (flush("F0.0 B0.0", "F1.0 B1.0"), "gpipe", 1 / 2),
        (ONE_BY_ONE, "1f1b", 1 / 4),
        (INTERLEAVED, "interleaved_1f1b", 1 / 9),
        (BREADTH_FIRST, "looped_bfs", 1 / 5),
        (ZBV, "zbv", 1 / 25),
    ],
)
def test_known_schedules_and_their_ideal_bubble(one: Flush, name: str, bubble: float) -> None:
    """The formula is what the order itself gives where all computations take equal time."""
    found = recognise(one)
    assert found.name == name
    assert ideal(found, 2).bubble_frac == pytest.approx(bubble)
    assert 1 - len(one.stages[0]) / at_once(one) == pytest.approx(bubble)


@pytest.mark.parametrize(
    ("stages", "says"),
    [
        # 1F1B but for stage 0, which is a forward further ahead than that schedule ever is.
        (("F0.0 F0.1 F0.2 B0.0 B0.1 B0.2", "F1.0 B1.0 F1.1 B1.1 F1.2 B1.2"), "gpipe on stage 1, from 1f1b on stage 0"),
        (("F0.0 B0.0 W0.0 F0.1 B0.1 W0.1", "F1.0 B1.0 W1.0 F1.1 B1.1 W1.1"), "weight gradients computed apart"),
        (("F0.0 F1.0 B1.0 B0.0", "F2.0 F3.0 B3.0 B2.0"), "in no order of a known schedule"),
    ],
)
def test_any_other_order_is_unknown_with_the_reason(stages: tuple[str, ...], says: str) -> None:
    found = recognise(flush(*stages))
    assert found.name == "unknown"
    assert says in found.why
    assert ideal(found, 2).bubble_frac is None


def test_stages_that_wait_for_each_other_are_not_replayed() -> None:
    """Stage 1 wants micro-batch 1 first, which stage 0 sends only after it got back the gradient of 0."""
    with pytest.raises(CircleError):
        at_once(flush("F0.0 B0.0 F0.1 B0.1", "F1.1 B1.1 F1.0 B1.0"))


# ---- bubbles ----

# p = 2, m = 2, forward 10 ms, backward 20 ms, messages in no time; the pipeline lasts 90 ms.
EVEN = """
0 forward-compute 0-10 10-20
1 forward-compute 10-20 40-50
1 backward-compute 20-40 50-70
0 backward-compute 40-60 70-90
"""
# Stage 1 at half the speed: 20 and 40 ms. Each stage computes as long as before on stage 0, twice that on stage 1.
LAST_IS_SLOW = """
0 forward-compute 0-10 10-20
1 forward-compute 10-30 70-90
1 backward-compute 30-70 90-130
0 backward-compute 70-90 130-150
"""


def test_bubble_of_an_even_pipeline(tmp_path: Path) -> None:
    """Each stage computes 60 of 90 ms: stage 0 idles 20–40 before its first backward and 60–70 after its last forward,
    stage 1 0–10 before its first and 70–90 after its last; it has a gap of no time between. 1/3 = (2−1)/(2+2−1)."""
    told = pipeline(gpuscope.analyze(write(tmp_path / "job.parquet", rows(EVEN))).report)
    assert (told["schedule"]["name"], told["bubble_frac"]) == ("1f1b", pytest.approx(1 / 3))
    assert told["schedule"]["ideal_bubble_frac"] == pytest.approx(1 / 3)
    first, last = told["rows"]
    assert (first["dur_ns"], first["compute_ns"]) == (90 * MS, 60 * MS)
    assert first["bubble_ns"] == {"warm_up": 20 * MS, "steady": 0, "drain": 10 * MS, "imbalance": 0}
    assert last["bubble_ns"] == {"warm_up": 10 * MS, "steady": 0, "drain": 20 * MS, "imbalance": 0}


def test_what_an_even_split_and_more_micro_batches_would_give(tmp_path: Path) -> None:
    """Even forwards of 15 and backwards of 30 ms: 15, then 15 + 30 + 15 + 30 on stage 1, 30 on stage 0: 135 ms. Of one
    step the spread is unknown: 5 % either way, beside 3 % of the 15 ms saved (as squares).

    Of each of four micro-batches an eighth of the time is taken not to shrink: 5.625 ms of stage 0, 4 × 33.75 ms of
    stage 1, 11.25 ms of stage 0. At best nothing is fixed, 5 + 4 × 30 + 10; at worst a quarter, 6.25 + 4 × 37.5 + 12.5.
    """
    analysis = gpuscope.analyze(write(tmp_path / "job.parquet", rows(LAST_IS_SLOW)))
    told = pipeline(analysis.report)
    even, more = told["even_split"], told["more_micro_batches"]
    assert (even["micro_batches"], even["step_factor"], even["why_not"]) == (2, pytest.approx(0.9), "")
    assert (more["micro_batches"], more["step_factor"]) == (4, pytest.approx(151.875 / 150))
    assert even["predicted"] is not None
    assert more["predicted"] is not None
    assert list(even["predicted"].values())[:4] == [150 * MS, 135 * MS, 128_235_017, 141_764_983]
    assert list(more["predicted"].values())[:4] == [150 * MS, 151_875_000, 127_406_042, 176_343_958]
    assert [
        max(one["start_ns"] + one["dur_ns"] for one in told["timeline"][which]) for which in ("computations", "ideal")
    ] == [150 * MS, 135 * MS]  # type: ignore[literal-required]
    quick, slow = told["rows"]
    assert sum(slow["bubble_ns"].values()) == 30 * MS  # type: ignore[arg-type]
    assert slow["bubble_ns"]["imbalance"] == 0
    assert quick["bubble_ns"]["imbalance"] == 60 * MS


def test_imbalance_is_taken_out_of_the_phases_by_what_is_computed_in_each() -> None:
    assert shared_out(60, [20, 0, 40], [50, 0, 40]) == [20, 0, 40]
    assert shared_out(60, [30, 10, 20], [100, 0, 15]) == [45, 0, 15]  # 30, 0, 15; the other 15 go where there is room
    assert shared_out(7, [0, 0, 0], [3, 3, 3]) == [3, 2, 2]


@settings(max_examples=60, deadline=None)
@given(st.lists(st.lists(st.integers(1, 1000), min_size=4, max_size=12), min_size=2, max_size=5), st.data())
def test_parts_sum_to_the_bubble_whatever_the_times(gaps: list[list[int]], data: st.DataObject) -> None:
    """Any stages of any computations with any pauses between them."""
    stages = []
    for chunk, own in enumerate(gaps):
        edges = np.cumsum(own)[: len(own) // 2 * 2].reshape(-1, 2).tolist()
        kinds = data.draw(st.lists(st.sampled_from("FBW"), min_size=len(edges), max_size=len(edges)))
        stages.append(tuple(Computation(kind, 0, chunk, a, b) for kind, (a, b) in zip(kinds, edges, strict=True)))
    one = Flush(0, 0, tuple(stages))
    start, end = one.span
    for found in bubbles(one):
        parts: dict[str, int] = dict(found.parts)  # type: ignore[arg-type]
        assert min(parts.values()) >= 0
        assert found.compute + sum(parts.values()) == end - start


# ---- findings ----


def test_too_few_micro_batches(tmp_path: Path) -> None:
    """Two on two stages, where eight would do: each idles 30 ms of the 90 ms that a step takes, for no imbalance.

    Four with an eighth of their time fixed: 5.625 + 4 × 16.875 + 11.25 ms; at best 75 ms and at worst 93.75 ms."""
    report = gpuscope.analyze(write(tmp_path / "job.parquet", rows(EVEN))).report
    (finding,) = report["findings"]
    assert (finding["code"], finding["cost_ns_per_step"], finding["share_frac"]) == (
        "few_micro_batches",
        30 * MS,
        pytest.approx(1 / 3),
    )
    assert "a stage idles 30.00 ms of a step" in finding["message"]
    assert finding["message"].endswith(
        "The same batch in 4 micro-batches: step 90.00 ms → 84.38 ms (70.78 ms to 97.97 ms), may gain nothing"
    )
    assert finding["evidence"][0]["dur_ns"] == 10 * MS


def test_enough_micro_batches_are_no_finding(tmp_path: Path) -> None:
    """Eight on two stages: 4·p (Huang et al. 2019)."""
    ahead = [*range(0, 20, 10), *range(40, 40 + 6 * 30, 30)]
    forward0 = " ".join(f"{a + (20 if i > 1 else 0)}-{a + 10 + (20 if i > 1 else 0)}" for i, a in enumerate(ahead))
    forward1 = " ".join(f"{10 + 30 * i}-{20 + 30 * i}" for i in range(8))
    backward1 = " ".join(f"{20 + 30 * i}-{40 + 30 * i}" for i in range(8))
    backward0 = " ".join(f"{40 + 30 * i}-{60 + 30 * i}" for i in range(8))
    text = (
        f"0 forward-compute {forward0}\n1 forward-compute {forward1}\n"
        f"1 backward-compute {backward1}\n0 backward-compute {backward0}"
    )
    report = gpuscope.analyze(write(tmp_path / "job.parquet", rows(text))).report
    assert pipeline(report)["schedule"]["micro_batches"] == 8
    assert pipeline(report)["schedule"]["name"] == "1f1b"
    assert "few_micro_batches" not in {finding["code"] for finding in report["findings"]}


# ---- jobs told from ranges ----


def ranged(stage: int, slow: int = 1, ranges: str = "gpuscope::{}#micro_batch={},stage={}") -> list[Event]:
    """EVEN in µs on a GPU whose host runs ahead, stage 1 `slow` times as slow; all is launched in the first 50 µs."""
    times = {
        0: [("F", 0, 0, 10), ("F", 1, 10, 20), ("B", 0, 40, 60), ("B", 1, 70, 90)],
        1: [("F", 0, 10, 20), ("B", 0, 20, 40), ("F", 1, 40, 50), ("B", 1, 50, 70)],
    }[stage]
    if slow == 2:
        times = {
            0: [("F", 0, 0, 10), ("F", 1, 10, 20), ("B", 0, 70, 90), ("B", 1, 130, 150)],
            1: [("F", 0, 10, 30), ("B", 0, 30, 70), ("F", 1, 70, 90), ("B", 1, 90, 130)],
        }[stage]
    events = [note(0, 60, "train step 1"), note(1000, 6, "train step 2")]
    for number, (kind, batch, start, end) in enumerate(times):
        name = ranges.format({"F": "forward", "B": "backward"}[kind], batch, stage)
        if ranges.startswith("PP"):
            name = f"PP:{stage}{kind}{batch}"
        at = 5 + 10 * number
        events += [note(at, 4, name), call(at + 1, 1, number + 1), kernel(100 + start, end - start, number + 1)]
    return events


@pytest.mark.parametrize("dialect", ["gpuscope::{}#micro_batch={},stage={}", "{}#micro_batch={},stage={}", "PP"])
def test_computations_from_ranges_around_launches(tmp_path: Path, dialect: str) -> None:
    """Times are those of the kernels, not of the ranges, which the host has long left behind."""
    for rank in (0, 1):
        write_kineto(tmp_path / f"rank{rank}.json", *ranged(rank, ranges=dialect), rank=rank, world_size=2)
    report = gpuscope.analyze(tmp_path).report
    told = pipeline(report)
    assert [(one["rank"], one["stage"]) for one in told["stages"]] == [(0, 0), (1, 1)]
    assert (told["schedule"]["name"], told["bubble_frac"]) == ("1f1b", pytest.approx(1 / 3))
    assert [row["dur_ns"] for row in told["rows"]] == [90_000, 90_000]
    assert report["slowdown"]["total"] == pytest.approx(1)


def test_the_unbalanced_stage_is_named(tmp_path: Path) -> None:
    """The quick stage computes 60 µs of the 120 that the slow one does: 30 µs of idle time on average over the two. The
    pipeline takes 150 µs; evened out forwards take 15 and backwards 30: 135. The step is the longest rank's, 150 µs on
    rank 0 (rank 1's kernels run from 10 to 130)."""
    for rank in (0, 1):
        write_kineto(tmp_path / f"rank{rank}.json", *ranged(rank, slow=2), rank=rank, world_size=2)
    report = gpuscope.analyze(tmp_path).report
    (finding,) = (one for one in report["findings"] if one["code"] == "pipeline_imbalance")
    assert (finding["ranks"], finding["cost_ns_per_step"]) == ([1], 30_000)
    assert "With an even split: step 150.0 µs → 135.0 µs (" in finding["message"]
    assert "stage 1 (the last) computes 60.00 µs per micro-batch, the other one 30.00 µs" in finding["message"]
    assert finding["message"].endswith("an uneven split can't be distinguished from a slow rank")
    assert (finding["evidence"][0]["rank"], finding["evidence"][0]["dur_ns"]) == (1, 40_000)
    slowdown = report["slowdown"]
    assert (slowdown["replayed_step_ns"], slowdown["ideal_step_ns"]) == (150_000, 135_000)


def test_where_the_replay_refuses_the_section_gives_its_reason(tmp_path: Path) -> None:
    """Weight gradients computed apart: an even split is modelled, other micro-batches are not."""
    for stage, times in enumerate(([(0, 10), (30, 40), (40, 50)], [(10, 20), (20, 30), (30, 40)])):
        events = [note(0, 60, "train step 1"), note(1000, 6, "train step 2")]
        for number, (name, (start, end)) in enumerate(
            zip(("forward", "backward", "backward_weight"), times, strict=True)
        ):
            at = 5 + 10 * number
            events += [
                note(at, 4, f"{name}#micro_batch=0,stage={stage}"),
                call(at + 1, 1, number + 1),
                kernel(100 + start, end - start, number + 1),
            ]
        write_kineto(tmp_path / f"rank{stage}.json", *events, rank=stage, world_size=2)
    told = pipeline(gpuscope.analyze(tmp_path).report)
    assert told["more_micro_batches"] == {
        "micro_batches": 2,
        "step_factor": None,
        "predicted": None,
        "why_not": "weight gradients are computed apart here: only an even split is modelled",
    }
    assert told["even_split"]["step_factor"] == 1


def test_a_stage_that_is_slow_in_some_pipelines_only(tmp_path: Path) -> None:
    """Three pipelines: ranks 0 and 3 even, 1 and 4 as well as 2 and 5 with a slow stage 1."""
    for rank in range(6):
        stage, at = divmod(rank, 3)
        write_kineto(tmp_path / f"rank{rank}.json", *ranged(stage, slow=2 if at else 1), rank=rank, world_size=6)
    report = gpuscope.analyze(tmp_path).report
    assert report["pipeline"]["basis"].endswith("pipelines take the ranks of each stage in their order")
    (finding,) = (one for one in report["findings"] if one["code"] == "pipeline_imbalance")
    assert finding["ranks"] == [4, 5]
    assert finding["message"].endswith("only in 2 of 3 pipelines, so a slow rank is more likely than an uneven split")


def test_a_missing_rank_leaves_the_stages_and_says_what_to_record(tmp_path: Path) -> None:
    write_kineto(tmp_path / "rank0.json", *ranged(0), rank=0, world_size=2)
    report = gpuscope.analyze(tmp_path).report
    told = report["pipeline"]
    assert "schedule" not in told
    assert told["incomplete"] == "only 1 of 2 ranks have computations: record all ranks"
    assert "slowdown" not in report


# ---- recorded runs ----


def analysed(samples: Path, name: str) -> Report:
    return report(samples / name)


def test_recorded_pipelines(samples: Path) -> None:
    """sample_traces/MANIFEST.md: two ranks, 1F1B, four micro-batches, nothing injected; two in the other run."""
    for name, micro_batches in (("pp_1f1b", 4), ("pp_few_micro_batches", 2)):
        report = analysed(samples, name)
        told = pipeline(report)
        assert (told["schedule"]["name"], told["schedule"]["micro_batches"]) == ("1f1b", micro_batches)
        assert told["bubble_frac"] >= told["schedule"]["ideal_bubble_frac"] == 1 / (micro_batches + 1)  # type: ignore[operator]
        assert "few_micro_batches" in {finding["code"] for finding in report["findings"]}
        assert len(told["timeline"]["computations"]) == 4 * micro_batches == len(told["timeline"]["ideal"])


def test_one_answer_to_one_question(samples: Path) -> None:
    """The section, the finding's message and the suggestion give what the replay predicts, number by number."""
    analysis = gpuscope.analyze(samples / "pp_unbalanced_stage")
    assert analysis.replayer is not None
    told, report = pipeline(analysis.report), analysis.report
    for gain, change in (("even_split", EvenStages()), ("more_micro_batches", MicroBatches(8))):
        outcome = analysis.replayer.predict(change)
        assert isinstance(outcome, Predicted)
        assert told[gain]["predicted"] == {  # type: ignore[literal-required]
            "step_ns_before": outcome.before,
            "step_ns_after": outcome.after,
            "low_ns": outcome.low,
            "high_ns": outcome.high,
            "basis": outcome.basis,
            "provenance": outcome.provenance,
        }
    (suggested,) = (one for one in report["suggestions"] if one["code"] == "even_stages")
    assert suggested["predicted"] == told["even_split"]["predicted"]
    (finding,) = (one for one in report["findings"] if one["code"] == "pipeline_imbalance")
    assert step_change(suggested["predicted"]) in finding["message"]


def test_recorded_unbalanced_stage(samples: Path) -> None:
    """The last stage runs its blocks' forward three times more."""
    (finding,) = (f for f in analysed(samples, "pp_unbalanced_stage")["findings"] if f["code"] == "pipeline_imbalance")
    assert finding["ranks"] == [1]
    assert {one["name"] for one in finding["evidence"]} == {"forward"}


def test_stages_with_tensor_parallel_ranks(samples: Path) -> None:
    """Four ranks, pp=2 × tp=2: ranks 0 and 2 are one pipeline. What a rank computes and what it waits for inside
    that the replay can't tell."""
    report = analysed(samples, "3d_healthy")
    places = {one["rank"]: (one["pipeline"], one["stage"]) for one in pipeline(report)["stages"]}
    assert places == {0: (0, 0), 2: (0, 1), 1: (1, 0), 3: (1, 1)}
    (why,) = (one["why"] for one in report["analyzers"] if one["name"] == "slowdown")
    assert "collectives within its computations" in why


@pytest.mark.parametrize("name", ["cp_healthy", "ddp_healthy", "tp_healthy", "ep_healthy"])
def test_other_parallelisms_are_no_pipeline(samples: Path, name: str) -> None:
    """Ring attention sends and receives too."""
    assert "pipeline" not in analysed(samples, name)


def without_ranges(recording: Path, folder: Path) -> Path:
    """A recording of `gpuscope train`, as a job without ranges around its computations would have been recorded."""
    for path in recording.glob("rank*.json.gz"):
        trace = json.loads(gzip.decompress(path.read_bytes()))
        trace["traceEvents"] = [e for e in trace["traceEvents"] if not str(e.get("name")).startswith("gpuscope::")]
        (folder / path.name.removesuffix(".gz")).write_text(json.dumps(trace))
    return folder


@pytest.mark.parametrize("name", ["pp_1f1b", "pp_few_micro_batches", "pp_unbalanced_stage"])
def test_messages_show_what_ranges_would(samples: Path, tmp_path: Path, name: str) -> None:
    """The same computations, each within 3 % of the step of what its range says, and the same even split."""
    named, told = pipeline(analysed(samples, name)), pipeline(report(without_ranges(samples / name, tmp_path)))
    assert told["schedule"] == named["schedule"]
    assert "computations lie between messages" in told["basis"]
    step = named["rows"][0]["dur_ns"]
    for one, other in zip(ordered(told), ordered(named), strict=True):
        assert (one["rank"], one["kind"], one["micro_batch"]) == (other["rank"], other["kind"], other["micro_batch"])
        assert abs(one["start_ns"] - other["start_ns"]) < 0.03 * step
        assert abs(one["dur_ns"] - other["dur_ns"]) < 0.03 * step
    gain, other = told["even_split"]["predicted"], named["even_split"]["predicted"]
    assert gain is not None
    assert other is not None
    assert gain["step_ns_after"] == pytest.approx(other["step_ns_after"], rel=0.02)


def ordered(section: Pipeline) -> list[PipelineComputation]:
    return sorted(section["timeline"]["computations"], key=lambda one: (one["rank"], one["start_ns"]))


@pytest.mark.parametrize(("one_by_one", "schedule"), [(False, "gpipe"), (True, "1f1b")])
def test_messages_on_gpus(tmp_path: Path, one_by_one: bool, schedule: str) -> None:
    """Simulated: four stages, one of them slower; rank 1's computations are where its ranges say."""
    job = replace(COMPUTE, parallel="pipeline", ranks=4, layers=1, stage_slow={1: 1.4}, one_by_one=one_by_one)
    sections = []
    for ranges in (True, False):
        case = Case(replace(job, name=f"{schedule} {ranges}", pipeline_ranges=ranges), "")
        sections.append(pipeline(report(case.write(tmp_path))))
    named, told = sections
    assert told["schedule"]["name"] == named["schedule"]["name"] == schedule
    assert [{**one} for one in ordered(told)] == [{**one} for one in ordered(named)]


def test_messages_that_do_not_add_up_show_no_computations(samples: Path, tmp_path: Path) -> None:
    """A rank of which a third of the messages is missing: which micro-batch is which would be a guess."""
    folder = without_ranges(samples / "pp_1f1b", tmp_path)
    path = folder / "rank0.json"
    trace = json.loads(path.read_text())
    sends = [e for e in trace["traceEvents"] if e.get("name") in ("c10d::send", "gloo:send")]
    gone = {id(e) for e in sends[::3]}
    trace["traceEvents"] = [e for e in trace["traceEvents"] if id(e) not in gone]
    path.write_text(json.dumps(trace))
    told = report(folder)["pipeline"]
    assert "schedule" not in told
    assert told["incomplete"]


def test_a_foreign_recording_without_ranges(shared_traces: Path) -> None:
    """By hand: rank 0 sends four times, then receives each gradient behind a send: 1F1B of four micro-batches."""
    told = pipeline(report(shared_traces / "cpu_gloo" / "pp"))
    assert [(one["rank"], one["stage"]) for one in told["stages"]] == [(0, 0), (1, 1)]
    assert (told["schedule"]["name"], told["schedule"]["micro_batches"]) == ("1f1b", 4)


@pytest.mark.parametrize(("job", "pipelines", "micro_batches"), [("ST", 2, 4), ("AR", 4, 32)])
def test_published_jobs(shared_traces: Path, job: str, pipelines: int, micro_batches: int) -> None:
    """Production jobs of four stages; parts sum everywhere, and the slow stage or rank is the one others wait for."""
    told = pipeline(report(shared_traces / "straggler" / f"trace-{job}.parquet"))
    assert len({one["pipeline"] for one in told["stages"]}) == pipelines
    schedule = told["schedule"]
    assert (schedule["name"], schedule["stages"], schedule["micro_batches"]) == ("1f1b", 4, micro_batches)
    assert schedule["ideal_bubble_frac"] == 3 / (micro_batches + 3)
    for row in told["rows"]:
        parts: dict[str, Any] = dict(row["bubble_ns"])
        assert row["compute_ns"] + sum(parts.values()) == row["dur_ns"]
    culprit = [row for row in told["rows"] if (row["stage"] == 3 if job == "ST" else row["rank"] == 0)]
    assert all(row["bubble_ns"]["imbalance"] == 0 for row in culprit)

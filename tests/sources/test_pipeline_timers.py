"""Timers of pipeline stages as Primus writes them: bubbles by hand beside ours, known schedules, bad files."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

import gpuscope
from gpuscope.errors import InputError

Times = dict[tuple[str, int, int, int], tuple[float, float]]
"""Kind, stage, chunk and micro-batch, with begin and end in ms."""


def laid_out(orders: list[list[tuple[str, int, int]]], cost: list[float], stages: int, chunks: int) -> Times:
    """When each stage computes what, in these orders of (kind, chunk, micro-batch), as soon as its input is there;
    a forward takes the stage's cost, a backward twice that."""
    done: Times = {}
    at, free = [0] * stages, [0.0] * stages
    last = stages * chunks - 1
    while any(place < len(own) for place, own in zip(at, orders, strict=True)):
        for stage, own in enumerate(orders):
            if at[stage] == len(own):
                continue
            kind, chunk, batch = own[at[stage]]
            place = chunk * stages + stage
            before = place - 1 if kind == "fwd" else place + 1
            feeds = (
                ("fwd", *divmod(place, stages)[::-1], batch)
                if kind == "bwd" and place == last
                else (kind, before % stages, before // stages, batch)
            )
            first = kind == "fwd" and not place
            if first or feeds in done:
                begin = max(free[stage], 0.0 if first else done[feeds][1])
                free[stage] = begin + cost[stage] * (1 if kind == "fwd" else 2)
                done[kind, stage, chunk, batch] = (begin, free[stage])
                at[stage] += 1
    return done


def one_f_one_b(stages: int, batches: int) -> list[list[tuple[str, int, int]]]:
    orders = []
    for stage in range(stages):
        ahead = min(stages - stage - 1, batches)
        own = [("fwd", 0, batch) for batch in range(ahead)]
        for batch in range(batches - ahead):
            own += [("fwd", 0, ahead + batch), ("bwd", 0, batch)]
        orders.append(own + [("bwd", 0, batch) for batch in range(batches - ahead, batches)])
    return orders


def interleaved(stages: int, batches: int, chunks: int) -> list[list[tuple[str, int, int]]]:
    """Megatron's: groups of as many micro-batches as stages go through all chunks."""
    groups = range(0, batches, stages)
    forwards = [("fwd", c, b) for g in groups for c in range(chunks) for b in range(g, g + stages)]
    backwards = [("bwd", c, b) for g in groups for c in reversed(range(chunks)) for b in range(g, g + stages)]
    orders = []
    for stage in range(stages):
        ahead = min(2 * (stages - stage - 1) + (chunks - 1) * stages, len(forwards))
        own = forwards[:ahead]
        for at in range(len(forwards) - ahead):
            own += [forwards[ahead + at], backwards[at]]
        orders.append(own + backwards[len(forwards) - ahead :])
    return orders


def written(folder: Path, done: Times, stages: int, chunks: int = 1, iterations: int = 6) -> Path:
    for stage in range(stages):
        one: dict[str, Any] = {"memory": 10.0}
        for kind in ("fwd", "bwd"):
            own = sorted(times for key, times in done.items() if key[:2] == (kind, stage))
            one[f"{kind}_start"], one[f"{kind}_end"] = [begin for begin, _ in own], [end for _, end in own]
        one["total"] = max(one["bwd_end"])
        content = {str(number + 1): one for number in range(iterations)}
        (folder / f"pp_rank_{stage}.json").write_text(json.dumps(content))
    (folder / "config.json").write_text(json.dumps({"world_size": stages, "pp_size": stages, "vp_size": chunks}))
    return folder


def test_bubbles_of_a_real_run_are_those_by_hand(shared_traces: Path) -> None:
    folder = shared_traces / "pipeline" / "primus_pp8"
    raw = [json.loads((folder / f"pp_rank_{stage}.json").read_text())["10"] for stage in range(8)]
    length = max(max(one["bwd_end"]) for one in raw) - min(one["fwd_start"][0] for one in raw)
    busy = [sum(one["fwd_end"]) - sum(one["fwd_start"]) + sum(one["bwd_end"]) - sum(one["bwd_start"]) for one in raw]
    report = gpuscope.analyze(folder).report
    rows = [row for row in report["pipeline"]["rows"] if row["step"] == 10]
    ours = [sum(row["bubble_ns"].values()) / row["dur_ns"] for row in rows]
    assert ours == pytest.approx([1 - own / length for own in busy], abs=1e-6)
    schedule = report["pipeline"]["schedule"]
    assert (schedule["name"], schedule["micro_batches"]) == ("1f1b", 16)
    assert schedule["ideal_bubble_frac"] == pytest.approx(7 / 23)
    verdict = report["verdict"]
    assert (verdict["bound_by"], verdict["cause"]) == ("communication", "pipeline_bubble")
    codes = {one["code"]: one for one in report["findings"]}
    assert codes["slow_stage"]["ranks"] == [7]
    assert "warmup" in codes


@pytest.mark.parametrize(("stages", "batches", "chunks"), [(4, 8, 1), (4, 8, 2), (2, 6, 3)])
def test_an_even_pipeline_has_the_bubble_of_its_formula(tmp_path: Path, stages: int, batches: int, chunks: int) -> None:
    orders = one_f_one_b(stages, batches) if chunks == 1 else interleaved(stages, batches, chunks)
    done = laid_out(orders, [10.0] * stages, stages, chunks)
    pipeline = gpuscope.analyze(written(tmp_path, done, stages, chunks)).report["pipeline"]
    ideal = (stages - 1) / (chunks * batches + stages - 1)
    assert pipeline["schedule"]["name"] == ("1f1b" if chunks == 1 else "interleaved_1f1b")
    assert (pipeline["bubble_frac"], pipeline["schedule"]["ideal_bubble_frac"]) == pytest.approx((ideal, ideal))


def test_a_long_stage_is_named_and_an_even_split_predicted(tmp_path: Path) -> None:
    cost = [10.0, 10.0, 20.0, 10.0]
    before, after = (laid_out(one_f_one_b(4, 8), own, 4, 1) for own in (cost, [12.5] * 4))
    report = gpuscope.analyze(written(tmp_path, before, 4)).report
    (slow,) = (one for one in report["findings"] if one["code"] == "slow_stage")
    assert slow["ranks"] == [2]
    truth = max(end for _, end in after.values()) / max(end for _, end in before.values())
    assert report["pipeline"]["even_split"]["step_factor"] == pytest.approx(truth, rel=0.001)
    assert next(one for one in report["suggestions"] if one["code"] == "even_stages")


def test_a_stage_that_is_missing_is_said(tmp_path: Path) -> None:
    written(tmp_path, laid_out(one_f_one_b(4, 8), [10.0] * 4, 4, 1), 4)
    (tmp_path / "pp_rank_2.json").unlink()
    report = gpuscope.analyze(tmp_path).report
    assert report["verdict"]["abstained"]
    assert "only 3 of 4 ranks" in report["pipeline"]["incomplete"]


def test_settings_are_those_of_megatron(tmp_path: Path) -> None:
    """Which has no other schedule than the interleaved one, and runs the plain one already."""
    written(tmp_path, laid_out(one_f_one_b(4, 4), [10.0] * 4, 4, 1), 4)
    report = gpuscope.analyze(tmp_path).report
    assert report["trace"]["frameworks"] == ["megatron"]
    asked = {one["setting"]["name"] for one in (*report["suggestions"], *report["advice"]["unpredicted"])}
    assert "--num-virtual-stages-per-pipeline-rank" in asked
    assert not {name for name in asked if name.startswith("torch.")}


def test_bad_files_are_told(tmp_path: Path) -> None:
    folder = written(tmp_path, laid_out(one_f_one_b(2, 4), [10.0] * 2, 2, 1), 2)
    path = folder / "pp_rank_1.json"
    whole = json.loads(path.read_text())
    whole["3"]["fwd_end"][0], whole["3"]["bwd_start"] = -5.0, whole["3"]["bwd_start"][:-1]
    path.write_text(json.dumps(whole))
    problems = {one["code"]: one["count"] for one in gpuscope.analyze(folder).report["problems"]}
    assert problems["bad_time"] == 2
    path.write_text(json.dumps(whole)[:-40])
    with pytest.raises(InputError, match=r"pp_rank_1\.json: timers of a pipeline stage that can't be read"):
        gpuscope.analyze(folder)
    path.write_text('{"1": {"fwd_start": [], "fwd_end": []}}')
    with pytest.raises(InputError, match="holds no computations"):
        gpuscope.analyze(folder)


def test_iterations_lie_end_to_end(tmp_path: Path) -> None:
    folder = written(tmp_path, laid_out(one_f_one_b(2, 4), [10.0] * 2, 2, 1), 2)
    steps = gpuscope.open_trace(folder / "pp_rank_1.json").tables["steps"]
    length = json.loads((folder / "pp_rank_0.json").read_text())["1"]["total"]
    assert [later - begin for begin, later in pairwise(steps["start"].tolist())] == [round(length * 1e6)] * 5

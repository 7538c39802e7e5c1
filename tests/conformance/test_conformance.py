"""What recorders do that one would not expect (docs/formats.md), on tiny jobs recorded with torch 2.13 (record.py)."""

from __future__ import annotations

import gzip
import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest

import gpuscope
from gpuscope.schema.document import Report

INPUTS = Path(__file__).parent / "inputs"


@cache
def report(name: str) -> Report:
    return gpuscope.analyze(INPUTS / name).report


def codes(name: str) -> set[str]:
    return {finding["code"] for finding in report(name)["findings"]}


def problems(name: str) -> dict[str, int]:
    return {problem["code"]: problem["count"] for problem in report(name)["problems"]}


def suggested(name: str) -> set[str]:
    return {suggestion["code"] for suggestion in report(name)["suggestions"]}


def operations(name: str) -> dict[str, int]:
    """Instances by operation."""
    found: dict[str, int] = {}
    for row in report(name)["collectives"]:
        found[row["op"]] = found.get(row["op"], 0) + row["count"]
    return found


def test_every_input_is_listed_and_small() -> None:
    files = list(INPUTS.glob("*/rank*.json.gz"))
    assert len(files) >= 25
    assert sum(path.stat().st_size for path in files) < 2_000_000
    for path in files:
        assert b"/home/" not in gzip.decompress(path.read_bytes())


@pytest.mark.parametrize("name", ["debug_detail", "monitored_barrier"])
def test_messages_that_a_setting_or_a_barrier_adds_make_no_pipeline(name: str) -> None:
    assert "pipeline_bubble" not in codes(name)
    assert "pipeline" not in report(name)
    assert not {"send", "recv"} & set(operations(name))


def test_debug_checks_are_named() -> None:
    assert "debug_checks" in codes("debug_detail")
    assert "debug_checks" not in codes("monitored_barrier")


def test_a_rank_that_a_barrier_waits_for_is_late() -> None:
    verdict = report("monitored_barrier")["verdict"]
    assert (verdict["bound_by"], verdict["cause"]) == ("communication", "straggler")
    assert [row["rank"] for row in report("monitored_barrier")["stragglers"] if row["recurrent"]] == [1]


@pytest.mark.parametrize("name", ["pipeline_gpipe", "pipeline_1f1b", "pipeline_interleaved"])
def test_a_pipeline_is_told_with_any_ranges_or_none(name: str) -> None:
    verdict = report(name)["verdict"]
    assert (verdict["bound_by"], verdict["cause"]) == ("communication", "pipeline_bubble")
    assert report(name)["pipeline"]["schedule"]["micro_batches"] == 4


def test_receives_that_last_until_the_wait_are_no_place_of_host_work() -> None:
    """Between post and wait Python ran: 4 ms of sleep among matrix products."""
    found = next(finding for finding in report("early_receive")["findings"] if finding["code"] == "host_other")
    assert "gloo:" not in found["message"]
    assert report("early_receive")["verdict"]["cause"] == "host_other"
    assert "pipeline_bubble" not in codes("early_receive")


def test_gloos_reduce_scatter_is_the_all_reduce_that_it_runs() -> None:
    """Of 8,192 floats: gloo moves the whole array, 32,768 bytes, twice what the rank keeps."""
    (row,) = report("reduce_scatter")["collectives"]
    assert row["op"] == "all_reduce"
    assert row["bytes"] == row["count"] * 8192 * 4


def test_dtensors_operators_count_with_the_shapes_of_the_shard() -> None:
    """Column-wise, then row-wise: a product of 64 × 512 by 512 × 256 and one of 64 × 256 by 256 × 512 forward."""
    rows = [row for row in report("dtensor")["kernels"] if row["name"] in ("aten::addmm", "aten::linear")]
    assert rows
    assert {flops_of(row) for row in rows} == {2 * 64 * 512 * 256}


def flops_of(row: Any) -> int:
    """Of one call."""
    return round(row["flops_per_s"] * row["dur_ns"] / 1e9 / row["count"])


def test_bitmaps_of_ddps_first_step_are_collectives_of_that_step_alone() -> None:
    sizes = [
        row["bytes"] // row["count"] for row in report("ddp_first_steps")["collectives"] if row["op"] == "all_reduce"
    ]
    assert sizes
    assert report("ddp_first_steps")["verdict"]["bound_by"] == "communication"


def test_all_reduces_of_one_element_that_join_leaves_behind_are_counted() -> None:
    """Per step two of one element and one of the gradients: 3 · 4,160 floats."""
    assert operations("join_left")["all_reduce"] == 15


def test_a_closures_forward_and_backward_are_no_optimizer() -> None:
    assert not {code for code in suggested("closure") if "fused" in code}
    assert report("closure")["verdict"]["bound_by"] == "cpu"


def test_a_forward_pass_within_a_backward_is_no_communication_and_no_error() -> None:
    assert report("checkpointed")["verdict"]["bound_by"] == "compute"
    assert not {code for code in problems("checkpointed") if "nest" in code}


def test_names_with_quotes_break_events_and_are_counted() -> None:
    """The range «layer "3"» of each of four steps is no JSON; the others came under names that torch made of them."""
    assert problems("strange_names")["undecodable_event"] == 4
    names = {event["name"] for event in events("strange_names") if event.get("cat") == "user_annotation"}
    assert {"unknown", "a/b", "twolines"} <= names
    assert report("strange_names")["verdict"]["bound_by"] == "compute"


def events(name: str) -> list[dict[str, Any]]:
    """Those that are valid JSON, one by one."""
    text = gzip.decompress((INPUTS / name / "rank0.json.gz").read_bytes()).decode(errors="replace")
    decoder, found, at = json.JSONDecoder(), [], text.index('"traceEvents"')
    while (at := text.find("{", at + 1)) >= 0:
        try:
            event, end = decoder.raw_decode(text, at)
        except ValueError:
            continue
        found.append(event)
        at = end - 1
    return found


def test_metadata_with_quotes_costs_the_entry_and_not_the_file() -> None:
    assert problems("metadata_quotes") == {"broken_metadata": 1}
    assert report("metadata_quotes")["verdict"]["bound_by"] == "compute"


def test_ranges_that_cross_python_frames_keep_the_breakdown() -> None:
    (rank,) = report("stacks")["ranks"]
    assert sum(rank["breakdown_ns"].values()) == rank["window_ns"]
    assert report("stacks")["verdict"]["bound_by"] == "compute"


def test_a_step_that_never_ran_is_not_judged() -> None:
    """A cycle of five, of which the loop ran four: ProfilerStep#11 begins and nothing runs in it."""
    last = max(row["step"] for row in report("cut_cycle")["steps"] if row["step"] is not None)
    roles = {row["step"]: row["role"] for row in report("cut_cycle")["steps"]}
    assert roles[last] != "steady" or last < 11
    assert report("cut_cycle")["verdict"]["bound_by"] == "compute"


def test_collection_that_was_paused_is_host_time_between_two_operators() -> None:
    """Nothing in the file tells the pause: the gap is named by its neighbours, and no operator is blamed."""
    verdict = report("paused")["verdict"]
    assert (verdict["bound_by"], verdict["cause"]) == ("cpu", "host_other")
    (found,) = (row for row in report("paused")["findings"] if row["code"] == "host_other")
    assert found["evidence"][0]["name"] == "between aten::matmul and aten::ones"


def test_attention_is_counted_though_the_recorder_counts_none() -> None:
    """with_flops writes nothing into the file: 4·b·h·s²·d of 2 × 4 heads, 128 tokens and 64 wide, by the shapes."""
    (row,) = (row for row in report("attention")["kernels"] if row["category"] == "attention")
    assert flops_of(row) == 4 * 2 * 4 * 128 * 128 * 64


def resaved(tmp_path: Path, change: Any) -> Report:
    """The trace of `attention` as another tool wrote it again."""
    trace = json.loads(gzip.decompress((INPUTS / "attention" / "rank0.json.gz").read_bytes()))
    path = tmp_path / "trace.json"
    path.write_text(change(trace))
    return gpuscope.analyze(path).report


def test_keys_in_another_order_change_nothing(tmp_path: Path) -> None:
    """As jq -S and some viewers save it."""
    again = resaved(tmp_path, lambda trace: json.dumps(trace, sort_keys=True))
    assert again["ranks"][0]["breakdown_ns"] == report("attention")["ranks"][0]["breakdown_ns"]

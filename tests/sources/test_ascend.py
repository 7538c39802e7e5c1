"""Ascend's `trace_view.json`, synthetic: parts of a window as its vendor counts them, worked out by hand (µs)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import gpuscope
from gpuscope.schema.document import Report

HARDWARE, HCCL, HOST, OVERLAP = 10, 20, 30, 40
START = 1_700_000_000_000_000


def span(pid: int, tid: int, name: str, at: int, dur: int, **args: Any) -> dict[str, Any]:
    """Times are decimal text, as torch_npu writes them."""
    return {"ph": "X", "pid": pid, "tid": tid, "name": name, "ts": f"{START + at}.000", "dur": dur, "args": args}


def process(pid: int, name: str) -> dict[str, Any]:
    return {"ph": "M", "pid": pid, "name": "process_name", "args": {"name": name}}


def trace(folder: Path, rank: int) -> Path:
    """Compute 0–10 and 30–40, an all-reduce 5–25, a copy 26–28; an event record is no work."""
    task = (START + 30) * 1000
    events = [
        process(HARDWARE, "Ascend Hardware"),
        process(HCCL, "HCCL"),
        process(HOST, "Python"),
        span(HARDWARE, 2, "MatMul", 0, 10, **{"Task Type": "AI_CORE"}),
        span(HARDWARE, 2, "MEMCPY_ASYNC", 26, 2, **{"Task Type": "MEMCPY_ASYNC"}),
        span(HARDWARE, 2, "EVENT_RECORD", 28, 1, **{"Task Type": "EVENT_RECORD"}),
        span(HARDWARE, 2, "Add", 30, 10, **{"Task Type": "AI_VECTOR_CORE"}),
        span(HCCL, 5, "hcom_allReduce__437_3_1", 5, 20, count=1024, data_type="FP32"),
        span(HCCL, 6, "Memcpy", 6, 3),  # a task of it: its time is in the operation's
        span(HOST, 1, "aten::add", 27, 2) | {"cat": "cpu_op"},
        {
            "ph": "s",
            "pid": HOST,
            "tid": 1,
            "cat": "async_npu",
            "name": "async_npu",
            "id": task,
            "ts": f"{START + 28}.000",
        },
    ]
    out = folder / "ASCEND_PROFILER_OUTPUT" / "trace_view.json"
    out.parent.mkdir(parents=True)
    out.write_text(json.dumps(events))
    (folder / f"profiler_info_{rank}.json").write_text(json.dumps({"torch_npu_version": "2.1.0"}))
    return out


def test_parts_as_the_vendor_counts_them(tmp_path: Path) -> None:
    """Its step_trace_time.csv would say: computing 20, communication 20 of which 15 are not overlapped, free 5."""
    found = gpuscope.open_trace(trace(tmp_path / "rank1_ascend_pt", rank=1))
    (lane,) = found.lanes()
    parts = found.breakdown(lane.rows)
    assert (parts.window, parts.compute) == (40_000, 20_000)
    assert (parts.communication, parts.exposed_communication, parts.overlapped_communication) == (20_000, 15_000, 5_000)
    assert (parts.exposed_memory, parts.idle) == (2_000, 3_000)
    assert parts.idle + parts.exposed_memory == 5_000  # «Free»


def test_rank_collective_and_launch(tmp_path: Path) -> None:
    found = gpuscope.open_trace(trace(tmp_path / "rank1_ascend_pt", rank=1))
    assert found.ranks == [1]
    (collective,) = found.tables["collectives"].to_dict("records")
    assert (collective["op"], collective["seq"]) == ("all_reduce", 3)
    device = found.tables["device_events"].set_index("name")
    launched = found.tables["host_events"]["name"][int(device["launch"]["Add"])]
    assert (launched, device["launch"].isna()["MatMul"]) == ("aten::add", True)
    assert found.tables["syncs"]["name"].tolist() == ["EVENT_RECORD"]


def older(folder: Path, rank: int, task_type: str | None, computing: int = 2_600) -> Path:
    """As older versions write it: only names tell what the tasks are. Stream 2 computes, stream 4 carries an
    all-reduce. Ten times: kernels 0–200 and 240–300, an all-reduce 250–900, nothing until 1000 (µs); and «Computing»
    of `computing` in all, as the vendor's own analysis has it."""
    told = {} if task_type is None else {"Task Type": task_type}
    events = [
        process(HARDWARE, "Ascend Hardware"),
        process(HCCL, "HCCL"),
        process(HOST, "Python"),
        process(OVERLAP, "Overlap Analysis"),
    ]
    for step in range(10):
        at = 1_000 * step
        events += [
            span(HOST, 1, f"ProfilerStep#{step}", at, 990) | {"cat": "user_annotation"},
            span(HARDWARE, 2, "aclnnAddmm_MatMulCommon_MatMulV2", at, 200, **told),
            span(HARDWARE, 2, "EVENT_WAIT", at + 200, 40, **told),
            span(HARDWARE, 2, "aclnnLabelSmooth_WaitStreamModel", at + 240, 60, **told),
            span(HARDWARE, 2, "EVENT_RECORD", at + 300, 5, **told),
            span(HARDWARE, 4, "Notify Wait", at + 250, 300, **told),
            span(HARDWARE, 4, "SDMA", at + 550, 300, **told),
            span(HARDWARE, 4, "reduce_kernel_of_the_collective", at + 850, 50, **told),
            span(HCCL, 5, f"hcom_allReduce__437_{step}_1", at + 250, 650, count=1024, data_type="FP32"),
            span(OVERLAP, 0, "Computing", at, computing // 10),
            span(OVERLAP, 1, "Communication", at + 250, 650),
            span(OVERLAP, 2, "Communication(Not Overlapped)", at + 300, 600),
            span(OVERLAP, 3, "Free", at + 900, 100),
        ]
    out = folder / "ASCEND_PROFILER_OUTPUT" / "trace_view.json"
    out.parent.mkdir(parents=True)
    out.write_text(json.dumps(events))
    (folder / f"profiler_info_{rank}.json").write_text("{}")
    return out


def codes(report: Report, severity: str) -> list[str]:
    return [problem["code"] for problem in report["problems"] if problem["severity"] == severity]


@pytest.mark.parametrize("task_type", ["Other", "OTHER", "", "N/A", None])
def test_tasks_without_a_type_compute_unless_their_names_or_their_stream_say_otherwise(
    tmp_path: Path, task_type: str | None
) -> None:
    report = gpuscope.analyze(older(tmp_path / "a", 0, task_type), advice=False).report
    (rank,) = report["ranks"]
    found = rank["recorded_breakdown_ns"]
    assert (found["compute"], found["exposed_communication"]) == (2_600_000, 6_000_000)
    assert codes(report, "data_loss") == []


def test_totals_of_the_vendors_own_analysis_that_differ_are_told_and_take_confidence(tmp_path: Path) -> None:
    agreeing = gpuscope.analyze(older(tmp_path / "a", 0, "Other"), advice=False).report
    near = gpuscope.analyze(older(tmp_path / "b", 0, "Other", computing=2_700), advice=False).report
    far = gpuscope.analyze(older(tmp_path / "c", 0, "Other", computing=5_000), advice=False).report
    assert (codes(near, "data_loss"), codes(far, "data_loss")) == ([], ["totals_differ"])
    (told,) = (problem["message"] for problem in far["problems"] if problem["code"] == "totals_differ")
    assert "5.00 ms" in told
    assert "2.60 of 9." in told
    assert far["verdict"]["confidence"] <= 0.6 * agreeing["verdict"]["confidence"]


@pytest.mark.parametrize(("computing", "abstains"), [(2_600, False), (3_100, False), (3_700, True), (500, True)])
@pytest.mark.parametrize("beside", [False, True])
def test_totals_a_tenth_apart_leave_no_verdict(tmp_path: Path, computing: int, abstains: bool, beside: bool) -> None:
    """Ours are 2.6 of 9.9 ms; theirs stand in the trace, or in the table beside it."""
    path = older(tmp_path / "a", 0, "Other", computing=computing)
    if beside:
        events = [event for event in json.loads(path.read_text()) if event["pid"] != OVERLAP]
        path.write_text(json.dumps(events))
        head = "Step,Computing,Communication(Not Overlapped),Overlapped,Communication,Free"
        rows = [f"{step},{computing / 10},600,50,650,{390 - computing / 10}" for step in range(10)]
        (path.parent / "step_trace_time.csv").write_text("\n".join([head, *rows]))
    verdict = gpuscope.analyze(path, advice=False).report["verdict"]
    assert verdict["abstained"] == abstains
    assert (verdict["abstain_reason"] == "totals_contradict") == abstains
    assert ("ms of compute" in verdict["why"]) == abstains


def test_a_table_of_other_steps_is_no_witness(tmp_path: Path) -> None:
    """One step of ten, or no table at all that can be read: the events stand alone."""
    path = older(tmp_path / "a", 0, "Other")
    path.write_text(json.dumps([event for event in json.loads(path.read_text()) if event["pid"] != OVERLAP]))
    table = path.parent / "step_trace_time.csv"
    for text in (
        "Step,Computing,Communication(Not Overlapped),Overlapped,Communication,Free\n0,20,600,50,650,370",
        "Step,Computing\n0,20",
        "Step,Computing,Communication(Not Overlapped),Communication,Free\n0,a,b,c,d",
        "",
    ):
        table.write_text(text)
        report = gpuscope.analyze(path, advice=False).report
        assert codes(report, "data_loss") == []
        assert not report["verdict"]["abstained"]


def test_ranks_that_are_here_are_not_asked_for(tmp_path: Path) -> None:
    """The size of the job is not recorded; what is missing is not another file."""
    for rank in range(2):
        older(tmp_path / f"rank{rank}_ascend_pt", rank, "Other")
    report = gpuscope.analyze(tmp_path, advice=False).report
    assert report["trace"]["ranks_present"] == [0, 1]
    assert "add the traces" not in json.dumps(report)


def test_times_that_are_no_numbers_are_told(tmp_path: Path) -> None:
    path = older(tmp_path / "a", 0, "Other")
    events = json.loads(path.read_text())
    events[5]["dur"] = "long"
    del events[6]["ts"]
    path.write_text(json.dumps(events))
    (problem,) = (one for one in gpuscope.open_trace(path).problems if one.code == "bad_time")
    assert (problem.severity, problem.count) == ("data_loss", 2)


def test_the_vendors_analysis_alone_is_still_its_trace(tmp_path: Path) -> None:
    """A recording of marks (mstx) leaves «Overlap Analysis» and nothing else: no verdict, but whose trace it is."""
    out = tmp_path / "trace_view.json"
    out.write_text(json.dumps([process(OVERLAP, "Overlap Analysis"), span(OVERLAP, 2, "Computing", 0, 10)]))
    report = gpuscope.analyze(out).report
    assert report["trace"]["sources"][0]["format"] == "ascend"
    assert report["verdict"]["abstained"]

"""Ascend's `trace_view.json`, synthetic: parts of a window as its vendor counts them, worked out by hand (µs)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import gpuscope

HARDWARE, HCCL, HOST = 10, 20, 30
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
        process(HARDWARE, "Ascend Hardware"), process(HCCL, "HCCL"), process(HOST, "Python"),
        span(HARDWARE, 2, "MatMul", 0, 10, **{"Task Type": "AI_CORE"}),
        span(HARDWARE, 2, "MEMCPY_ASYNC", 26, 2, **{"Task Type": "MEMCPY_ASYNC"}),
        span(HARDWARE, 2, "EVENT_RECORD", 28, 1, **{"Task Type": "EVENT_RECORD"}),
        span(HARDWARE, 2, "Add", 30, 10, **{"Task Type": "AI_VECTOR_CORE"}),
        span(HCCL, 5, "hcom_allReduce__437_3_1", 5, 20, count=1024, data_type="FP32"),
        span(HCCL, 6, "Memcpy", 6, 3),  # a task of it: its time is in the operation's
        span(HOST, 1, "aten::add", 27, 2) | {"cat": "cpu_op"},
        {"ph": "s", "pid": HOST, "tid": 1, "cat": "async_npu", "name": "async_npu", "id": task,
         "ts": f"{START + 28}.000"},
    ]  # fmt: skip
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

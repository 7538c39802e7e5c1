"""A format is told by what a file holds, never by its name."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest
from helpers.kineto import kernel, write
from helpers.nsys import Export

import gpuscope
from gpuscope.sources.source import source_for

HOST = [
    {"ph": "X", "name": "aten::mm", "pid": 1, "tid": 1, "ts": f"{1_000_000 + at}.500", "dur": 1, "cat": "cpu_op"}
    for at in range(2_000)
]
NPU = [
    {"ph": "M", "name": "process_name", "pid": 2, "tid": 0, "args": {"name": "Ascend Hardware"}},
    {"ph": "X", "name": "MatMul", "pid": 2, "tid": 3, "ts": "1000000.500", "dur": 7, "args": {"Task Type": "AI_CORE"}},
]


@pytest.mark.parametrize("name", ["trace_view.json", "rank1.json", "other.json.gz"])
def test_ascend_under_any_name(tmp_path: Path, name: str) -> None:
    """As in real files, the host's events stand before the name of the NPU's rows: more than a sniffed beginning."""
    path = tmp_path / name
    text = json.dumps(HOST + NPU).encode()
    assert text.index(b"Ascend Hardware") > 1 << 16
    path.write_bytes(gzip.compress(text) if name.endswith(".gz") else text)
    trace = gpuscope.open_trace(path)
    assert trace.sources[0].format == "ascend"
    assert trace["device_events"]["end"].tolist() == [1_000_007_500]
    assert trace.ranks == [1 if name == "rank1.json" else 0]


def test_kineto_under_ascends_name(tmp_path: Path) -> None:
    assert source_for(write(tmp_path / "trace_view.json", kernel(0, 1)))[0].name == "kineto"


@pytest.mark.parametrize(
    ("name", "text", "source"),
    [
        ("trace_view.json", json.dumps(HOST), "kineto"),  # times as text alone are not Ascend's
        ("any.json", json.dumps({"notes": "x" * (1 << 17), "traceEvents": [kernel(0, 1)]}), "kineto"),
        # The job's own output comes first.
        ("job-1234", "step\n" * (1 << 14) + "n0:77:77 [0] NCCL INFO NCCL version 2.27.7+cuda12.8\n", "nccl-log"),
    ],
    ids=("times as text", "a long header", "a log under any name"),
)
def test_by_what_it_holds(tmp_path: Path, name: str, text: str, source: str) -> None:
    path = tmp_path / name
    path.write_text(text)
    assert source_for(path)[0].name == source


@pytest.mark.parametrize("name", ["export.nsys-rep", "export.bin", "trace_view.json"])
def test_an_export_under_any_name(tmp_path: Path, name: str) -> None:
    export = Export()
    export.kernel(0, 10, 1)
    assert source_for(export.write(tmp_path).rename(tmp_path / name))[0].name == "nsys"

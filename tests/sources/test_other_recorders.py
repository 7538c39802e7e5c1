"""Whose trace a file is: other recorders' Chrome traces are refused by name, torch.profiler's stay read."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest
from helpers import kineto

from gpuscope import open_trace
from gpuscope.errors import InputError
from gpuscope.sources import stream
from gpuscope.sources.source import source_of

Event = dict[str, Any]


def process(name: str, pid: int = 1, *, name_last: bool = False) -> Event:
    event = {"ph": "M", "pid": pid, "name": "process_name", "args": {"name": name}}
    return dict(reversed(event.items())) if name_last else event


def spans(count: int = 3, **keys: Any) -> list[Event]:
    return [{"ph": "X", "pid": 1, "tid": 1, "ts": 10 * i, "dur": 5, "name": f"n{i}", **keys} for i in range(count)]


OTHERS: list[tuple[str, Any]] = [
    ("JAX or TensorFlow", {"traceEvents": [process("/host:CPU"), *spans(), {}]}),
    ("JAX or TensorFlow", {"traceEvents": [process("/device:TPU:0", name_last=True), *spans(args={"run_id": 1})]}),
    ("JAX or TensorFlow", {"traceEvents": [process("/device:GPU:0"), process("/host:CPU", 7), *spans(cat="kernel")]}),
    ("TensorFlow's timeline", {"traceEvents": [process("/job:worker/task:0/device:GPU:0 Compute"), *spans(cat="Op")]}),
    ("ONNX Runtime", [*spans(cat="Session"), *spans(cat="Node"), *spans(cat="Kernel")]),
    ("PaddlePaddle", {"schemaVersion": "1.0.2", "traceEvents": [*spans(cat="Operator"), *spans(cat="OperatorInner")]}),
    (
        "PaddlePaddle",
        {
            "schemaVersion": "1.0.2",
            "deviceProperties": [{"id": 0, "name": "A100"}],
            "traceEvents": [*spans(cat="Kernel"), *spans(cat="Memcpy"), *spans(cat="ProfileStep")],
        },
    ),
    ("MindSpore", [process("AI Core Op"), *spans(), process("Host CPU Op")]),
    ("Composer", [process("Rank 0 training loop process"), *spans(cat="event,generic")]),
    ("Ray", [*spans(cat="task::train", tid="worker:ab12", pid="node:10.0.0.1")]),
    ("viztracer", {"traceEvents": spans(cat="FEE"), "viztracer_metadata": {"version": "1.0"}}),
    ("browser", {"traceEvents": [*spans(cat="__metadata"), *spans(cat="devtools.timeline,v8")], "metadata": {}}),
    ("eBPF", {"traceEvents": spans(cat="kernel"), "otherData": {"tool": "gpu-ebpf-tracer 0.3"}}),
    ("legacy autograd", [*spans(pid="CPU functions")]),
    ("rocprof", {"traceEvents": [process("CPU HIP API"), *spans()]}),
    ("NCCL profiler plugin", [{**event, "ph": "b", "id": 0} for event in spans(cat="COLL")]),
    ("another recorder", {"traceEvents": spans(cat="gpu")}),
    ("another recorder", {"traceEvents": spans()}),
]


@pytest.mark.parametrize(("name", "document"), OTHERS)
@pytest.mark.parametrize("packed", [False, True])
def test_refused_by_name(tmp_path: Path, name: str, document: Any, packed: bool) -> None:
    path = tmp_path / ("host.trace.json.gz" if packed else "host.json")
    text = json.dumps(document, indent=2 if name == "ONNX Runtime" else None).encode()
    path.write_bytes(gzip.compress(text) if packed else text)
    for named in (path, tmp_path):
        with pytest.raises(InputError, match=name) as caught:
            open_trace(named)
        assert caught.value.exit_code == 3
        assert caught.value.hint
        assert "ProfilerActivity" not in str(caught.value)


def test_metadata_fills_the_beginning(tmp_path: Path) -> None:
    """What stands behind a megabyte of names decides, for ours and for others."""
    names = [{"ph": "M", "pid": 1, "tid": i, "name": "thread_name", "args": {"name": f"t{i}"}} for i in range(20_000)]
    ours = kineto.write(tmp_path / "ours.json", *names, kineto.op(0, 5), kineto.call(1, 1, 1), kineto.kernel(3, 5, 1))
    assert len(open_trace(ours)["device_events"]) == 1
    other = tmp_path / "other.json"
    other.write_text(json.dumps([*names, process("/device:GPU:0"), *spans(cat="Kernel")]), encoding="utf-8")
    with pytest.raises(InputError, match="JAX"):
        open_trace(other)


@pytest.mark.parametrize(
    "events",
    [
        [kineto.kernel(0, 5), kineto.kernel(9, 5)],
        [kineto.python(0, 50, "train.py(3): main")],
        [kineto.note(0, 50, "ProfilerStep#1")],
        spans(cat="Operator"),
        [*spans(cat="Kernel", args={"device": 0, "stream": 7}), *spans(cat="Runtime")],
        [*spans(cat="KERNEL", args={"device": 0, "stream": 7})],
        spans(cat="privateuse1_runtime"),
        spans(cat="xpu_runtime"),
        [*spans(cat="FEE"), kineto.op(0, 5)],
        [process("/host:CPU"), *spans(), kineto.op(0, 5), kineto.call(1, 1, 1)],
        [kineto.op(0, 5, "Session"), kineto.op(7, 5, "ProfileStep")],
    ],
)
def test_torch_stays_read(tmp_path: Path, events: list[Event]) -> None:
    """Old spellings, thinned files, other devices, and files merged with another recorder's."""
    path = kineto.write(tmp_path / "rank0.json", *events)
    assert source_of(path).name == "kineto"
    trace = open_trace(path)
    assert len(trace["host_events"]) + len(trace["device_events"]) > 0


def test_marks_behind_shared_categories(tmp_path: Path) -> None:
    """Categories that both use come first, the mark of the other recorder last."""
    path = tmp_path / "p.json"
    path.write_text(json.dumps({"traceEvents": [*spans(30_000, cat="Operator"), *spans(cat="ProfileStep")]}))
    with pytest.raises(InputError, match="Paddle"):
        open_trace(path)


def test_empty_object_is_no_loss(tmp_path: Path) -> None:
    path = kineto.write(tmp_path / "a.json", kineto.op(0, 5), kineto.call(1, 1, 1), {}, kineto.kernel(3, 5, 1), {})
    trace = open_trace(path)
    assert not [problem for problem in trace.problems if problem.severity == "data_loss"]
    assert (len(trace["host_events"]), len(trace["device_events"])) == (2, 1)


def xplane(plane: str) -> bytes:
    body = b"\x08\x01\x12" + bytes([len(plane)]) + plane.encode() + b"\x1a\x03abc"
    return b"\x0a" + bytes([len(body)]) + body


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        ("host.xplane.pb", xplane("/host:CPU"), "xplane"),
        ("renamed.json", xplane("/device:GPU:0"), "xplane"),
        ("p.speedscope.json", b'{"$schema":"https://www.speedscope.app/file-format-schema.json"}', "speedscope"),
        (
            "q.json",
            b'{"profiles":[' + b"1," * 40_000 + b'1],"$schema":"https://www.speedscope.app/file-format-schema.json"}',
            "speedscope",
        ),
        ("rank0.json", b"<!DOCTYPE html>\n<html><head><title>Sign in</title></head></html>", "HTML"),
        ("rank0.json.gz", b"\n <HTML lang=en><body>404</body></HTML>", "HTML"),
        ("rank0.json", b"version https://git-lfs.github.com/spec/v1\noid sha256:ab\nsize 9\n", "Git LFS"),
        ("r.nsys-rep", b"version https://git-lfs.github.com/spec/v1\noid sha256:ab\nsize 9\n", "Git LFS"),
        ("rank0.json", b"../.git/annex/objects/aa/bb/MD5E-s9--ab.json", "git-annex"),
        ("rank0.json", b'<?xml version="1.0"?>\n<Error><Code>AccessDenied</Code></Error>', "storage"),
    ],
)
def test_no_trace_at_all(tmp_path: Path, name: str, content: bytes, says: str) -> None:
    path = tmp_path / name
    path.write_bytes(content)
    for named in (path, tmp_path):
        with pytest.raises(InputError, match=says) as caught:
            open_trace(named)
        assert caught.value.hint
        assert "operations-parquet" not in str(caught.value)


def test_pointer_among_traces_is_told(tmp_path: Path) -> None:
    """A rank that was not fetched is missing, not somebody else's file."""
    kineto.write(tmp_path / "rank0.json", kineto.op(0, 5), kineto.call(1, 1, 1), kineto.kernel(3, 5, 1))
    (tmp_path / "rank1.json").write_text("version https://git-lfs.github.com/spec/v1\noid sha256:ab\nsize 9\n")
    with pytest.raises(InputError, match=r"rank1\.json.*Git LFS"):
        open_trace(tmp_path)


def test_others_beside_traces_are_no_news(tmp_path: Path) -> None:
    kineto.write(tmp_path / "rank0.json", kineto.op(0, 5), kineto.call(1, 1, 1), kineto.kernel(3, 5, 1))
    (tmp_path / "result.json").write_text(json.dumps({"traceEvents": spans(cat="FEE"), "viztracer_metadata": {}}))
    assert open_trace(tmp_path).ranks == [0]


def test_head_of_ours_suffices(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A large trace is not searched to its end."""
    events = [kineto.op(10 * i, 5) for i in range(60_000)]
    path = kineto.write(tmp_path / "large.json", *events)
    taken: list[int] = []
    take = stream.Marks.take
    monkeypatch.setattr(stream.Marks, "take", lambda marks, text: (taken.append(len(text)), take(marks, text))[1])
    assert source_of(path).name == "kineto"
    assert sum(taken) <= 3 << 20 < path.stat().st_size

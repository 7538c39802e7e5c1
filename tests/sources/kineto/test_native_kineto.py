"""The native core reads Kineto traces into the same tables as Python, or leaves a block to Python."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers import needs
from helpers.kineto import Event, call, copy, kernel, note, op, python, span
from hypothesis import given, settings
from hypothesis import strategies as st

import gpuscope
from gpuscope import native as native_code
from gpuscope.errors import InputError
from gpuscope.native import core
from gpuscope.sources import stream
from gpuscope.sources.kineto.event_block import Native
from gpuscope.trace.schema import SCHEMAS
from gpuscope.trace.trace import Trace

pytestmark = pytest.mark.skipif(core is None, reason=needs.NATIVE_CORE)


@pytest.fixture
def scans(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Of each block, whether the core took it."""
    seen: list[bool] = []
    scan = Native.scan

    def watched(self: Native, text: bytes | memoryview) -> Any:
        found = scan(self, text)
        seen.append(found is not None)
        return found

    monkeypatch.setattr(Native, "scan", watched)
    return seen


def read(path: Path, native: bool, block: int) -> Trace | str:
    """The trace, or the error it is refused with."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(stream, "BLOCK", block)
        if not native:
            patch.setattr(native_code, "COMPILED", False)
        try:
            return gpuscope.open_trace(path, partial=True)
        except InputError as error:
            return f"{error.message} {error.hint}"


def assert_same(path: Path, block: int = stream.BLOCK) -> None:
    """Both ways of reading give equal tables, names with equal codes, and equal losses."""
    own, expected = read(path, True, block), read(path, False, block)
    if isinstance(own, str) or isinstance(expected, str):
        assert own == expected
        return
    assert own.names.names == expected.names.names
    assert own.problems == expected.problems
    assert own.sources == expected.sources
    for name, schema in SCHEMAS.items():
        for column in schema.columns:
            left, right = own[name][column.name], expected[name][column.name]
            assert left.dtype == right.dtype, (name, column.name)
            assert np.array_equal(left, right), (name, column.name)


# ---- whole traces ----


def kineto_files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.name.endswith((".json", ".json.gz")))


def test_sample_traces_give_equal_tables(samples: Path, scans: list[bool]) -> None:
    for path in kineto_files(samples)[::3]:
        assert_same(path)
    assert scans
    assert all(scans)  # nothing in what torch.profiler writes today is unusual


def test_published_traces_give_equal_tables(shared_traces: Path, scans: list[bool]) -> None:
    """Traces since 2020, of NVIDIA, AMD and CPUs; in one block and in many."""
    files = kineto_files(shared_traces / "kineto") + kineto_files(shared_traces / "pftrace")
    assert len(files) > 12
    for path in files:
        assert_same(path)
        assert_same(path, 1 << 18)
    assert sum(scans) > 0.9 * len(scans)


# ---- what unusual files hold ----


def document(events: list[Any], path: Path, indent: int | None = None, **header: Any) -> Path:
    path.write_text(json.dumps({"schemaVersion": 1, **header, "traceEvents": events, "z": 1}, indent=indent))
    return path


USUAL: list[Event] = [
    op("100.001", 50, **{"External id": 1, "Input Dims": [[2, 3], [3, 4]], "Input type": ["float", "float"]}),
    op(160, 20.5, "aten::mm", **{"External id": "2", "Input Dims": None}),
    call(101, 3.125, 7),
    kernel(110, 30, 7),
    kernel(145, 10, 8, "ncclDevKernel_AllReduce", **{"Collective name": "allreduce", "In msg nelems": 8}),
    copy(160, 4, 9, bytes=1024),
    span("cuda_sync", "Stream Sync", 170, 3, pid=0, stream=7, wait_on_stream=-1),
    note(90, 200, "ProfilerStep#1"),
    note(95, 5, "gloo:all_reduce"),
    python(90, 100, "train.py(3): step"),
    span("gpu_user_annotation", "x", 1, 2),
    {"ph": "M", "name": "thread_name", "pid": 1, "tid": 1, "args": {"name": "main"}},
    {"ph": "i", "name": "[memory]", "ts": 5, "args": {"Device Type": 1, "Device Id": 0, "Total Allocated": 5}},
    {"ph": "s", "id": 1, "ts": 1},
]

UNUSUAL: list[Event] = [
    {"ph": "X", "cat": "cpu_op", "name": "no duration", "ts": 1, "pid": 1, "tid": 1},
    {"ph": "X", "cat": "cpu_op", "name": "no thread", "ts": 1, "dur": 2},
    op("1e3", 2, "exponent"),
    op(-5.0005, 2, "before the zero"),
    op("12.34567890123", 1, "many places"),
    op(5, "abc", "no number"),
    op(10**19, 5, "far"),
    op(1, 2, 'quotes " and \\ and é and 😀 and \n'),
    op(1, 2, "two", **{"External id": 1.5, "external id": 4}),
    kernel(5, 6, None, stream="stream 9"),  # type: ignore[arg-type]
    kernel(5, 6, None, stream=None),  # type: ignore[arg-type]
    kernel(5, 6, 3, **{"bytes": 2**70, "graph id": 0}),
    span("kernel", "drawn in a row", 5, 6, tid="stream 20", pid="3"),
    span("KERNEL", "capitals", 5, 6),
    span("cuda_runtime", "cudaMalloc", 5, 6, correlation="12"),
    span("cuda_runtime", "cudaMalloc", 5, 6, correlation=True),
    {"ph": "X", "cat": "cpu_op", "name": 12, "ts": 1, "dur": 2, "pid": 1, "tid": 1},
    {"ph": "X", "cat": "cpu_op", "name": "args", "ts": 1, "dur": 2, "pid": 1, "tid": 1, "args": [1]},
    {"args": {"External id": 3}, "tid": 1, "pid": 2.5, "dur": 2, "ts": 1, "name": "turned", "cat": "cpu_op", "ph": "X"},
    {"ph": "?", "ts": 1},
    {"ph": "M", "name": "thread_name", "pid": [], "args": 3},
    {},
]


@pytest.mark.parametrize("place", range(len(UNUSUAL)))
def test_each_unusual_event_among_usual_ones(place: int, tmp_path: Path) -> None:
    assert_same(document([*USUAL, UNUSUAL[place], *USUAL], tmp_path / "t.json"))


def test_a_block_with_an_unusual_event_is_left_to_python_and_its_neighbours_are_not(
    tmp_path: Path, scans: list[bool]
) -> None:
    path = document([*USUAL * 40, UNUSUAL[2], *USUAL * 40], tmp_path / "t.json")
    assert_same(path, 2048)
    assert 1 <= scans.count(False) <= 2  # tried again where Python cuts it
    assert scans.count(True) > 10


def test_a_cut_inside_a_string_is_taken_back(tmp_path: Path) -> None:
    """`},{` in a name looks as an event's end; the blocks after it were cut and scanned on that guess."""
    events = [op(i, 1, f"{'a},{' * 30}{i % 7}") for i in range(200)]
    assert_same(document(events, tmp_path / "t.json"), 1024)


@pytest.mark.parametrize("damage", [b"\xff", b'"', b"}", b",", b"\\", b"\x00", b"]"])
def test_damaged_bytes_lose_the_same_events(damage: bytes, tmp_path: Path) -> None:
    text = bytearray(document(USUAL * 30, tmp_path / "t.json", indent=1).read_bytes())
    rng = random.Random(5)
    for number in range(6):
        for _ in range(3):
            text[rng.randrange(len(text))] = damage[0]
        path = tmp_path / f"{number}.json"
        path.write_bytes(text)
        assert_same(path, 1500)


EVENTS = st.lists(st.sampled_from([*USUAL * 3, *UNUSUAL]), min_size=1, max_size=40)


@settings(max_examples=60)
@given(events=EVENTS, block=st.integers(200, 4000), indent=st.sampled_from([None, 0, 2]), cut=st.integers(0, 400))
def test_any_mixture_in_blocks_of_any_size(
    events: list[Event], block: int, indent: int | None, cut: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = document(events, tmp_path_factory.mktemp("mixed") / "t.json", indent, baseTimeNanoseconds=10**18)
    if cut > 300:
        path.write_bytes(path.read_bytes()[: -(cut - 300)])
    assert_same(path, block)

"""Execution traces beside Kineto traces: sizes get in by the id of the record function, recorded by torch itself."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from helpers.kineto import Event, call, kernel, op, write

import gpuscope
from gpuscope.errors import InputError
from gpuscope.sources.pytorch.execution_trace import calls

PID = 41


def node(number: int, name: str, values: list[Any], shapes: list[Any], types: list[str], **more: Any) -> dict[str, Any]:
    """A node as `ExecutionTraceObserver` writes it (schema 1.1.1)."""
    attributes = {"rf_id": number, "scope": 0, **more}
    return {
        "id": number + 1,
        "name": name,
        "ctrl_deps": 1,
        "inputs": {"values": values, "shapes": shapes, "types": types, "strides": []},
        "outputs": {"values": [], "shapes": [], "types": [], "strides": []},
        "attrs": [{"name": key, "type": "x", "value": value} for key, value in attributes.items()],
    }


def execution_trace(path: Path, *nodes: dict[str, Any], pid: int = PID) -> Path:
    path.write_text(
        json.dumps({"schema": "1.1.1-chakra.0.0.4", "pid": pid, "time": "x", "start_ts": 1, "nodes": nodes})
    )
    return path


ADDMM = node(
    7,
    "aten::addmm",
    [[1, 2, 0, 3, 2, "cuda:0"], [5, 6, 0, 8, 2, "cuda:0"], [8, 9, 0, 12, 2, "cuda:0"], 1, 0.5],
    [[64], [32, 128], [128, 64], [], []],
    ["Tensor(c10::BFloat16)", "Tensor(c10::BFloat16)", "Tensor(c10::BFloat16)", "Int", "Double"],
)


def events() -> list[Event]:
    """A matrix product and an all-reduce, neither with sizes."""
    return [
        {**op(0, 20, "aten::addmm", **{"Record function id": 7}), "pid": PID},
        {**call(5, 5, 1), "pid": PID},
        kernel(30, 100, 1, "gemm"),
        {**op(40, 20, "record_param_comms", **{"Record function id": 9}), "pid": PID},
        {**call(45, 5, 2), "pid": PID},
        kernel(130, 50, 2, "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevComm*)", stream=20),
    ]


def test_shapes_and_sizes_come_from_the_execution_trace(tmp_path: Path) -> None:
    write(tmp_path / "rank0.json", *events(), world_size=2)
    comms = node(
        9,
        "record_param_comms",
        [],
        [],
        [],
        collective_name="allreduce",
        dtype="Float",
        in_msg_nelems=1000,
        out_msg_nelems=1000,
        pg_name="0",
        pg_size=2,
    )
    execution_trace(tmp_path / "et_rank0.json", ADDMM, comms)
    trace = gpuscope.open_trace(tmp_path)
    (shape,) = trace.tables["shapes"].itertuples()
    assert json.loads(shape.dims) == [[64], [32, 128], [128, 64], [], []]
    assert json.loads(shape.types) == ["c10::BFloat16"] * 3 + ["Scalar"] * 2
    assert json.loads(shape.concrete) == ["", "", "", "1", "0.5"]
    (collective,) = trace.tables["collectives"].itertuples()
    assert (collective.bytes, collective.group, collective.group_size) == (4000, "0", 2)


def test_the_first_use_of_a_result_is_the_next_read_of_its_storage(tmp_path: Path) -> None:
    """The all-reduce at 40 µs writes storage 30; a view and other tensors pass, `aten::add_` reads it at 90 µs."""
    tensor, other = [29, 30, 0, 3, 4, "cuda:0"], [31, 32, 0, 3, 4, "cuda:0"]
    calls_later = [
        (10, "aten::view", tensor),
        (11, "aten::mul", other),
        (12, "aten::add_", tensor),
        (13, "aten::mm", tensor),
    ]
    later = [
        {**op(60 + 10 * k, 5, name, **{"Record function id": number}), "pid": PID}
        for k, (number, name, _) in enumerate(calls_later, 1)
    ]
    write(tmp_path / "rank0.json", *events(), *later, world_size=2)
    nodes = [node(number, name, [value], [[3]], ["Tensor(float)"]) for number, name, value in calls_later]
    comms = node(
        9, "record_param_comms", [[tensor]], [[[3]]], ["GenericList[Tensor(float)]"], collective_name="allreduce"
    )
    execution_trace(tmp_path / "et_rank0.json", ADDMM, comms, *nodes)
    (collective,) = gpuscope.open_trace(tmp_path).tables["collectives"].itertuples()
    assert (collective.first_use, collective.first_use_after) == ("aten::add_", 50_000)
    (finding,) = (
        one for one in gpuscope.analyze(tmp_path).report["findings"] if one["code"] == "exposed_communication"
    )
    assert finding["evidence"][0]["note"].endswith("first used by aten::add_, 50.00 µs after it was called")


@pytest.mark.parametrize(("pid", "name", "told"), [(PID + 1, "aten::addmm", False), (PID, "aten::mul", True)])
def test_another_process_or_other_calls_fill_nothing_in(tmp_path: Path, pid: int, name: str, told: bool) -> None:
    write(tmp_path / "rank0.json", *events())
    execution_trace(tmp_path / "et.json", {**ADDMM, "name": name}, pid=pid)
    trace = gpuscope.open_trace(tmp_path)
    assert not len(trace.tables["shapes"])
    assert any("other calls" in problem.message for problem in trace.problems) == told


def test_recorded_shapes_stay(tmp_path: Path) -> None:
    own = {"Input Dims": [[1], [2, 3], [3, 1], [], []], "Input type": ["float"] * 3 + ["Scalar"] * 2}
    (first, *rest) = events()
    write(tmp_path / "rank0.json", {**first, "args": {**first["args"], **own}}, *rest)
    execution_trace(tmp_path / "et.json", ADDMM)
    (shape,) = gpuscope.open_trace(tmp_path).tables["shapes"].itertuples()
    assert json.loads(shape.dims) == own["Input Dims"]


def test_one_that_is_not_closed_is_told_and_the_trace_analysed(tmp_path: Path) -> None:
    write(tmp_path / "rank0.json", *events())
    path = execution_trace(tmp_path / "et.json", ADDMM)
    path.write_text(path.read_text()[:-10])
    with pytest.raises(InputError, match="unregister"):
        raise _error(path)
    report = gpuscope.analyze(tmp_path).report
    assert any("execution trace can't be read" in problem["message"] for problem in report["problems"])
    assert report["ranks"]


def _error(path: Path) -> Exception:
    try:
        calls(path)
    except InputError as error:
        return InputError(f"{error.message} {error.hint}")
    return AssertionError("it was read")


def test_alone_it_says_what_it_goes_with(tmp_path: Path) -> None:
    verdict = gpuscope.analyze(execution_trace(tmp_path / "et.json", ADDMM)).report["verdict"]
    assert verdict["bound_by"] is None
    assert "torch.profiler trace of the same run" in str(verdict)

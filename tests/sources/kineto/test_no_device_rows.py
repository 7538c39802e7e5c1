"""Files without one device row: a run on the CPU, a recorder that delivered nothing, or a cut."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest
from helpers import kineto
from helpers.kineto import Event

import gpuscope
from gpuscope import open_trace
from gpuscope.errors import InputError

A100 = [{"id": 0, "name": "NVIDIA A100-SXM4-80GB"}]
QUERIES = ["cudaGetDeviceCount", "cudaDeviceSynchronize", "cudaMalloc", "hipDeviceSynchronize", "cuDeviceGet"]
WORK = [
    "cudaLaunchKernel",
    "cudaMemcpyAsync",
    "cudaMemsetAsync",
    "cuLaunchKernelEx",
    "hipModuleLaunchKernel",
    "cudaGraphLaunch",
    "urEnqueueKernelLaunch",
    "zeCommandListAppendMemoryCopy",
]


def operators(count: int = 40, name: str = "aten::mkldnn_convolution") -> list[Event]:
    return [kineto.op(1_000 * i, 990, name) for i in range(count)]


def codes(trace: gpuscope.Trace) -> set[str]:
    return {problem.code for problem in trace.problems}


@pytest.mark.parametrize("name", QUERIES)
@pytest.mark.parametrize("category", ["cuda_runtime", "cuda_driver"])
def test_cpu_run_on_a_host_with_a_gpu(tmp_path: Path, name: str, category: str) -> None:
    call = kineto.span(category, name, 41_000, 15, correlation=1)
    path = kineto.write(tmp_path / "a.json", *operators(), call, rank=None, deviceProperties=A100)
    trace = open_trace(path)
    assert len(trace["device_events"]) == 40
    assert codes(trace) == {"device_unused"}
    report = gpuscope.analyze(path).report
    assert report["verdict"]["bound_by"] == "compute"
    assert "A100" in next(one["message"] for one in report["problems"] if one["code"] == "device_unused")


@pytest.mark.parametrize("name", WORK)
def test_work_asked_for_is_no_cpu_run(tmp_path: Path, name: str) -> None:
    """A single launch or copy, of any accelerator, and the device is what is missing."""
    calls = [kineto.call(41_000, 15, 1, "cudaDeviceSynchronize"), kineto.call(42_000, 5, 2, name)]
    trace = open_trace(kineto.write(tmp_path / "a.json", *operators(), *calls, rank=None, deviceProperties=A100))
    assert not len(trace["device_events"])
    assert "device_unused" not in codes(trace)


def test_no_runtime_row_leaves_the_device_open(tmp_path: Path) -> None:
    """With activities=[CPU] a run on the GPU looks just so."""
    path = kineto.write(tmp_path / "a.json", *operators(), rank=None, deviceProperties=A100)
    report = gpuscope.analyze(path).report
    assert report["verdict"]["abstain_reason"] == "no_device_events"
    assert "record the device too" in report["verdict"]["record"]


@pytest.mark.parametrize(("name", "count"), [("cudaLaunchKernel", 80), ("cuLaunchKernelEx", 3), ("hipLaunchKernel", 7)])
def test_launches_without_kernels(tmp_path: Path, name: str, count: int) -> None:
    calls = [kineto.call(1_000 * i + 100, 8, i + 1, name) for i in range(count)]
    wait = kineto.call(90_000, 5_000, 999, "cudaDeviceSynchronize")
    path = kineto.write(tmp_path / "a.json", *operators(count, "aten::add"), *calls, wait, deviceProperties=A100)
    verdict = gpuscope.analyze(path).report["verdict"]
    assert verdict["abstained"]
    assert verdict["abstain_reason"] == "kernels_lost"
    assert f"{count} launches were recorded and none of their kernels" in verdict["why"]
    assert "aten::add" in verdict["why"]
    assert "(5.3 % waiting)" in verdict["why"]  # 5 of 95 ms
    assert "record the device too" not in verdict["why"]
    assert all(word in verdict["record"] for word in ("RestrictProfiling", "WSL", "profilers", "warm-up"))


def test_launches_of_two_ranks(tmp_path: Path) -> None:
    for rank in range(2):
        calls = [kineto.call(1_000 * i + 100, 8, i + 1) for i in range(5 + rank)]
        kineto.write(tmp_path / f"r{rank}.json", *operators(9), *calls, rank=rank, world_size=2, deviceProperties=A100)
    verdict = gpuscope.analyze(tmp_path).report["verdict"]
    assert "11 launches were recorded on 2 ranks" in verdict["why"]


def cut(path: Path, events: list[Event], **header: Any) -> Path:
    """A file that ends in the middle of its last event."""
    text = json.dumps({"schemaVersion": 1, **header, "traceEvents": events})
    path.write_bytes(gzip.compress(text[: text.rindex('"args"')].encode()))
    return path


@pytest.mark.parametrize(
    ("header", "on_cpu"),
    [
        ({"deviceProperties": A100}, False),
        ({}, False),
        ({"distributedInfo": {"backend": "nccl", "rank": 0, "world_size": 1}}, False),
        ({"deviceProperties": []}, True),
        ({"distributedInfo": {"backend": "gloo", "rank": 0, "world_size": 1}}, True),
    ],
)
def test_cut_before_the_kernels(tmp_path: Path, header: dict[str, Any], on_cpu: bool) -> None:
    """What is missing may hold the device's rows: only a file that says that there is no device is a CPU run."""
    call = kineto.call(500, 8, 1, "cudaDeviceSynchronize")
    events = [*operators()] if on_cpu else [*operators(), call, *operators(3)]
    path = cut(tmp_path / "rank0.json.gz", events, **header)
    with pytest.raises(InputError, match="early") as caught:
        open_trace(path)
    assert "--partial" in str(caught.value.hint)
    trace = open_trace(path, partial=True)
    assert bool(len(trace["device_events"])) == on_cpu
    assert "kernels_not_recorded" not in codes(trace)

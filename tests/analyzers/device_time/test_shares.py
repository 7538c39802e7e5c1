"""A share of the window is a union over streams and never exceeds 1; per step of one rank never exceeds its step."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from helpers.kineto import Event, call, copy, kernel, note, write
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import gpuscope
from gpuscope.schema.document import Report

SINGLE, TENSOR, ELEMENTWISE, ADAM = (
    "ampere_sgemm_128x64_tn",
    "ampere_fp16_s16816gemm_fp16_128x128_ldg8_f2f_stages_32x5_tn",
    "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>, std::array<char*, 3ul> >",
    "void at::native::(anonymous namespace)::multi_tensor_apply_kernel<at::native::BinaryOpListAlphaFunctor<float>>",
)
GPU = {"deviceProperties": [{"id": 0, "name": "NVIDIA A100-SXM4-80GB"}]}


def step(number: int, streams: int, names: tuple[str, ...], twice: bool = False) -> Iterator[Event]:
    """A step of 2,000 µs: on each stream the same kernels of 150 at once, then copies on all of them."""
    base = 2000 * number
    yield note(base, 1990, f"ProfilerStep#{number}")
    for place, name in enumerate(names):
        for stream in range(streams):
            launch = 1000 * number + 10 * place + stream
            yield call(base + 100 * place + stream, 1, launch)
            for _ in range(2 if twice else 1):
                yield kernel(base + 20 + 160 * place, 150, launch, name, stream=7 + stream)
    for stream in range(streams):
        launch = 1000 * number + 900 + stream
        yield call(base + 1000 + stream, 1, launch, "cudaMemcpyAsync")
        yield copy(base + 1800, 150, launch, stream=7 + stream, bytes=1 << 20)


def shares(value: Any, path: str = "") -> Iterator[tuple[str, float]]:
    """Every share in a part of a report, and where it stands."""
    if isinstance(value, dict):
        for key, one in value.items():
            if isinstance(one, int | float) and not isinstance(one, bool) and (key == "share" or key.endswith("_frac")):
                yield f"{path}.{key}", one
            else:
                yield from shares(one, f"{path}.{key}")
    elif isinstance(value, list):
        for one in value:
            yield from shares(one, path)


def assert_within(report: Report) -> None:
    for part in ("verdict", "findings", "compute", "ideal", "kernels", "operators", "streams", "gaps", "queues"):
        for where, share in shares(report.get(part), part):
            assert share <= 1.0, where
    whole = report["step_time"]
    assert whole is not None
    longest = max(one["dur_ns"] for one in report["steps"])
    for finding in report["findings"]:
        assert (finding.get("per_step_ns") or 0) <= whole["median_ns"], finding["code"]
        assert (finding["cost_ns_per_step"] or 0) <= longest, finding["code"]
    for entry in report.get("compute", []):
        assert all(part["floor_ns"] <= longest and part["dur_ns"] <= longest for part in entry["parts"])
        assert all(one["dur_ns"] <= entry["window_ns"] for one in entry["reducible"])
    for ideal in report.get("ideal", []):
        assert (ideal["ideal_ns"] or 0) <= ideal["step_ns"]  # None where too little work is known
        assert all(part["dur_ns"] <= ideal["step_ns"] for part in ideal["parts"])


@pytest.mark.parametrize("twice", [False, True])
@pytest.mark.parametrize("streams", [1, 2, 4])
def test_kernels_beside_each_other_count_once(tmp_path: Path, streams: int, twice: bool) -> None:
    """Ten FP32 products of 150 in a step of 2,000 are 75 % of it, on however many streams they run at once, and however
    often a row stands in the file."""
    events = [one for number in range(6) for one in step(number, streams, (SINGLE,) * 10, twice)]
    report = gpuscope.analyze(write(tmp_path / "rank0.json", *events, **GPU), advice=False).report
    finding = next(one for one in report["findings"] if one["code"] == "single_precision")
    assert finding["share_frac"] == pytest.approx(0.75, abs=0.01)
    assert finding["facts"]["share"] == finding["share_frac"]
    assert_within(report)


def test_ranks_merged_into_one(tmp_path: Path) -> None:
    """Two ranks that do the same at once: shares are of both windows."""
    for rank in range(2):
        events = [one for number in range(6) for one in step(number, 2, (SINGLE,) * 10)]
        write(tmp_path / f"rank{rank}.json", *events, rank=rank, world_size=2, **GPU)
    report = gpuscope.analyze(tmp_path, advice=False).report
    finding = next(one for one in report["findings"] if one["code"] == "single_precision")
    assert finding["share_frac"] == pytest.approx(0.75, abs=0.01)
    assert_within(report)


def test_one_stream_counts_as_before(tmp_path: Path) -> None:
    """Kernels that follow each other: the sum is the union, and half of them half the share."""
    names = (SINGLE, TENSOR) * 5
    events = [one for number in range(6) for one in step(number, 1, names)]
    report = gpuscope.analyze(write(tmp_path / "rank0.json", *events, **GPU), advice=False).report
    finding = next(one for one in report["findings"] if one["code"] == "single_precision")
    assert finding["share_frac"] == pytest.approx(0.375, abs=0.01)
    parts = report["compute"][0]["parts"]
    assert sum(part["dur_ns"] for part in parts) == 1_500_000


@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.integers(1, 5), st.integers(0, 2**16), st.booleans())
def test_no_share_exceeds_one(tmp_path: Path, streams: int, seed: int, twice: bool) -> None:
    drawn = random.Random(seed)
    names = tuple(drawn.choice((SINGLE, TENSOR, ELEMENTWISE, ADAM)) for _ in range(drawn.randint(1, 11)))
    events = [one for number in range(5) for one in step(number, streams, names, twice)]
    report = gpuscope.analyze(write(tmp_path / "rank0.json", *events, **GPU), advice=False).report
    assert_within(report)

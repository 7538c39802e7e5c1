"""Advice on allocator calls and copies: a cache that is off, one that thrashes or grows; pinned memory."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from helpers.advice import blocking, finding, host_calls, report, steady

from gpuscope.analyzers.advice.rules.allocator_call_rules import state
from gpuscope.analyzers.advice.suggesting import advise
from gpuscope.analyzers.what_if_changes import Change, Predicted
from gpuscope.schema.document import Report

EVERY_TENSOR = {"allocations_per_step": 62.0, "frees_per_step": 55.0, "least_allocations": 60, "least_frees": 50}
RETRIES = {"allocations_per_step": 3.0, "frees_per_step": 3.0, "least_allocations": 1, "least_frees": 1}
GROWTH = {"allocations_per_step": 2.0}


def gains(_: Sequence[Change]) -> Predicted:
    return Predicted(100, 40, 40, 40, "a test")


def allocating(program: str = "pytorch", **calls: Any) -> Report:
    case = steady(report(finding("allocator"), bound_by="memory", cause="allocator"), 1, 2)
    case["trace"]["program"] = program  # type: ignore[typeddict-item]
    case["host_calls"] = [host_calls(**calls)]
    return case


@pytest.mark.parametrize(
    ("calls", "expected"),
    [
        (EVERY_TENSOR, "off"),
        (EVERY_TENSOR | {"caches": False}, "off"),
        (EVERY_TENSOR | {"caches": True}, "thrashing"),  # the allocator reported what it holds
        (EVERY_TENSOR | {"least_frees": 0}, "thrashing"),  # not in every step
        (RETRIES, "thrashing"),
        (GROWTH, "growing"),
        ({}, None),
        (EVERY_TENSOR | {"steady": False}, None),  # the start of a program allocates
    ],
)
def test_the_state_of_an_allocator(calls: dict[str, Any], expected: str | None) -> None:
    assert state(host_calls(**calls)) == expected


@pytest.mark.parametrize(
    ("program", "calls", "code", "setting"),
    [
        ("pytorch", EVERY_TENSOR, "caching_allocator", "PYTORCH_NO_CUDA_MEMORY_CACHING"),
        ("pytorch", EVERY_TENSOR | {"runtime": "hip"}, "caching_allocator", "PYTORCH_NO_HIP_MEMORY_CACHING"),
        ("pytorch", RETRIES, "expandable_segments", "PYTORCH_CUDA_ALLOC_CONF"),
        ("pytorch", GROWTH, "expandable_segments", "PYTORCH_CUDA_ALLOC_CONF"),
        ("jax", EVERY_TENSOR, "allocate_once", "XLA_PYTHON_CLIENT_ALLOCATOR"),
        ("native", EVERY_TENSOR, "allocate_once", "cudaMalloc and cudaFree of a step"),
        ("native", EVERY_TENSOR | {"runtime": "hip"}, "allocate_once", "hipMalloc and hipFree of a step"),
    ],
)
def test_what_answers_it(program: str, calls: dict[str, Any], code: str, setting: str) -> None:
    [one], _ = advise(allocating(program, **calls), gains)
    assert (one["code"], one["setting"]["name"]) == (code, setting)


def test_on_rocm_workspaces_of_miopen_are_named_as_the_alternative() -> None:
    [one], _ = advise(allocating(**EVERY_TENSOR, runtime="hip"), gains)
    assert "MIOpen's workspaces" in one["why"]
    [cuda], _ = advise(allocating(**EVERY_TENSOR), gains)
    assert "workspaces" not in cuda["why"]  # no convolution in the evidence


@pytest.mark.parametrize("calls", [RETRIES | {"runtime": "hip"}, RETRIES | {"maps_segments": True}, {}])
def test_no_expandable_segments_where_unsupported_in_use_or_nothing_grows(calls: dict[str, Any]) -> None:
    suggestions, advice = advise(allocating(**calls), gains)
    assert (suggestions, advice["unpredicted"]) == ([], [])


def test_pinned_buffers_in_cpp_have_no_predicted_gain() -> None:
    case = report(finding("copy"), bound_by="memory", cause="copy")
    case["trace"]["program"] = "native"
    suggestions, advice = advise(case, gains)
    assert not suggestions
    [one] = advice["unpredicted"]
    assert one["setting"]["value"].startswith("cudaMallocHost")


@pytest.mark.parametrize(("copy", "kept"), [("HtoD pageable", True), ("DtoH", False), (None, False)])
def test_pinned_memory_only_where_the_host_waits_for_copies_to_the_device(copy: str | None, kept: bool) -> None:
    case = report(finding("copy"), bound_by="memory", cause="copy")
    case["host_calls"] = [host_calls(blocking_calls=[blocking("cudaMemcpyAsync", copy=copy)])]
    suggestions, _ = advise(case, gains)
    assert [one["code"] for one in suggestions] == ["pinned_copies" if kept else "copy_stream"]

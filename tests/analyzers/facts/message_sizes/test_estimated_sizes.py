"""Sizes of messages from the gradients that they carry, where no argument records them."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from helpers.kineto import Event, call, kernel, op, write
from simulator.catalogue import COMPUTE
from simulator.job import Job
from simulator.judged import Case
from simulator.kineto_rows import Profiler

import gpuscope
from gpuscope.analyzers.facts.message_sizes import BASIS, with_estimated_sizes
from gpuscope.schema.document import Report
from gpuscope.trace.kinds import kernel_item_bytes

SUM_F32 = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
HOOK = "autograd::engine::evaluate_function: torch::autograd::AccumulateGrad"


def report_of(job: Job, folder: Path, told: bool = True, **recorded: bool) -> Report:
    """`told`: whether the sizes of messages are recorded at all."""
    path = Case(job, "", Profiler(**recorded)).write(folder / f"{len(list(folder.iterdir()))}")
    for file in path.glob("*.json") if not told else ():
        document = json.loads(file.read_text())
        for event in document["traceEvents"]:
            if "nccl" in event["name"] or event["name"] == "record_param_comms":
                event["args"] = {
                    key: value
                    for key, value in event.get("args", {}).items()
                    if key in ("correlation", "stream", "device", "External id")
                }
        file.write_text(json.dumps(document))
    return gpuscope.analyze(path).report


def test_a_job_s_buckets_from_its_gradients(tmp_path: Path) -> None:
    """The same simulated job with the sizes of its messages and without."""
    job = replace(COMPUTE, rate=25.0, layers=6)
    told, estimated = report_of(job, tmp_path), report_of(job, tmp_path, told=False)
    rows = estimated["bandwidth"]
    recorded = [row["bytes"] for row in told["bandwidth"]]
    assert [row["bytes"] for row in rows] == pytest.approx(recorded, rel=1e-6)  # its shapes leave bytes over
    assert {row["size_basis"] for row in rows} == {BASIS}
    assert {row["size_basis"] for row in told["bandwidth"]} == {None}
    assert any(problem["code"] == "sizes_estimated" for problem in estimated["problems"])
    assert "bandwidth" not in report_of(job, tmp_path, told=False, shapes=False)


def backward(start: int, gradients: list[list[int]], buckets: dict[int, str], dtype: str = "float") -> list[Event]:
    """A backward pass, a gradient every 100 µs; after those with these numbers a bucket is sent by that kernel. Before
    it an operator of the forward pass."""
    events = [op(start - 50, 10, "aten::linear")]
    for number, dims in enumerate(gradients):
        at = start + 100 * number
        events += [
            op(at, 60, HOOK, tid=2),
            op(at + 5, 10, "torch::autograd::AccumulateGrad", tid=2, **{"Input Dims": [dims], "Input type": [dtype]}),
        ]
        if number in buckets:
            events += [call(at + 30, 5, at, tid=2), kernel(at + 40, 50, at, name=buckets[number], stream=20)]
    return events


def sizes(folder: Path, *passes: list[Event]) -> list[int | None]:
    """Estimated bytes of each collective."""
    path = write(folder / "r.json", *(event for one in passes for event in one))
    table, _ = with_estimated_sizes(gpuscope.open_trace(path))
    return [None if value < 0 else value for value in table["bytes"].tolist()]


GRADIENTS = [[1000], [1000, 1000], [500, 1000], [1000, 50]]
SENT = {1: SUM_F32, 3: SUM_F32}


def test_what_came_since_the_message_before(tmp_path: Path) -> None:
    """1000 + 10⁶ and 500·10³ + 50·10³ elements of four bytes."""
    assert sizes(tmp_path, backward(1000, GRADIENTS, SENT)) == [4_004_000, 2_200_000]


def test_gradients_of_a_pass_that_sends_nothing_are_in_no_message(tmp_path: Path) -> None:
    """Accumulation without synchronisation: the first micro-batch only accumulates."""
    passes = backward(1000, GRADIENTS, {}), backward(3000, GRADIENTS, SENT)
    assert sizes(tmp_path, *passes) == [4_004_000, 2_200_000]


def test_the_first_pass_has_other_buckets(tmp_path: Path) -> None:
    """DDP makes its buckets anew after the first pass, whose sizes then stay open."""
    passes = [backward(at, GRADIENTS, SENT) for at in (3000, 5000)]
    first = backward(1000, GRADIENTS, {0: SUM_F32, 3: SUM_F32})
    assert sizes(tmp_path, first, *passes) == [None, None, *[4_004_000, 2_200_000] * 2]


@pytest.mark.parametrize(
    ("gradients", "buckets", "dtype"),
    [
        (GRADIENTS, {1: "ncclDevKernel_Generic_4(ncclDevComm)", 3: "ncclDevKernel_Generic_4(ncclDevComm)"}, "float"),
        (GRADIENTS, {0: SUM_F32, 1: SUM_F32}, "float"),
        ([[1000], [], [500, 1000], [1000, 50]], SENT, ""),
    ],
    ids=["type unknown", "a third of the elements not sent", "a parameter without use"],
)
def test_what_can_t_be_known_stays_open(
    gradients: list[list[int]], buckets: dict[int, str], dtype: str, tmp_path: Path
) -> None:
    assert sizes(tmp_path, backward(1000, gradients, buckets, dtype)) == [None, None]


def test_passes_that_differ_tell_nothing(tmp_path: Path) -> None:
    other = [[1000], [1000, 1000], [500, 1000], [1000, 5000]]
    passes = backward(1000, GRADIENTS, SENT), backward(3000, other, SENT)
    assert sizes(tmp_path, *passes) == [None] * 4


@pytest.mark.parametrize(
    ("kernel_name", "item"),
    [
        (SUM_F32, 4),
        ("ncclKernel_AllReduce_RING_LL_Sum_float(ncclWorkElem)", 4),
        ("ncclKernel_AllReduce_RING_LL_Sum___nv_bfloat16(ncclWorkElem)", 2),
        ("ncclDevKernel_ReduceScatter_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)", 2),
        ("ncclAllReduceRingLLKernel_sum_f16(ncclColl)", 2),
        ("ncclDevKernel_Generic_4(ncclDevComm*)", None),
        ("ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgsStorage<4096ul>)", None),
    ],
)
def test_element_types_in_names_of_kernels(kernel_name: str, item: int | None) -> None:
    assert kernel_item_bytes(kernel_name) == item

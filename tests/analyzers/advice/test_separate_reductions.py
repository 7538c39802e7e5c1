"""A loop that reduces each gradient by itself, what DDP or one message makes of it, and other all-reduces."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from helpers.ranges import holds
from simulator.catalogue import COMPUTE
from simulator.job import MIB, Job
from simulator.judged import Case
from simulator.kineto_rows import Profiler

import gpuscope
from gpuscope.analyzers.advice.rules.bucket_rules import WHOLE
from gpuscope.analyzers.what_if_changes import BucketSize, Predicted
from gpuscope.schema.document import Report

DDP = replace(
    COMPUTE,
    gemms=8,
    layers=6,
    gemm_ns=80_000,
    small_ns=15_000,
    layer_bytes=8 * MIB,
    bias_bytes=16 << 10,
    alpha_ns=60_000,
    rate=60.0,
    steps=5,
)
LOOP = replace(DDP, wrapped=False, overlap=False, bucket_bytes=1)
"""96 all-reduces behind the backward pass, waited for at the end."""
WAITING = replace(LOOP, each_waited=True)
"""`all_reduce(p.grad); p.grad /= world_size` for each parameter."""


def analysed(job: Job, folder: Path, profiler: Profiler | None = None) -> Report:
    job = replace(job, name=f"job{len(list(folder.iterdir()))}")
    return gpuscope.analyze(Case(job, "", profiler or Profiler()).write(folder)).report


def step(report: Report) -> int:
    assert report["step_time"] is not None
    return report["step_time"]["median_ns"]


def found(report: Report) -> set[str]:
    return {one["code"] for one in report["findings"]}


@pytest.mark.parametrize("job", [LOOP, WAITING], ids=["waited for at the end", "each waited for"])
@pytest.mark.parametrize("left_out", [(), (1,)], ids=["all ranks", "one rank of two"])
def test_a_loop_over_parameters_gets_ddp(job: Job, left_out: tuple[int, ...], tmp_path: Path) -> None:
    report = analysed(job, tmp_path, Profiler(left_out=left_out))
    (one,) = [one for one in report["suggestions"] if one["code"] == "overlap"]
    assert one["finding"] == "separate_reductions"
    mended = analysed(DDP, tmp_path)
    assert holds(one["predicted"], step(mended))
    assert one["predicted"]["step_ns_after"] < 0.85 * one["predicted"]["step_ns_before"]
    assert "separate_reductions" not in found(mended)


def test_one_message_for_all_gradients(tmp_path: Path) -> None:
    job = replace(LOOP, name="loop")
    outcome = gpuscope.analyze(Case(job, "").write(tmp_path)).predict(BucketSize(WHOLE))
    joined = analysed(replace(LOOP, bucket_bytes=WHOLE), tmp_path)
    assert isinstance(outcome, Predicted)
    assert outcome.low <= step(joined) <= outcome.high
    assert "separate_reductions" not in found(joined)


def test_without_shapes_it_has_a_bound(tmp_path: Path) -> None:
    """When each gradient was ready is not recorded: at most what is exposed of the messages."""
    report = analysed(WAITING, tmp_path, Profiler(shapes=False))
    for code in ("overlap", "one_reduction"):
        (one,) = [one for one in report["advice"]["unpredicted"] if one["code"] == code]
        (finding,) = [one for one in report["findings"] if one["code"] == "separate_reductions"]
        bound = one["bound"]
        assert bound["step_ns_before"] - bound["step_ns_low"] == pytest.approx(
            finding["worst_share_frac"] * step(report), rel=0.01
        )
    assert bound["step_ns_low"] <= step(analysed(replace(WAITING, bucket_bytes=WHOLE), tmp_path))


@pytest.mark.parametrize(
    "job",
    [
        replace(LOOP, wrapped=True),  # DDP with buckets of a byte: its own size is what is wrong
        replace(LOOP, layer_bytes=64 << 10, bias_bytes=256),  # fewer bytes than any model's gradients
        replace(LOOP, bucket_bytes=8 * MIB),  # a message for each layer
        replace(
            COMPUTE, parallel="tensor", ranks=4, layers=12, gemms=1, tensor_bytes=48 * MIB
        ),  # between layers' products
        replace(LOOP, alpha_ns=200, rate=8_000.0),  # that cost nothing
    ],
    ids=["ddp", "metrics", "messages by layer", "tensor parallel", "fast"],
)
def test_other_all_reduces_are_no_such_loop(job: Job, tmp_path: Path) -> None:
    assert "separate_reductions" not in found(analysed(job, tmp_path))


def test_torch_takes_what_is_set() -> None:
    torch = pytest.importorskip("torch")
    model = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.Linear(2, 1))
    model(torch.ones(4, 3)).sum().backward()
    grads = [parameter.grad for parameter in model.parameters()]
    before = [grad.clone() for grad in grads]
    flat = torch.nn.utils.parameters_to_vector(grads)
    flat *= 2
    torch.nn.utils.vector_to_parameters(flat, grads)
    assert all(
        bool((parameter.grad == 2 * old).all()) for parameter, old in zip(model.parameters(), before, strict=True)
    )

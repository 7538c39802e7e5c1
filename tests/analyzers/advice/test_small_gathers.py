"""Many small all-gathers that the host waits for: whose they are, and what makes fewer of them."""

from __future__ import annotations

from pathlib import Path

import pytest
from helpers.collectives import KERNELS, collective
from helpers.kineto import Event, call, kernel, note, op, write

import gpuscope
from gpuscope.schema.document import Report

GATHER = "_allgather_base"


def job(
    folder: Path,
    *,
    gathers: int = 20,
    nbytes: int = 80_000,
    steps: int = 5,
    wait: str = "cudaStreamSynchronize",
    name: str = GATHER,
    mark: str = "",
    group: str = "default_pg",
    ranks: int = 2,
) -> Report:
    """A step is so many times a collective of 300 µs, waited for, and a product of 200 µs."""
    KERNELS.setdefault(GATHER, "ncclDevKernel_AllGather_RING_LL(x)")
    for rank in range(ranks):
        events: list[Event] = []
        number, at = 0, 1000
        for step in range(steps):
            begin = at
            for _ in range(gathers):
                number += 2
                events += [
                    call(at, 5, number, "cudaLaunchKernelExC"),
                    collective(
                        at + 10, 300, nbytes, number, ranks, name, launch=number, **{"Process Group Description": group}
                    ),
                ]
                if wait:
                    events.append(call(at + 8, 303, -number, wait))
                at += 315 if wait else 12
                events += [op(at, 20), call(at + 2, 5, number + 1), kernel(at + 10, 200, number + 1)]
                at += 215 if wait else 515
            events.append(note(begin - 5, at - begin, f"ProfilerStep#{step}"))
            events += [op(begin, 5, mark)] if mark else []
        write(
            folder / f"rank{rank}.json",
            *events,
            rank=rank,
            world_size=ranks,
            deviceProperties=[{"id": 0, "name": "NVIDIA H100 80GB HBM3"}],
        )
    return gpuscope.analyze(folder).report


def advice(report: Report) -> dict[str, str]:
    found = (*report["suggestions"], *report["advice"]["unpredicted"])
    return {one["code"]: f"{one['setting']['name']} {one['setting']['value']}" for one in found}


@pytest.mark.parametrize(
    ("mark", "setting"),
    [
        ("", "stage3_param_persistence_threshold"),
        ("", "fully_shard"),
        ("", "auto_wrap_policy"),
        ("DeepSpeedEngine.forward", "zero_optimization.stage3_param_persistence_threshold 1000000"),
        ("FullyShardedDataParallel.forward", "FullyShardedDataParallel.auto_wrap_policy"),
        ("MegatronModule.forward", "--overlap-param-gather"),
    ],
)
@pytest.mark.parametrize("wait", ["cudaStreamSynchronize", "cudaEventSynchronize"])
def test_small_gathers_are_put_together(tmp_path: Path, mark: str, setting: str, wait: str) -> None:
    report = job(tmp_path, mark=mark, wait=wait)
    assert report["verdict"]["cause"] == "latency"
    found = advice(report)
    assert setting in found["small_gathers"]
    assert "remove_syncs" not in found
    (entry,) = (one for one in report["advice"]["unpredicted"] if one["code"] == "small_gathers")
    assert "20 all-gathers per step, of 78.1 KiB each, and the host waits for each" in entry["grounds"]
    assert "bound" in entry


@pytest.mark.parametrize(
    "given",
    [
        {"name": "allreduce"},
        {"gathers": 4},
        {"nbytes": 64 << 20},
        {"mark": "FSDP::pre_forward"},
        {"group": "TENSOR_MODEL_PARALLEL_GROUP"},
        {"group": "mesh_tp"},
    ],
    ids=["all-reduces", "few", "large", "FSDP2", "Megatron's activations", "a mesh's activations"],
)
def test_other_messages_are_not_gathers_of_small_parameters(tmp_path: Path, given: dict[str, object]) -> None:
    assert "small_gathers" not in advice(job(tmp_path, **given))  # type: ignore[arg-type]


def test_a_wait_for_all_of_the_device_is_the_programs_own(tmp_path: Path) -> None:
    report = job(tmp_path, wait="cudaDeviceSynchronize")
    (place,) = report["host_calls"][0]["blocking_calls"]
    assert place["behind"] == "all_gather"
    assert "torch.cuda.synchronize()" in advice(report).get("remove_syncs", "torch.cuda.synchronize()")


def test_a_wait_for_another_collective_is_the_streams(tmp_path: Path) -> None:
    found = advice(job(tmp_path, name="allreduce"))
    assert "only around measurements" not in found.get("remove_syncs", "")
    assert "the wait for all_reduce" in found["remove_syncs"]


def test_a_wait_behind_a_kernel_is_for_no_collective(tmp_path: Path) -> None:
    events: list[Event] = []
    for k in range(40):
        at = 1000 + 400 * k
        events += [call(at, 5, k + 1), kernel(at + 10, 200, k + 1), call(at + 8, 203, -k - 1, "cudaStreamSynchronize")]
    write(tmp_path / "rank0.json", *events)
    (place,) = gpuscope.analyze(tmp_path).report["host_calls"][0]["blocking_calls"]
    assert "behind" not in place

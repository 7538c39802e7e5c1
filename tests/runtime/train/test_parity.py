"""Every parallelism has the losses and gradients of one process.

The processes start once per world size and go through all its cases; a test looks at one of them.
"""

from __future__ import annotations

import json
import os
import subprocess
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from helpers.warm_python import executable

pytest.importorskip("torch")
pytestmark = pytest.mark.xdist_group("parity")

WORKER = Path(__file__).with_name("parity_worker.py")
EXACT, FP16, BF16 = 1e-5, 5e-3, 3e-2  # relative; of a gradient, to its largest element

# name: (parallel, preset, settings, tolerance)
Case = tuple[str, str, list[str], float]
ON_TWO: dict[str, Case] = {
    "ddp": ("ddp", "tiny", [], EXACT),
    "ddp knobs": (
        "ddp",
        "tiny",
        ["ddp.bucket_cap_mb=0.01", "ddp.static_graph=true", "ddp.gradient_as_bucket_view=true"],
        EXACT,
    ),
    "ddp accumulating": ("ddp", "tiny", ["train.accumulate=2"], EXACT),
    "ddp fp16 hook": ("ddp", "tiny", ["ddp.comm_hook=fp16"], FP16),
    "ddp powersgd hook": ("ddp", "tiny", ["ddp.comm_hook=powersgd"], EXACT),  # compresses from step 3
    "ddp bf16": ("ddp", "tiny", ["train.precision=bf16"], BF16),
    "ddp recomputing": ("ddp", "tiny", ["train.activation_checkpointing=every_second"], EXACT),
    "zero1": ("zero1", "tiny", [], EXACT),
    "zero2": ("zero2", "tiny", [], EXACT),
    "zero3": ("fsdp", "tiny", [], EXACT),
    "zero3 accumulating": ("fsdp", "tiny", ["train.accumulate=2"], EXACT),
    "zero3 prefetching": ("fsdp", "tiny", ["fsdp.prefetch=2"], EXACT),
    "zero3 offloading": ("fsdp", "tiny", ["fsdp.cpu_offload=true"], EXACT),
    "zero3 bf16": ("fsdp", "tiny", ["fsdp.mixed_precision=bf16"], BF16),
    "zero3 recomputing": ("fsdp", "tiny", ["train.activation_checkpointing=block"], EXACT),
    "zero3 moe": ("fsdp", "tiny-moe", [], EXACT),
    "tp": ("tp", "tiny", [], EXACT),
    "tp plain": ("tp", "tiny", ["tensor.sequence_parallel=false", "tensor.loss_parallel=false"], EXACT),
    "pp 1f1b": ("pp", "tiny", [], EXACT),
    "pp gpipe": ("pp", "tiny", ["pipeline.schedule=gpipe"], EXACT),
    "pp interleaved": ("pp", "tiny", ["pipeline.schedule=interleaved1f1b"], EXACT),
    "pp interleaved zero bubble": ("pp", "tiny", ["pipeline.schedule=interleaved_zero_bubble"], EXACT),
    "pp zbv": ("pp", "tiny", ["pipeline.schedule=zbv"], EXACT),
    "pp uneven accumulating": ("pp", "tiny", ["pipeline.layers_per_stage=3,1", "train.accumulate=2"], EXACT),
    "cp ring": ("cp", "tiny", [], EXACT),
    "cp ring by all-gather": ("cp", "tiny", ["context.rotation=allgather"], EXACT),
    "cp ring unbalanced": ("cp", "tiny", ["context.balance=false"], EXACT),
    "cp ulysses": ("cp", "tiny", ["context.method=ulysses"], EXACT),
    "ep": ("ep", "tiny-moe", [], EXACT),
    "ep accumulating": ("ep", "tiny-moe", ["train.accumulate=2"], EXACT),
}
ON_FOUR: dict[str, Case] = {
    "hsdp": ("hsdp", "tiny", [], EXACT),
    "zero3 resharding to pairs": ("fsdp", "tiny", ["fsdp.reshard_after_forward=2"], EXACT),
    "cp ring": ("cp", "tiny", [], EXACT),
    "cp ulysses": ("cp", "tiny", ["context.method=ulysses"], EXACT),
    "pp × ddp": ("pp=2+ddp", "tiny", [], EXACT),
    "pp × fsdp accumulating": ("pp=2+fsdp", "tiny", ["train.accumulate=2"], EXACT),
    "pp zbv × fsdp": ("pp=2+fsdp", "tiny", ["pipeline.schedule=zbv"], EXACT),
    "pp × tp": ("pp=2+tp=2+fsdp", "tiny", [], EXACT),
    "pp × cp": ("pp=2+cp=2", "tiny", [], EXACT),
    "tp × fsdp": ("tp=2+fsdp", "tiny", [], EXACT),
    "cp × fsdp": ("cp=2+fsdp", "tiny", [], EXACT),
    "ep × ddp": ("ep=2+ddp", "tiny-moe", [], EXACT),
    "ep × fsdp": ("ep=2+fsdp", "tiny-moe", [], EXACT),
    "ep × cp": ("ep=2+cp=2", "tiny-moe", [], EXACT),
}
ON_EIGHT: dict[str, Case] = {"pp × fsdp × tp": ("3d", "tiny", [], EXACT)}


@pytest.mark.parametrize("name", ON_TWO)
def test_two_processes_equal_one(name: str) -> None:
    assert_equal(run_all(2)[name], tolerance=ON_TWO[name][3])


@pytest.mark.parametrize("name", ON_FOUR)
def test_four_processes_equal_one(name: str) -> None:
    assert_equal(run_all(4)[name], tolerance=ON_FOUR[name][3])


@pytest.mark.slow
@pytest.mark.parametrize("name", ON_EIGHT)
def test_eight_processes_equal_one(name: str) -> None:
    assert_equal(run_all(8)[name], tolerance=ON_EIGHT[name][3])


def assert_equal(result: dict[str, Any], tolerance: float) -> None:
    """Both steps' losses and gradient norms, of which the second ones follow an update, and each gradient of
    the first step."""
    assert "failed" not in result, result["failed"]
    assert result["values"] == pytest.approx(result["expected"], rel=tolerance)
    assert result["error"] < tolerance, result["parameter"]


@cache
def run_all(world_size: int) -> dict[str, Any]:
    """The results of all cases of a world size, by name."""
    cases = {2: ON_TWO, 4: ON_FOUR, 8: ON_EIGHT}[world_size]
    with TemporaryDirectory() as folder:
        result, errors = Path(folder, "result.json"), Path(folder, "stderr")
        words = [f"{folder}/rendezvous", str(result), json.dumps({name: case[:3] for name, case in cases.items()})]
        with errors.open("w") as stderr:
            workers = [
                subprocess.Popen(
                    [executable(), str(WORKER), *words],
                    env={**os.environ, "RANK": str(rank), "WORLD_SIZE": str(world_size), "OMP_NUM_THREADS": "1"},
                    stderr=stderr,
                )
                for rank in range(world_size)
            ]
            codes = [worker.wait(timeout=300) for worker in workers]
        assert codes == [0] * world_size, errors.read_text()[-4000:]
        return json.loads(result.read_text())  # type: ignore[no-any-return]

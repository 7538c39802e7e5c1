"""Frameworks by annotations, parallelism by process groups, kinds of program by whole identifiers and formats."""

from __future__ import annotations

import pytest

from gpuscope.trace.frameworks import frameworks, parallelism, program


@pytest.mark.parametrize(
    ("names", "found"),
    [
        (["aten::mm", "DeepSpeedEngine.forward"], ["deepspeed"]),
        (["deepspeed/runtime/engine.py(1800): forward"], ["deepspeed"]),
        (["megatron/core/pipeline_parallel/schedules.py(50): forward_step"], ["megatron"]),
        (["FSDP::all_gather (layers.0)", "transformers/trainer.py(2500): train"], ["transformers", "fsdp2"]),
        (["DistributedDataParallel.forward"], ["ddp"]),
        (["FullyShardedDataParallel.forward"], ["fsdp"]),
        (["HorovodAllreduce"], ["horovod"]),
        (["step[DECODE bs=4]"], ["sglang"]),
        (["scheduler.run_batch"], ["sglang"]),
        (["[Executor] _forward_step 3: 1 ctx reqs"], ["tensorrt_llm"]),
        (["execute_context_1(8)_generation_2(2)"], ["vllm"]),
        (["gpu_model_runner: forward"], ["vllm"]),
        (["[pl][profile]run_training_batch"], ["lightning"]),
        (["torchtitan/train.py(30): step", "accelerate/accelerator.py(9): backward"], ["torchtitan", "accelerate"]),
        (["void deepspeed_like_kernel()", "aten::mm"], []),
    ],
)
def test_frameworks(names: list[str], found: list[str]) -> None:
    assert frameworks(names) == found


@pytest.mark.parametrize(("format", "found"), [("operations", ["megatron"]), ("kineto", [])])
def test_megatron_s_timers_tell_of_it_in_tables_of_operations_alone(format: str, found: list[str]) -> None:
    """Analyses of other traces give these names to what they find there."""
    assert frameworks(["forward-compute", "optimizer-clip-main-grad"], formats=[format]) == found


def test_megatron_by_its_groups() -> None:
    groups = [("TENSOR_MODEL_PARALLEL_GROUP", 2), ("PIPELINE_MODEL_PARALLEL_GROUP", 4), ("DATA_PARALLEL_GROUP", 1)]
    assert frameworks([], [description for description, _ in groups]) == ["megatron"]
    assert parallelism(groups) == {"tp": 2, "pp": 4}


@pytest.mark.parametrize(
    ("names", "formats", "expected"),
    [
        (["gemm"], {"kineto"}, "pytorch"),  # whoever's kernels: PyTorch's profiler wrote it
        (["void at::native::vectorized_elementwise_kernel<(int)4>", "cudaLaunchKernel"], {"nsys"}, "pytorch"),
        (["triton_poi_fused_add_0"], {"nsys"}, "pytorch"),
        (["/opt/torch/nn/modules/module.py(1): forward"], {"nsys"}, "pytorch"),
        (["DeepSpeedEngine.forward"], {"nsys"}, "pytorch"),
        (["XlaModule:#hlo_module=jit_step#"], {"nsys"}, "jax"),
        (["TSL:Execute"], {"nsys"}, "jax"),
        (["jit_train_step", "aten::copy_"], {"nsys"}, "jax"),  # torch loads its data
        (["saxpy(double *, double *)", "cudaMemcpy", "MPI_Send"], {"nsys"}, "native"),
        (["void clover::par_ranged2d_kernel<field>"], {"nsys"}, "native"),
        (["torchiere::ignite", "rejit_x", "creator::native::f"], {"nsys"}, "native"),  # only parts of words
    ],
)
def test_told_by_names_and_formats(names: list[str], formats: set[str], expected: str) -> None:
    assert program(names, formats, any_events=True) == expected


def test_records_without_events_say_nothing() -> None:
    assert program([], {"nccl-log"}, any_events=False) is None
    assert program([], {"allocator-snapshot"}, any_events=False) == "pytorch"

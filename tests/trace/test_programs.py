"""What kind of program a trace is of, by whole identifiers and by formats."""

from __future__ import annotations

import pytest

from gpuscope.trace.naming.programs import program


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

"""Kernels of the table: short names, and rows of some ranks and steps."""

from __future__ import annotations

import pytest
from helpers.pair import SCRIPT

from gpuscope.dashboards.data.kernel_rows import kernel_rows, short
from gpuscope.dashboards.data.open_runs import OpenRun
from gpuscope.dashboards.state import parse


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("void at::native::(anonymous namespace)::softmax<8, float>(float*)", "softmax"),
        ("ncclDevKernel_AllReduce_Sum_f32", "ncclDevKernel_AllReduce_Sum_f32"),
        ("Memcpy HtoD (Host -> Device)", "Memcpy HtoD (Host -> Device)"),
        (
            "void cutlass::Kernel<cutlass_80_simt_sgemm_256x128_8x4>(cutlass_80::Params)",
            "cutlass_80_simt_sgemm_256x128_8x4",
        ),
        ("std::enable_if<!(false), void>::type internal::gemvx::kernel<int, float>(x)", "gemvx::kernel"),
        ("ncclKernel_SendRecv_RING_SIMPLE_Sum_int8_t(ncclWorkElem)", "ncclKernel_SendRecv_RING_SIMPLE_Sum_int8_t"),
        (SCRIPT, SCRIPT),
        ("", ""),
    ],
)
def test_a_short_name_is_the_functions(name: str, expected: str) -> None:
    assert short(name) == expected


def test_rows_of_ranks_and_steps(pair: OpenRun) -> None:
    """300 µs on rank 0 and 400 on rank 1, in each of two steps."""
    whole, one = (
        next(row for row in kernel_rows(pair, parse(query)) if row["name"] == SCRIPT)
        for query in ("", "?ranks=1&steps=1")
    )
    assert [whole[key] for key in ("count", "dur_ns", "min_ns", "median_ns", "max_ns")] == [
        4, 1_400_000, 300_000, 400_000, 400_000,
    ]  # fmt: skip
    assert [one[key] for key in ("count", "dur_ns", "min_ns", "median_ns", "max_ns")] == [1, *[400_000] * 4]
    assert one["category"] == whole["category"]
    assert kernel_rows(pair, parse("?ranks=7")) == []

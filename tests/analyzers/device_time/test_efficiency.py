"""Categories, rates and MFU on traces written by hand; times in µs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers import needs
from helpers.kineto import Event, call, kernel, note, op, write

from gpuscope.analyzers.base.lanes import EFFICIENCY, KERNELS, views
from gpuscope.analyzers.device_time import efficiency, kernel_times
from gpuscope.analyzers.device_time.attention_flops import recomputed
from gpuscope.schema.document import EfficiencyEntry, KernelEntry
from gpuscope.sources.opening import open_trace

H100 = "NVIDIA H100 80GB HBM3"
GEMM = "sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x128x64"
BF16 = ["c10::BFloat16", "c10::BFloat16"]
PRODUCT = 2 * 1000 * 2000 * 3000


def product(
    at: float, correlation: int, dtype: str = "c10::BFloat16", name: str = GEMM, dur: float = 20
) -> list[Event]:
    """`aten::mm` of 1000 × 2000 by 2000 × 3000, inside `aten::linear`, which records its shapes too."""
    return [
        op(at, 8, "aten::linear", **{"Input Dims": [[1000, 2000], [3000, 2000]], "Input type": [dtype, dtype]}),
        op(at + 1, 6, "aten::mm", **{"Input Dims": [[1000, 2000], [2000, 3000]], "Input type": [dtype, dtype]}),
        call(at + 2, 2, correlation),
        kernel(at + 10, dur, correlation, name),
    ]


def look(path: Path, *events: Event, gpu: str | None = H100) -> tuple[list[KernelEntry], list[EfficiencyEntry]]:
    header: dict[str, Any] = {"deviceProperties": [{"id": 0, "name": gpu}]} if gpu else {}
    trace = open_trace(write(path / "trace.json", *events, **header))
    lanes = views(trace)
    kernels: list[KernelEntry] = kernel_times.run(trace, lanes).sections[KERNELS]
    found: list[EfficiencyEntry] = efficiency.EFFICIENCY_ANALYZER.run(trace, lanes).sections[EFFICIENCY]
    return kernels, found


def test_mfu_of_each_step(tmp_path: Path) -> None:
    """Two judged steps of 100 µs on the device, with one product in the first and two in the second; the last step,
    of 20 µs, is not judged."""
    events = [note(100, 90, "ProfilerStep#1"), *product(101, 1), note(200, 90, "ProfilerStep#2"), *product(201, 2)]
    events += [*product(240, 3), note(300, 90, "ProfilerStep#3"), *product(301, 4)]
    kernels, (found,) = look(tmp_path, *events)
    peak = 989.4e12
    first, second = found["steps"]
    assert (first["dur_ns"], first["flops"]) == (100_000, PRODUCT), "the linear around the product counts nothing again"
    assert first["mfu"] == pytest.approx(PRODUCT / 100e-6 / peak)
    assert second["mfu"] == pytest.approx(2 * PRODUCT / 100e-6 / peak)
    assert found["mfu"] == pytest.approx(3 * PRODUCT / 200e-6 / peak)
    assert (found["coverage_frac"], found["why"]) == (1.0, "")
    assert found["precisions"] == [{"precision": "bf16", "flops": 3 * PRODUCT, "peak_flops_per_s": peak}]
    (entry,) = kernels
    assert entry["flops_per_s"] == pytest.approx(PRODUCT / 20e-6)
    assert (entry["precision"], entry["category"]) == ("bf16", "gemm")
    assert entry["peak_frac"] == pytest.approx(PRODUCT / 20e-6 / peak)


def test_precisions_add_up_by_the_time_they_need_at_their_peaks(tmp_path: Path) -> None:
    events = [*product(100, 1), *product(140, 2, "c10::Float8_e4m3fn", "nvjet_qqtst_128x256", dur=70)]
    _, (found,) = look(tmp_path, *events)
    assert found["mfu"] == pytest.approx((PRODUCT / 989.4e12 + PRODUCT / 1978.9e12) / 110e-6)
    assert found["steps"][0]["step"] is None, "no steps: the window is one"
    assert found["flops_per_step"] is None


@pytest.mark.parametrize(
    ("gpu", "dtype", "name", "why"),
    [
        (None, "c10::BFloat16", GEMM, "the model of the device is not recorded"),
        ("NVIDIA GeForce GT 710", "c10::BFloat16", GEMM, "no peak is known for 'NVIDIA GeForce GT 710'"),
        (H100, "float", "nvjet_kernel", "whether they were multiplied as TF32 or FP32 is not recorded"),
        ("Tesla V100-SXM2-16GB", "c10::BFloat16", GEMM, "no peak at bf16 is known"),
    ],
)
def test_no_mfu_without_a_peak(tmp_path: Path, gpu: str | None, dtype: str, name: str, why: str) -> None:
    _, (found,) = look(tmp_path, *product(100, 1, dtype, name), gpu=gpu)
    assert found["mfu"] is None
    assert why in found["why"]
    assert found["flops_per_s"] == pytest.approx(PRODUCT / 20e-6), "the rate needs no peak"


def test_float_on_a_device_without_tf32(tmp_path: Path) -> None:
    _, (found,) = look(tmp_path, *product(100, 1, "float", "nvjet_kernel"), gpu="Tesla V100-SXM2-16GB")
    assert found["mfu"] == pytest.approx(PRODUCT / 20e-6 / 15.7e12)


def test_no_mfu_without_shapes(tmp_path: Path) -> None:
    _, (found,) = look(tmp_path, op(100, 8, "aten::mm"), call(102, 2, 1), kernel(110, 20, 1, GEMM))
    assert found["mfu"] is None
    assert found["coverage_frac"] == 0
    assert "record_shapes=True" in found["why"]


def test_coverage_is_a_share_of_multiplying_time(tmp_path: Path) -> None:
    """20 µs of products with shapes, 60 µs without; 40 µs of another kind count for neither."""
    events = [*product(100, 1), op(150, 8, "aten::mm"), call(152, 2, 2), kernel(160, 60, 2, GEMM)]
    _, (found,) = look(tmp_path, *events, op(230, 8, "aten::gelu"), call(232, 2, 3), kernel(240, 40, 3, "gelu"))
    assert found["coverage_frac"] == pytest.approx(20 / 80)
    assert "counts 25 %" in found["why"]


def test_convolution_gradients_share_their_operators_flops_by_time(tmp_path: Path) -> None:
    """2 · 2 · 8 · 8 · (4 · 6 · 3 · 3) for each of two gradients, in two kernels of 30 and 10 µs."""
    dims = [[2, 4, 8, 8], [2, 6, 8, 8], [4, 6, 3, 3], [], [], [], [], [], [], [], []]
    scalars = ["", "", "", "[0]", "[1, 1]", "[1, 1]", "[1, 1]", "False", "[0, 0]", "1", "[True, True, False]"]
    told = {"Input Dims": dims, "Input type": ["c10::BFloat16"] * 3, "Concrete Inputs": scalars}
    kernels, _ = look(
        tmp_path,
        op(100, 20, "aten::convolution_backward", **told),
        call(101, 2, 1),
        call(104, 2, 2),
        call(107, 2, 3),
        kernel(110, 30, 1, "sm90_xmma_dgrad_implicit_gemm_bf16"),
        kernel(140, 10, 2, "sm90_xmma_wgrad_implicit_gemm_bf16"),
        kernel(150, 40, 3, "batched_transpose_32x32_half"),
    )
    both = 2 * 2 * 2 * 64 * 4 * 6 * 9
    rates = {entry["name"]: entry["flops_per_s"] for entry in kernels}
    assert {entry["category"] for entry in kernels} == {"convolution"}, "its layout copies are the convolution's"
    assert rates.pop("batched_transpose_32x32_half") is None
    assert list(rates.values()) == [pytest.approx(both / 40e-6)] * 2


def test_categories_go_by_the_operator_first(tmp_path: Path) -> None:
    """One kernel's name under six operators; autograd's thread has its own."""
    same = "void at::native::vectorized_elementwise_kernel<4, at::native::f(int)::{lambda(float)#1}>(int)"
    events: list[Event] = []
    ops = (
        ("aten::mul", 1),
        ("aten::embedding", 1),
        ("MyFunctionBackward", 2),
        ("aten::native_layer_norm_backward", 2),
        ("aten::_foreach_mul_", 1),
    )
    for index, (name, thread) in enumerate(ops):
        at = 100 + 50 * index
        events += [
            op(at, 8, name, tid=thread),
            call(at + 2, 2, index + 1, tid=thread),
            kernel(at + 10, 20, index + 1, same),
        ]
    events += [
        note(400, 50, "Optimizer.step#SGD.step"),
        op(405, 8, "aten::mul"),
        call(406, 2, 9),
        kernel(420, 20, 9, same),
    ]
    events += [op(102, 5, "aten::native_layer_norm_backward", tid=3), op(151, 5, "aten::index_select")]
    kernels, _ = look(tmp_path, *events)
    assert {entry["category"]: entry["count"] for entry in kernels} == {
        "elementwise": 2,
        "embedding": 1,
        "normalisation": 1,
        "optimizer": 2,
    }


def test_the_optimizers_products_are_no_model_flops(tmp_path: Path) -> None:
    _, (found,) = look(tmp_path, *product(100, 1), note(150, 40, "Optimizer.step#Muon.step"), *product(155, 2))
    assert found["steps"][0]["flops"] == PRODUCT


SHARED = Path(__file__).parents[4] / "shared/traces"


def test_shapes_of_an_nsys_report() -> None:
    """109 `aten::bmm` ranges; their sizes, summed with SQL and by hand, give 533,968,453,632."""
    path = SHARED / "nsys/bolong/small_fwd_A100.sqlite"
    if not path.exists():
        pytest.skip(needs.PUBLIC_TRACES)
    trace = open_trace(path)
    (found,) = efficiency.EFFICIENCY_ANALYZER.run(trace, views(trace)).sections[EFFICIENCY]
    assert found["precisions"] == [{"precision": "fp32", "flops": 533_968_453_632, "peak_flops_per_s": 19.5e12}]
    assert found["coverage_frac"] == 1
    assert found["mfu"] == pytest.approx(533_968_453_632 / 19.5e12 / 57.089922e-3)


def test_qwen_on_h100() -> None:
    """34 flash kernels of 113.396 µs in the mean, causal, so half of 20.479 GFLOP each; 47.5 % was called «optimizer»
    for its lambdas."""
    path = SHARED / "kineto/tracelens_qwen/h100.json.gz"
    if not path.exists():
        pytest.skip(needs.PUBLIC_TRACES)
    trace = open_trace(path)
    kernels: list[KernelEntry] = kernel_times.run(trace, views(trace)).sections[KERNELS]
    flash = next(entry for entry in kernels if "flash_fwd_kernel" in entry["name"])
    assert flash["category"] == "attention"
    assert flash["flops_per_s"] == pytest.approx(20_478_754_816 / 2 / 113.396e-6, rel=0.01)
    assert flash["peak_frac"] == pytest.approx(0.091, abs=0.001)
    shares: dict[str, float] = {}
    for entry in kernels:
        shares[entry["category"]] = shares.get(entry["category"], 0) + entry["share_frac"]
    assert "optimizer" not in shares
    assert shares["gemm"] == pytest.approx(0.28, abs=0.01)
    assert shares["attention"] == pytest.approx(0.084, abs=0.002)


def again(at: float, correlation: int, node: str) -> list[Event]:
    """A product of the forward pass within a node of the backward pass."""
    return [op(at - 0.5, 12, f"autograd::engine::evaluate_function: {node}"), *product(at, correlation)]


@pytest.mark.parametrize(
    ("node", "runs_again"),
    [
        ("AddmmBackward0", True),  # unpacking a saved tensor runs the forward pass of its part
        ("CheckpointFunctionBackward", True),
        # An autograd.Function of the program's own may multiply as it likes.
        ("LinearWithGradAccumulationBackward", False),
    ],
)
def test_what_is_computed_again_is_no_model_work(tmp_path: Path, node: str, runs_again: bool) -> None:
    """A product in the forward pass, the same again in the backward pass, and one of the backward pass itself."""
    own = [
        op(161, 12, "autograd::engine::evaluate_function: MmBackward0"),
        op(162, 6, "aten::mm", **{"Input Dims": [[1000, 2000], [2000, 3000]], "Input type": BF16}),
        call(163, 2, 3),
        kernel(172, 20, 3, GEMM),
    ]
    steps = [note(100, 98, "ProfilerStep#1"), note(200, 98, "ProfilerStep#2")]
    events = [*steps, *product(101, 1), *again(131, 2, node), *own, *product(201, 4)]
    _, (found,) = look(tmp_path, *events)
    whole = sum(one["dur_ns"] for one in found["steps"])
    peak = 989.4e12 * whole * 1e-9
    assert found["hfu"] == pytest.approx(4 * PRODUCT / peak)
    assert found["mfu"] == pytest.approx((3 if runs_again else 4) * PRODUCT / peak)
    assert found.get("checkpointed") is runs_again


def test_without_the_repeated_products_there_is_only_hfu(tmp_path: Path) -> None:
    """The program checkpoints, and a compiled backward pass does not show what it runs again."""
    events = [op(99, 0.5, "CheckpointFunction"), *product(101, 1)]
    _, (found,) = look(tmp_path, *events)
    assert found["mfu"] is None
    assert found["hfu"] is not None
    assert "computed again" in found["why"]


def test_real_checkpointing_is_recognised(tmp_path: Path) -> None:
    """Which operators run again is told right of a real recording, with and without reentry: each linear of the
    checkpointed block twice, its backward products once."""
    torch = pytest.importorskip("torch")
    from torch.profiler import ProfilerActivity, profile
    from torch.utils.checkpoint import checkpoint

    block = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU(), torch.nn.Linear(8, 8))
    for reentrant in (False, True):
        path = tmp_path / f"{reentrant}.json"
        with profile(activities=[ProfilerActivity.CPU], record_shapes=True) as recorded:
            checkpoint(block, torch.ones(4, 8, requires_grad=True), use_reentrant=reentrant).sum().backward()
        recorded.export_chrome_trace(str(path))
        trace = open_trace(path)
        host = trace["host_events"]
        products = np.flatnonzero(trace.names.matching(_multiplies)[host["name"]])
        products = products[np.argsort(host["start"][products])]
        # Two forward, two again, then the two of each linear's backward pass.
        assert recomputed(trace, products).tolist() == [False] * 2 + [True] * 2 + [False] * 4


def _multiplies(name: str) -> bool:
    return name in ("aten::addmm", "aten::mm")

"""Advice on compute: a fault put into a simulated job, and the prediction beside the job without it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import simulator.kineto_rows
import simulator.script
import simulator.training
from helpers.ranges import holds
from simulator.catalogue import COMPUTE, TINY
from simulator.job import Job
from simulator.judged import Case
from simulator.kineto_rows import Profiler

import gpuscope
from gpuscope.schema.document import Report

QUIET = replace(COMPUTE, parallel="single", ranks=1, steps=5)
"""The device is the limit; FP32 products, and three elementwise kernels behind each layer's."""
SGEMM, TF32 = "ampere_sgemm_128x64_tn", "void cutlass::Kernel2<cutlass_80_tensorop_s1688gemm_256x128_16x3_tn_align4>"
BF16 = "ampere_bf16_s16816gemm_bf16_128x256_ldg8_f2f_stages_64x3_tn"
FUSED = "triton_poi_fused_gelu_0"
APEX = "void multi_tensor_apply_kernel<TensorListMetadata<4>, AdamFunctor<float>, float>(long)"

Simulate = Callable[..., Report]


@pytest.fixture
def simulated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Simulate:
    """The report on a job whose kernels have these names, on this GPU."""

    def run(
        job: Job,
        gemm: str = BF16,
        small: str = FUSED,
        optimizer: str = APEX,
        gpu: str = "NVIDIA A100-SXM4-80GB",
        shapes: bool = False,
    ) -> Report:
        monkeypatch.setattr(simulator.training, "GEMM", gemm)
        monkeypatch.setattr(simulator.training, "SMALL", small)
        monkeypatch.setattr(simulator.training, "FOREACH", optimizer)
        monkeypatch.setattr(simulator.kineto_rows, "DEVICE_NAME", gpu)
        job = replace(job, name=f"{job.name}{len(list(tmp_path.iterdir()))}")
        return gpuscope.analyze(Case(job, "", Profiler(shapes=shapes)).write(tmp_path)).report

    return run


def step(report: Report) -> int:
    assert report["step_time"] is not None
    return report["step_time"]["median_ns"]


def codes(report: Report) -> set[str]:
    return {one["code"] for one in (*report["suggestions"], *report["advice"]["unpredicted"])} - {"numa_binding"}


def hopper_setting(report: Report) -> str:
    return next(one["setting"]["name"] for one in report["suggestions"] if one["code"] == "hopper_attention")


def foretold(before: Report, after: Report, code: str) -> None:
    """The suggestion is there, and what the job takes without the fault lies within its range."""
    predicted = next(one["predicted"] for one in before["suggestions"] if one["code"] == code)
    assert holds(predicted, step(after)), (predicted, step(after))
    assert code not in codes(after)


@pytest.mark.parametrize("reached", [0.35, 0.7])
@pytest.mark.parametrize(("code", "kernel", "peak"), [("tf32", TF32, 155.95), ("autocast", BF16, 311.9)])
def test_fp32_products_on_tensor_cores(
    simulated: Simulate, code: str, kernel: str, peak: float, reached: float
) -> None:
    before = simulated(QUIET, gemm=SGEMM)
    faster = round(QUIET.gemm_ns * 0.87 * 19.5 / peak / reached)  # cuBLAS reaches 87 % of the FP32 peak, say
    small = QUIET.small_ns if code == "tf32" else round(QUIET.small_ns * 0.7)
    foretold(before, simulated(replace(QUIET, gemm_ns=faster, small_ns=small), gemm=kernel), code)


def test_a_gpu_without_tf32_gets_fp16(simulated: Simulate) -> None:
    before = simulated(QUIET, gemm="volta_sgemm_128x64_nn", gpu="Tesla V100-SXM2-32GB")
    (one,) = [one for one in before["suggestions"] if one["finding"] == "single_precision"]
    assert (one["code"], one["setting"]["value"]) == ("autocast", '"cuda", dtype=torch.float16')


@pytest.mark.parametrize(
    ("kernel", "to", "least", "most"),
    [("volta_sgemm_128x64_nn", "float16", 7.9, 8.0), ("ampere_sgemm_128x64_tn", "bfloat16", 2.0, 16.0)],
)
def test_a_gpu_whose_model_is_not_recorded_is_told_by_its_kernels(
    simulated: Simulate, kernel: str, to: str, least: float, most: float
) -> None:
    """Among GPUs of that generation some gain less, as cards for graphics do: the range holds all."""
    before = simulated(QUIET, gemm=kernel, gpu="")
    one = next(one for one in before["suggestions"] if one["setting"]["value"].endswith(to))
    for times in (least, most):
        faster = round(QUIET.gemm_ns * 0.85 / times / 0.5)
        small = round(QUIET.small_ns * 0.75)
        after = step(simulated(replace(QUIET, gemm_ns=min(faster, QUIET.gemm_ns), small_ns=small), gpu=""))
        assert one["predicted"]["low_ns"] <= after <= one["predicted"]["high_ns"]


def test_products_get_no_faster_than_the_peaks_are_where_their_work_is_not_known(simulated: Simulate) -> None:
    """TF32's peak is twice that of FP32 on this card; a tenth is for all other errors."""
    before = simulated(QUIET, gemm=SGEMM, gpu="NVIDIA RTX A6000")
    one = next(one["predicted"] for one in before["suggestions"] if one["code"] == "tf32")
    products = QUIET.layers * 3 * QUIET.gemms * QUIET.gemm_ns
    assert one["step_ns_before"] - one["low_ns"] <= products * (1 - 1 / 2) * 1.1


def test_without_a_model_and_a_name_of_kernels_there_is_no_figure(simulated: Simulate) -> None:
    before = simulated(QUIET, gemm="void gemm_kernel<float>", gpu="")
    assert not {"tf32", "autocast"} & {one["code"] for one in before["suggestions"]}
    unpredicted = [one for one in before["advice"]["unpredicted"] if one["finding"] == "single_precision"]
    assert all("model of the device is not recorded" in one["why_not"] for one in unpredicted)


def test_what_the_host_holds_up_gets_no_faster_kernels(simulated: Simulate) -> None:
    launched = simulated(TINY, gemm=SGEMM)
    assert {"tf32", "autocast"}.isdisjoint(one["code"] for one in launched["suggestions"])


def test_graphs_fuse_too_where_launching_is_the_limit(simulated: Simulate) -> None:
    found = codes(simulated(TINY, small=simulator.training.SMALL))
    assert "cuda_graphs" in found
    assert "compile" not in found


def test_products_on_tensor_cores_are_left_alone(simulated: Simulate) -> None:
    assert codes(simulated(QUIET)) == set()


@pytest.mark.parametrize("kept", [1, 2])
def test_unfused_chains(simulated: Simulate, kept: int) -> None:
    """Six kernels behind each layer's products: in the compiled job one (or two) of them."""
    eager = replace(QUIET, smalls=6, small_ns=60_000, gemms=2)
    before = simulated(eager, small=simulator.training.SMALL)
    foretold(before, simulated(replace(eager, smalls=kept)), "compile")


def test_compiled_kernels_are_no_chain(simulated: Simulate) -> None:
    assert "compile" not in codes(simulated(replace(QUIET, smalls=6, small_ns=60_000)))


NCHW = "void cudnn::ops::nchwToNhwcKernel<__nv_bfloat16, __nv_bfloat16, float, false, true>(int)"


def test_layout_conversions(simulated: Simulate) -> None:
    job = replace(QUIET, smalls=2, small_ns=60_000, gemms=1)
    before = simulated(job, small=NCHW)
    foretold(before, simulated(replace(job, smalls=0)), "channels_last")


def test_attention_in_pieces(simulated: Simulate) -> None:
    """The kernels between two products are a softmax and its companions; in the fused job they are gone."""
    softmax = "void (anonymous namespace)::softmax_warp_forward<float, float, float, 9, false, false>(float*)"
    job = replace(QUIET, smalls=2, small_ns=90_000, gemms=1, layers=6)
    before = simulated(job, small=softmax, shapes=False)
    # Operators were recorded: products that are no batched ones (aten::addmm) are no attention.
    assert "fused_attention" not in codes(before)


@pytest.mark.parametrize("ratio", [1.2, 1.9])
def test_flash_attention_2_on_hopper(simulated: Simulate, ratio: float) -> None:
    flash = "void flash::flash_fwd_kernel<Flash_fwd_kernel_traits<128, 128, 64, 4> >(flash::Flash_fwd_params)"
    hopper, job = "NVIDIA H100 80GB HBM3", replace(QUIET, smalls=1, small_ns=600_000)
    before = simulated(job, small=flash, gpu=hopper)
    newer = "cudnn_generated_fort_native_sdpa_sm90_flash_fprop_wgmma_f16"
    after = simulated(replace(job, small_ns=round(600_000 / ratio)), small=newer, gpu=hopper)
    foretold(before, after, "hopper_attention")
    # Of these kernels PyTorch chooses its own alone; the package flash-attn is replaced by hand.
    by_pytorch = simulated(job, small=flash.replace(" flash::", " pytorch_flash::"), gpu=hopper)
    names = [hopper_setting(report) for report in (before, by_pytorch)]
    assert names == ["flash_attn_interface.flash_attn_func", "torch.nn.attention.sdpa_kernel"]
    assert "hopper_attention" not in codes(simulated(job, small=flash))  # an A100


FOREACH = (
    "void at::native::(anonymous namespace)::multi_tensor_apply_kernel<at::native::TensorListMetadata<2>, Binary>(int)"
)
ADAM = (
    "void at::native::(anonymous namespace)::multi_tensor_apply_kernel<FusedOptimizerTensorListMetadata<4>, FusedAdam>"
)


def test_nothing_shortens_kernels_of_a_few_microseconds(simulated: Simulate) -> None:
    """FP32 products of 9 µs and elementwise kernels of 4, on a device that waits for the host most of the time."""
    eager = "void at::native::vectorized_elementwise_kernel<4, Gelu>"
    report = simulated(TINY, gemm=SGEMM, small=eager)
    planned = {one["code"] for one in report["advice"].get("plan", {"steps": []})["steps"]}
    assert "single_precision" in {one["code"] for one in report["findings"]}
    assert not (codes(report) | planned) & {"autocast", "tf32", "compile"}
    assert "autocast" in codes(simulated(QUIET, gemm=SGEMM, small=eager))


@pytest.mark.parametrize("name", ["SGD", "NAdam"])
def test_an_optimizer_without_a_fused_form_is_not_told_to_take_it(simulated: Simulate, name: str) -> None:
    job = replace(QUIET, optimizer_kernels=20, optimizer_ns=100_000, host_work=f"Optimizer.step#{name}.step")
    found = [one["setting"]["name"] for one in simulated(job, optimizer=FOREACH)["suggestions"]]
    assert [one for one in found if "optim" in one] == (["torch.optim.SGD.fused"] if name == "SGD" else [])


def test_an_optimizer_in_many_passes(simulated: Simulate) -> None:
    job = replace(QUIET, optimizer_kernels=20, optimizer_ns=100_000)
    before = simulated(job, optimizer=FOREACH)
    foretold(before, simulated(replace(job, optimizer_kernels=7), optimizer=ADAM), "fused_optimizer")


def test_the_ideal_step_is_the_kernels_at_their_peaks(simulated: Simulate) -> None:
    report = simulated(QUIET, shapes=True, gpu="NVIDIA H100 80GB HBM3")
    (ideal,) = report["ideal"]
    (entry,) = report["compute"]
    assert ideal["ideal_ns"] <= ideal["step_ns"]
    gemm = next(part for part in entry["parts"] if part["category"] == "gemm")
    (efficiency,) = report["efficiency"]
    (precision,) = efficiency["precisions"]
    assert gemm["floor_ns"] == pytest.approx(efficiency["flops_per_step"] / 989.4e12 * 1e9, rel=1e-3)
    assert precision["precision"] == "bf16"
    others = sum(part["dur_ns"] for part in entry["parts"] if not part["known_ns"])
    assert ideal["compute_ns"] == pytest.approx(min(gemm["floor_ns"] + others, ideal["step_ns"]), rel=0.02)


@pytest.mark.parametrize("hidden", [1023, 1024])
def test_sizes_that_tensor_cores_handle_badly(
    hidden: int, simulated: Simulate, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Products of 1023 columns take four times what those of 1024 do, which reach 60 % of their floor."""
    monkeypatch.setattr(simulator.training, "HIDDEN", hidden)
    monkeypatch.setattr(simulator.script, "HIDDEN", hidden)
    hopper = "NVIDIA H100 80GB HBM3"
    monkeypatch.setattr(simulator.script, "FLOPS_PER_NS", 989_400 * 0.15)
    slow = simulated(QUIET, gpu=hopper, shapes=True)
    if hidden % 8 == 0:
        assert "padded_sizes" not in codes(slow)
        return
    predicted = next(one["predicted"] for one in slow["suggestions"] if one["code"] == "padded_sizes")
    aligned = simulated(replace(QUIET, gemm_ns=QUIET.gemm_ns // 4), gpu=hopper)
    assert predicted["low_ns"] <= step(aligned) <= predicted["high_ns"]


@pytest.mark.parametrize(
    ("gpu", "share", "expected"),
    [
        ("NVIDIA H100 80GB HBM3", 0.7, True),
        ("NVIDIA H100 80GB HBM3", 0.3, False),
        ("NVIDIA A100-SXM4-80GB", 0.7, False),
    ],
)
def test_fp8_where_16_bits_are_near_their_peak(
    gpu: str, share: float, expected: bool, simulated: Simulate, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(simulator.script, "FLOPS_PER_NS", (989_400 if "H100" in gpu else 311_900) * share)
    assert ("fp8" in codes(simulated(QUIET, gpu=gpu, shapes=True))) is expected

"""Matrix products at a precision that the tensor cores have: TF32, BF16 or FP16, FP8."""

from __future__ import annotations

from collections.abc import Iterator

from gpuscope.analyzers.advice.bounds import cost_ns
from gpuscope.analyzers.advice.framework_settings import by_framework, device_waits
from gpuscope.analyzers.advice.rule import Case, Proposal, Rule
from gpuscope.analyzers.advice.settings import deepspeed_settings, megatron_settings, other_settings, torch_settings
from gpuscope.analyzers.changes import Precision
from gpuscope.catalogue.suggestion import Suggestion
from gpuscope.hardware.device_peaks import peaks_of
from gpuscope.schema.document import FindingEntry, Setting
from gpuscope.when_used import dataclass

VERIFY = "record again: the products' kernels name the precision (tf32, bf16…) and get shorter; compare the loss curve"


@dataclass(frozen=True)
class Tf32(Suggestion):
    """FP32 products on the tensor cores."""

    code = "tf32"
    answers = ("single_precision",)
    sets = """`torch.set_float32_matmul_precision("high")`, with convolutions `torch.backends.cudnn.allow_tf32` too \
(Ampere and later)"""
    action = "Let FP32 products use TF32 on the tensor cores"
    why = "{cost}; inputs are rounded to 10 bits of mantissa, sums stay in FP32"
    risk = "products lose 13 bits of mantissa: harmless in most training, not in every solver or metric"
    verify = VERIFY


@dataclass(frozen=True)
class Autocast(Suggestion):
    """Mixed precision in BF16."""

    code = "autocast"
    answers = ("single_precision", "tf32_products")
    sets = "`torch.autocast`, `bf16` or `fp16` of the framework; FSDP2 `MixedPrecisionPolicy(param_dtype=…)`"
    action = "Train in mixed precision ({precision})"
    why = (
        "{cost}; {precision} products run on the tensor cores at twice TF32's rate or more, and activations take half "
        "the bytes"
    )
    risk = "rounds products and activations to 8 bits of mantissa: compare the loss curve"
    verify = VERIFY
    alters_training = True

    precision: str


@dataclass(frozen=True)
class ScaledAutocast(Autocast):
    """The same in FP16, where devices have no BF16."""

    action = "Train in mixed precision ({precision}), with a gradient scaler"
    risk = "fp16 overflows at 65504: the scaler skips such steps; compare the loss curve"


@dataclass(frozen=True)
class Fp8(Suggestion):
    """Products whose 16 bits run near their peak."""

    code = "fp8"
    answers = ("half_precision_products",)
    sets = "`torchao.float8`, Megatron `--fp8-format`: 16-bit products near their peak are most of a step"
    action = "Multiply the large linear layers in FP8"
    why = "{cost} near the 16-bit peak, so that only a faster precision shortens them"
    why_not = (
        "what casts and scales cost depends on the layers: the products at most halve; try it on the largest layers"
    )
    risk = "casts and scales make small layers slower; watch accuracy over a long run"
    verify = "record again: the products' kernels name e4m3 or e5m2 and get shorter; compare the loss curve"
    alters_training = True


def propose(case: Case, finding: FindingEntry) -> Iterator[Proposal]:
    """TF32 where products run in FP32, autocast for these and for TF32, FP8 where 16 bits run near their peak; nothing
    where the device waits for the host."""
    if device_waits(case):
        return
    if finding["code"] == "half_precision_products":
        value = "model, for layers whose sizes are multiples of 16"
        by_hand = other_settings.FLOAT8.to(value)
        setting = by_framework(case, by_hand, megatron=megatron_settings.FP8_FORMAT.to("hybrid"))
        most = cost_ns(case.report, finding, case.step_ns or 0) // 2  # the finding is of devices with twice the rate
        yield Proposal(finding, Fp8(), setting, at_most=most or None)
        return
    precisions = _precisions(case)
    if finding["code"] == "single_precision" and "tf32" in precisions and not case.rocm:
        yield Proposal(finding, Tf32(), _tf32(finding), (Precision("tf32"),))
    half = "bf16" if "bf16" in precisions else "fp16"
    record = Autocast(half) if half == "bf16" else ScaledAutocast(half)
    yield Proposal(finding, record, _autocast(case, half), (Precision(half),))


def _precisions(case: Case) -> set[str]:
    """At which all devices multiply faster than in FP32: by their model, else by the generation their kernels show."""
    found = {"tf32", "bf16", "fp16"}
    for entry in case.report.get("compute", []):
        peaks = peaks_of(entry["device_name"] or "")
        old = entry["generation"] in ("volta", "turing")
        found &= set(peaks) if peaks else {"fp16"} if old else found
    return found


def _tf32(finding: FindingEntry) -> Setting:
    convolutions = any("conv" in evidence["name"] or "cudnn" in evidence["name"] for evidence in finding["evidence"])
    if convolutions:
        return torch_settings.CUDNN_TF32.to('True; torch.set_float32_matmul_precision("high")')
    return torch_settings.MATMUL_PRECISION.to('"high"')


def _autocast(case: Case, half: str) -> Setting:
    return by_framework(
        case,
        torch_settings.AUTOCAST.to(f'"cuda", dtype=torch.{"bfloat16" if half == "bf16" else "float16"}'),
        transformers=other_settings.TRAINER_HALF[half].to("True"),
        megatron=megatron_settings.HALF[half].to(""),
        deepspeed=deepspeed_settings.HALF[half].to("true"),
        fsdp2=torch_settings.MP_POLICY.to("MixedPrecisionPolicy(param_dtype=torch.bfloat16)"),
    )


RULE = Rule("precision", (Fp8, Tf32, Autocast, ScaledAutocast), propose, place=220)

"""Matrix products at a precision that the tensor cores have: TF32, BF16 or FP16, FP8."""

from __future__ import annotations

from collections.abc import Iterator

from gpuscope.analyzers.advice.framework_settings import config, cost, in_dialect, python
from gpuscope.analyzers.advice.rule import Case, Knob, Proposal, Rule
from gpuscope.analyzers.changes import Precision, Refused
from gpuscope.hardware.device_peaks import peaks_of
from gpuscope.schema.document import FindingEntry, Setting

VERIFY = "record again: the products' kernels name the precision (tf32, bf16…) and get shorter; compare the loss curve"


def propose(case: Case, finding: FindingEntry) -> Iterator[Proposal]:
    """TF32 where products run in FP32, autocast for these and for TF32, FP8 where 16 bits run near their peak."""
    if finding["code"] == "half_precision_products":
        yield _fp8(case, finding)
        return
    precisions = _precisions(case)
    if finding["code"] == "single_precision" and "tf32" in precisions and not case.rocm:
        yield Proposal(
            code="tf32",
            action="Let FP32 products use TF32 on the tensor cores",
            why=f"{cost(finding)}; inputs are rounded to 10 bits of mantissa, sums stay in FP32",
            setting=_tf32(finding),
            risk="products lose 13 bits of mantissa: harmless in most training, not in every solver or metric",
            verify=VERIFY,
            changes=(Precision("tf32"),),
        )
    half = "bf16" if "bf16" in precisions else "fp16"
    yield Proposal(
        code="autocast",
        action=f"Train in mixed precision ({half})" + (", with a gradient scaler" if half == "fp16" else ""),
        why=f"{cost(finding)}; {half} products run on the tensor cores at twice TF32's rate or more, and activations "
        "take half the bytes",
        setting=_autocast(case, half),
        risk="rounds products and activations to 8 bits of mantissa: compare the loss curve"
        if half == "bf16" else "fp16 overflows at 65504: the scaler skips such steps; compare the loss curve",
        verify=VERIFY,
        changes=(Precision(half),),
        alters_training=True,
    )  # fmt: skip


def _fp8(case: Case, finding: FindingEntry) -> Proposal:
    return Proposal(
        code="fp8",
        action="Multiply the large linear layers in FP8",
        why=f"{cost(finding)} near the 16-bit peak, so that only a faster precision shortens them",
        setting=in_dialect(case, {"megatron": config("--fp8-format", "hybrid")})
        or python("torchao.float8.convert_to_float8_training", "model, for layers whose sizes are multiples of 16"),
        risk="casts and scales make small layers slower; watch accuracy over a long run",
        verify="record again: the products' kernels name e4m3 or e5m2 and get shorter; compare the loss curve",
        outcome=Refused("what casts and scales cost depends on the layers: the products at most halve; try it on "
                        "the largest layers"),
        alters_training=True,
    )  # fmt: skip


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
        return python("torch.backends.cudnn.allow_tf32", 'True; torch.set_float32_matmul_precision("high")')
    return python("torch.set_float32_matmul_precision", '"high"')


def _autocast(case: Case, half: str) -> Setting:
    setting = in_dialect(
        case,
        {
            "transformers": python(f"TrainingArguments.{half}", "True"),
            "megatron": config(f"--{half}", ""),
            "deepspeed": config(f"{half}.enabled", "true"),
            "fsdp2": python("fully_shard.mp_policy", "MixedPrecisionPolicy(param_dtype=torch.bfloat16)"),
        },
    )
    return setting or python("torch.autocast", f'"cuda", dtype=torch.{"bfloat16" if half == "bf16" else "float16"}')


RULE = Rule(
    "precision",
    (
        Knob("fp8", ("half_precision_products",), "`torchao.float8`, Megatron `--fp8-format`: 16-bit products near "
             "their peak are most of a step"),
        Knob(
            "tf32", ("single_precision",),
            '`torch.set_float32_matmul_precision("high")`, with convolutions `torch.backends.cudnn.allow_tf32` too '
            "(Ampere and later)",
        ),
        Knob(
            "autocast", ("single_precision", "tf32_products"),
            "`torch.autocast`, `bf16` or `fp16` of the framework; FSDP2 `MixedPrecisionPolicy(param_dtype=…)`",
        ),
    ),
    propose,
    place=220,
)  # fmt: skip

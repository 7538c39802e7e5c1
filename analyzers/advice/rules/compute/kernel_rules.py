"""Kernels that another setting makes fewer or shorter: fusion, layout, attention, the optimizer."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from gpuscope.analyzers.advice.framework_settings import config, cost, in_dialect, python
from gpuscope.analyzers.advice.rule import Case, Knob, Proposal, Rule
from gpuscope.analyzers.advice.rules.host.launch_rules import MIN_STEPS
from gpuscope.analyzers.changes import (
    FusedAttention,
    FusedKernels,
    FusedOptimizer,
    HopperAttention,
    NoLayoutConversion,
    PaddedProducts,
    Refused,
)
from gpuscope.schema.document import FindingEntry
from gpuscope.words import units


def propose(case: Case, finding: FindingEntry) -> Iterator[Proposal]:
    """One suggestion per finding, where the replay can tell what it gains."""
    if finding["code"] == "unfused_kernels" and _launched_too_slowly(case, finding):
        return  # torch.compile(mode="reduce-overhead") is advised for that, and fuses too
    proposal = _BY_FINDING[finding["code"]](case, finding)
    if not isinstance(case.predict(proposal.changes), Refused):
        yield proposal


def _launched_too_slowly(case: Case, finding: FindingEntry) -> bool:
    launch = case.finding("launch")
    return launch is not None and launch["share_frac"] > finding["share_frac"] and case.steady_steps >= MIN_STEPS


def _compiled(case: Case, finding: FindingEntry) -> Proposal:
    return Proposal(
        code="compile",
        action="Compile the model, so that each chain of elementwise kernels becomes one kernel",
        why=f"{cost(finding)}{_floor(case)}; a fused kernel reads its inputs once and writes its result once",
        setting=in_dialect(case, {"transformers": python("TrainingArguments.torch_compile", "True")})
        or python("torch.compile", "model  # or its layers: regional compilation starts sooner"),
        risk="the first steps compile, changing shapes compile anew; code between graph breaks stays as it is",
        verify="record again: kernels named triton_… in place of elementwise ones",
        changes=(FusedKernels(),),
    )


def _floor(case: Case) -> str:
    """What these kernels' own bytes need at memory bandwidth, where shapes tell."""
    kinds = ("elementwise", "copy", "reduction", "normalisation", "softmax")
    parts = [part for entry in case.report.get("compute", []) for part in entry["parts"] if part["category"] in kinds]
    known, floor = sum(part["known_ns"] for part in parts), sum(part["floor_ns"] for part in parts)
    if not known:
        return ""
    return (
        f"; at memory bandwidth those with known shapes need {units.share(floor / known)} of their time even one by one"
    )


def _padded(case: Case, finding: FindingEntry) -> Proposal:
    setting = in_dialect(case, {"megatron": config("--make-vocab-size-divisible-by", "128")})
    return Proposal(
        code="padded_sizes",
        action="Pad these sizes to multiples of 8, better of 64",
        why=f"{finding['message']}",
        setting=setting or python("sizes of layers, vocabulary and features", "rounded up to a multiple of 64"),
        risk="padding must be masked where it would count (a softmax over the vocabulary); checkpoints change shape",
        verify="record again: the same products in tensor-core kernels, shorter",
        changes=(PaddedProducts(),),
    )


def _channels_last(case: Case, finding: FindingEntry) -> Proposal:
    more = "; on ROCm also set PYTORCH_MIOPEN_SUGGEST_NHWC=1, without which MIOpen is given NCHW" if case.rocm else ""
    return Proposal(
        code="channels_last",
        action="Keep images and convolutions in channels-last layout" + more,
        why=f"{cost(finding)}; tensor cores want NHWC, and tensors in NCHW are converted around each convolution",
        setting=python("Module.to", "memory_format=torch.channels_last  # the model and its input batches"),
        risk="an operator without a channels-last kernel converts back: look for what remains",
        verify="record again: no nchwToNhwc, nhwcToNchw or batched_transpose kernels",
        changes=(NoLayoutConversion(),),
    )


def _attention(case: Case, finding: FindingEntry) -> Proposal:
    setting = in_dialect(
        case,
        {
            "transformers": python("from_pretrained.attn_implementation", '"sdpa"'),
            "megatron": config("--attention-backend", "flash"),
        },
    )
    return Proposal(
        code="fused_attention",
        action="Compute attention in one kernel",
        why=f"{cost(finding)}; a fused kernel keeps the scores on the chip and needs memory for none of them",
        setting=setting or python("torch.nn.functional.scaled_dot_product_attention",
                                  "query, key, value  # is_causal=True instead of a mask; enable_gqa=True for fewer "
                                  "key heads"),
        risk="rounding differs; an arbitrary mask rules out the flash kernel (FlexAttention takes it), "
        "and so does FP32",
        verify="record again: flash or efficient attention kernels, no softmax between two products",
        changes=(FusedAttention(),),
    )  # fmt: skip


def _hopper(case: Case, finding: FindingEntry) -> Proposal:
    del case
    return Proposal(
        code="hopper_attention",
        action="Take an attention kernel made for this GPU: cuDNN's, or FlashAttention 3",
        why=f"{cost(finding)}; FlashAttention 3 runs 1.5 to 2 times as fast on H100 (arXiv:2407.08608), cuDNN's alike",
        setting=python("torch.nn.attention.sdpa_kernel", "SDPBackend.CUDNN_ATTENTION  # around the model"),
        risk="not every head size, mask and type is supported; short sequences gain less",
        verify="record again: kernels named cudnn_…sdpa… or FlashAttnFwdSm90 in place of flash_fwd_kernel",
        changes=(HopperAttention(),),
    )


def _optimizer(case: Case, finding: FindingEntry) -> Proposal:
    setting = in_dialect(case, {"transformers": python("TrainingArguments.optim", '"adamw_torch_fused"')})
    return Proposal(
        code="fused_optimizer",
        action="Take the optimizer's fused implementation",
        why=f"{cost(finding)}; one kernel updates parameters and states in a single pass over memory",
        setting=setting or python("torch.optim.AdamW.fused", "True  # also of Adam, SGD and Adagrad"),
        risk="needs all parameters on the device, in floating point; results differ in rounding. An optimizer that has "
        "none takes foreach=True: a kernel per operation over many parameters",
        verify="record again: kernels named FusedAdam… in place of multi_tensor_apply and elementwise ones",
        changes=(FusedOptimizer(),),
    )


_BY_FINDING: dict[str, Callable[[Case, FindingEntry], Proposal]] = {
    "unfused_kernels": _compiled,
    "odd_sizes": _padded,
    "layout_conversion": _channels_last,
    "unfused_attention": _attention,
    "flash_attention_2": _hopper,
    "optimizer_passes": _optimizer,
}

RULE = Rule(
    "kernels",
    (
        Knob("compile", ("unfused_kernels",), "`torch.compile`, where memory-bound kernels follow each other"),
        Knob("padded_sizes", ("odd_sizes",), "sizes in multiples of 64, Megatron `--make-vocab-size-divisible-by`"),
        Knob(
            "channels_last", ("layout_conversion",),
            "`model.to(memory_format=torch.channels_last)`, on ROCm with `PYTORCH_MIOPEN_SUGGEST_NHWC=1`",
        ),
        Knob(
            "fused_attention", ("unfused_attention",),
            "`scaled_dot_product_attention`, Transformers `attn_implementation`, Megatron `--attention-backend`",
        ),
        Knob("hopper_attention", ("flash_attention_2",), "`sdpa_kernel(SDPBackend.CUDNN_ATTENTION)`, FlashAttention 3"),
        Knob("fused_optimizer", ("optimizer_passes",), "`torch.optim.AdamW(fused=True)` and its kin; "
             "`foreach=True` where there is none"),
    ),
    propose,
    place=120,
)  # fmt: skip

"""Kernels that another setting makes fewer or shorter: fusion, layout, attention, the optimizer."""

from __future__ import annotations

from collections.abc import Iterator

from gpuscope import when_used
from gpuscope.analyzers.advice.framework_settings import by_framework, device_waits, fusable, python
from gpuscope.analyzers.advice.rule import Case, Proposal, Rule
from gpuscope.analyzers.advice.settings import megatron_settings, other_settings, torch_settings
from gpuscope.analyzers.changes import (
    Change,
    FusedAttention,
    FusedKernels,
    FusedOptimizer,
    HopperAttention,
    NoLayoutConversion,
    PaddedProducts,
    Refused,
)
from gpuscope.catalogue.suggestion import Suggestion
from gpuscope.schema.document import FindingEntry, Setting
from gpuscope.when_used import dataclass
from gpuscope.words import units


@dataclass(frozen=True)
class Compiled(Suggestion):
    """Chains of elementwise kernels fused."""

    code = "compile"
    answers = ("unfused_kernels",)
    sets = "`torch.compile`, where memory-bound kernels follow each other"
    action = "Compile the model, so that each chain of elementwise kernels becomes one kernel"
    why = "{cost}{floor}; a fused kernel reads its inputs once and writes its result once"
    risk = "the first steps compile, changing shapes compile anew; code between graph breaks stays as it is"
    verify = "record again: kernels named triton_… in place of elementwise ones"

    floor_frac: float | None
    """Share of their time that these kernels' own bytes need at memory bandwidth, where shapes tell."""

    @property
    def floor(self) -> str:
        if self.floor_frac is None:
            return ""
        share = units.share(self.floor_frac)
        return f"; at memory bandwidth those with known shapes need {share} of their time even one by one"


@dataclass(frozen=True)
class Padded(Suggestion):
    """Sizes that tensor cores take."""

    code = "padded_sizes"
    answers = ("odd_sizes",)
    sets = "sizes in multiples of 64"
    action = "Pad these sizes to multiples of 8, better of 64"
    why = "{message}"
    risk = "padding must be masked where it would count (a softmax over the vocabulary); checkpoints change shape"
    verify = "record again: the same products in tensor-core kernels, shorter"


@dataclass(frozen=True)
class ChannelsLast(Suggestion):
    """The layout that tensor cores want."""

    code = "channels_last"
    answers = ("layout_conversion",)
    sets = "`model.to(memory_format=torch.channels_last)`, on ROCm with `PYTORCH_MIOPEN_SUGGEST_NHWC=1`"
    action = "Keep images and convolutions in channels-last layout{on_rocm}"
    why = "{cost}; tensor cores want NHWC, and tensors in NCHW are converted around each convolution"
    risk = "an operator without a channels-last kernel converts back: look for what remains"
    verify = "record again: no nchwToNhwc, nhwcToNchw or batched_transpose kernels"

    rocm: bool

    @property
    def on_rocm(self) -> str:
        more = "; on ROCm also set PYTORCH_MIOPEN_SUGGEST_NHWC=1, without which MIOpen is given NCHW"
        return more if self.rocm else ""


@dataclass(frozen=True)
class AttentionFused(Suggestion):
    """Attention that stores no scores."""

    code = "fused_attention"
    answers = ("unfused_attention",)
    sets = "`scaled_dot_product_attention`, Transformers `attn_implementation`, Megatron `--attention-backend`"
    action = "Compute attention in one kernel"
    why = "{cost}; a fused kernel keeps the scores on the chip and needs memory for none of them"
    risk = "rounding differs; an arbitrary mask rules out the flash kernel (FlexAttention takes it), and so does FP32"
    verify = "record again: flash or efficient attention kernels, no softmax between two products"


@dataclass(frozen=True)
class AttentionForHopper(Suggestion):
    """Attention kernels of the device's own generation."""

    code = "hopper_attention"
    answers = ("flash_attention_2",)
    sets = "`sdpa_kernel(SDPBackend.CUDNN_ATTENTION)`, FlashAttention 3"
    action = "Take an attention kernel made for this GPU: cuDNN's, or FlashAttention 3"
    why = "{cost}; FlashAttention 3 runs 1.5 to 2 times as fast on H100 (arXiv:2407.08608), cuDNN's alike"
    risk = "not every head size, mask and type is supported; short sequences gain less"
    verify = "record again: kernels named cudnn_…sdpa… or FlashAttnFwdSm90 in place of flash_fwd_kernel"


@dataclass(frozen=True)
class OptimizerFused(Suggestion):
    """One pass over the parameters."""

    code = "fused_optimizer"
    answers = ("optimizer_passes",)
    sets = "`fused=True` of `torch.optim.Adam`, `AdamW` or `SGD`, whichever the trace names"
    action = "Take the optimizer's fused implementation"
    why = "{cost}; one kernel updates parameters and states in a single pass over memory"
    risk = "needs all parameters on the device, in floating point; results differ in rounding"
    verify = "record again: kernels named FusedAdam… in place of multi_tensor_apply and elementwise ones"


@dataclass(frozen=True)
class OptimizerForeach(Suggestion):
    """A kernel per operation over many parameters, of a class without a fused form."""

    code = "foreach_optimizer"
    answers = ("optimizer_passes",)
    sets = "`foreach=True` of an optimizer that has no fused form, where it updates parameter by parameter"
    action = "Let the optimizer update many parameters with one kernel"
    why = "{cost}; {optimizer} updates its parameters one by one"
    why_not = "as many passes over memory stay; what fewer and larger kernels save depends on the parameters' sizes"
    risk = "copies of all parameters are held at once: the peak of memory rises by about their size"
    verify = "record again: kernels named multi_tensor_apply in place of elementwise ones"

    optimizer: str


def propose(case: Case, finding: FindingEntry) -> Iterator[Proposal]:
    """One suggestion per finding, where the replay can tell what it gains."""
    if finding["code"] == "optimizer_passes":
        yield from _optimizer(case, finding)
        return
    if finding["code"] == "unfused_kernels" and _launched_too_slowly(case, finding):
        return  # torch.compile(mode="reduce-overhead") is advised for that, and fuses too
    if device_waits(case) and finding["code"] not in FEWER_KERNELS:
        return
    record, setting, change = _answer(case, finding)
    if not isinstance(case.predict((change,)), Refused):
        yield Proposal(finding, record, setting, (change,))


FEWER_KERNELS = ("unfused_attention", "layout_conversion")
"""What goes with these leaves less to launch as well."""


def _launched_too_slowly(case: Case, finding: FindingEntry) -> bool:
    launch = case.finding("launch")
    return launch is not None and launch["share_frac"] > finding["share_frac"] and case.steady_steps > 0


def _answer(case: Case, finding: FindingEntry) -> tuple[Suggestion, Setting, Change]:
    """What answers a finding, by its code."""
    code = finding["code"]
    if code == "unfused_kernels":
        by_hand = torch_settings.COMPILE.to("model  # or its layers: regional compilation starts sooner")
        setting = by_framework(case, by_hand, transformers=other_settings.TRAINER_COMPILE.to("True"))
        return Compiled(_floor(case)), setting, FusedKernels()
    if code == "odd_sizes":
        setting = python("sizes of layers, vocabulary and features", "rounded up to a multiple of 64")
        return Padded(), setting, PaddedProducts()
    if code == "layout_conversion":
        setting = torch_settings.MODULE_TO.to("memory_format=torch.channels_last  # the model and its input batches")
        return ChannelsLast(case.rocm), setting, NoLayoutConversion()
    if code == "unfused_attention":
        by_hand = torch_settings.ATTENTION.to(
            "query, key, value  # is_causal=True instead of a mask; enable_gqa=True for fewer key heads"
        )
        in_transformers = other_settings.ATTENTION.to('"sdpa"')
        in_megatron = megatron_settings.ATTENTION_BACKEND.to("flash")
        setting = by_framework(case, by_hand, transformers=in_transformers, megatron=in_megatron)
        return AttentionFused(), setting, FusedAttention()
    if code == "flash_attention_2":
        return AttentionForHopper(), _hopper_attention(finding), HopperAttention()
    raise ValueError(code)


def _optimizer(case: Case, finding: FindingEntry) -> Iterator[Proposal]:
    """The fused form of the class that the trace names, where that has one; else foreach, where that is off."""
    own = [
        one for entry in case.report.get("compute", []) for one in entry["reducible"] if one["code"] == finding["code"]
    ]
    classes = sorted({name for one in own for name in one["detail"].split(", ") if name})
    fused = [
        one
        for name in fusable(case, classes)
        if (one := torch_settings.FUSED.get(name)) and one.exists(case.version("torch"))
    ]
    if fused or not classes:
        by_hand = (
            fused[0].to("True")
            if fused
            else python("the fused argument of the optimizer", "True, where it is torch's Adam, AdamW or SGD")
        )
        adamw = {"transformers": other_settings.TRAINER_OPTIM.to('"adamw_torch_fused"')}
        setting = by_framework(case, by_hand, **(adamw if fused in ([], [torch_settings.FUSED["AdamW"]]) else {}))
        if not isinstance(case.predict((FusedOptimizer(),)), Refused):
            yield Proposal(finding, OptimizerFused(), setting, (FusedOptimizer(),))
        return
    if any("multi_tensor_apply" in one["name"] for one in own):
        return
    for name in classes:
        if name in torch_settings.FOREACH:
            yield Proposal(finding, OptimizerForeach(name), torch_settings.FOREACH[name].to("True"))


def _hopper_attention(finding: FindingEntry) -> Setting:
    """By whose kernels run: what PyTorch chooses among holds for its own alone, not for the package flash-attn."""
    if any(_OF_PACKAGE.search(one["name"]) for one in finding["evidence"]):
        return python("flash_attn_interface.flash_attn_func", "in place of flash_attn's  # its folder hopper")
    return torch_settings.SDPA_KERNEL.to("SDPBackend.CUDNN_ATTENTION  # around the model")


_OF_PACKAGE = when_used.pattern(r"\bflash::flash_")
"""PyTorch's own copy has the namespace `pytorch_flash`."""


def _floor(case: Case) -> float | None:
    kinds = ("elementwise", "copy", "reduction", "normalisation", "softmax")
    parts = [part for entry in case.report.get("compute", []) for part in entry["parts"] if part["category"] in kinds]
    known, floor = sum(part["known_ns"] for part in parts), sum(part["floor_ns"] for part in parts)
    bounded = sum(part.get("bounded_ns", part["known_ns"]) for part in parts)
    return (floor - (known - bounded)) / bounded if bounded else None


RULE = Rule(
    "kernels",
    (Compiled, Padded, ChannelsLast, AttentionFused, AttentionForHopper, OptimizerFused, OptimizerForeach),
    propose,
    place=120,
)

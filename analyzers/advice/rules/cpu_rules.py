"""Training on a CPU: its threads, and the optimizer's pass over the parameters."""

from __future__ import annotations

from collections.abc import Iterator

from gpuscope import when_used
from gpuscope.analyzers.advice.rule import Case, Proposal, Rule, by_framework, device_waits, fusable, on_cpu, python
from gpuscope.analyzers.advice.settings import other_settings, torch_settings
from gpuscope.analyzers.what_if_changes import (
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
from gpuscope.schema.nccl_sections import RangeEntry
from gpuscope.when_used import dataclass
from gpuscope.words import units

# Kernels that another setting makes fewer or shorter: fusion, layout, attention, the optimizer.


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


def kernel_rules_propose(case: Case, finding: FindingEntry) -> Iterator[Proposal]:
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
        in_megatron = other_settings.ATTENTION_BACKEND.to("flash")
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


KERNEL_RULE = Rule(
    "kernels",
    (Compiled, Padded, ChannelsLast, AttentionFused, AttentionForHopper, OptimizerFused, OptimizerForeach),
    kernel_rules_propose,
    place=120,
)


WORTH = 0.1
"""Share of the steps that the optimizer takes at least."""
FUSED = "aten::_fused_"


@dataclass(frozen=True)
class FewerThreads(Suggestion):
    """No more threads than cores."""

    code = "cpu_threads"
    answers = ("waits_for_core",)
    sets = "`OMP_NUM_THREADS`, where operators take more threads than the rank has cores"
    action = "Compute in {now} threads at most"
    why = (
        "{cost}; operators run in {threads} threads where each rank has {now} of {cores} cores, and each waits for the "
        "slowest of its threads"
    )
    why_not = "how long operators take in fewer threads is not in a trace: try it"
    risk = "a call of torch.set_num_threads in the script goes before the variable"
    verify = "record again: the finding `waits_for_core` is gone or smaller"

    threads: int
    cores: int
    now: int
    """Threads of each process, so that all of them have a core."""


class OptimizerFusedOnCpu(OptimizerFused):
    """The fused implementation where there are no kernels to count."""

    answers = ("host_other",)
    why = "{cost}; the optimizer takes several operators per parameter, a fused one takes a call for all of them"
    why_not = "how long the fused implementation takes here is not in a trace: try it"
    verify = "record again: `aten::_fused_…` in place of the optimizer's many operators"


def propose(case: Case, finding: FindingEntry) -> Iterator[Proposal]:
    """By the finding."""
    if finding["code"] == "waits_for_core":
        facts = finding.get("facts", {})
        threads, cores = facts.get("threads") or 0, facts.get("cores") or 0
        now = (
            case.cores_per_rank or cores
        )  # a host's ranks share its cores, but not every trace says how many there are
        if threads > now > 0 < cores:
            now = case.cores_per_rank or max(1, cores // max(1, len(case.report["trace"]["ranks_present"])))
            yield Proposal(finding, FewerThreads(threads, cores, now), other_settings.OMP_THREADS.to(str(now)))
    elif on_cpu(case) and (names := _by_parameter(case)):
        by_hand = torch_settings.FUSED_ON_CPU[names[0]].to("True")
        adamw = {"transformers": other_settings.TRAINER_OPTIM.to('"adamw_torch_fused"')}
        setting = by_framework(case, by_hand, **(adamw if names == ["AdamW"] else {}))
        most = max(_mean(one) for name in names for one in _steps_of(case, name))
        yield Proposal(finding, OptimizerFusedOnCpu(), setting, at_most=most)


def _by_parameter(case: Case) -> list[str]:
    """The optimizers that could be fused and are not, where they take a good part of the steps."""
    if any(one["name"].startswith(FUSED) for one in case.report.get("operators", ())) or (
        case.version("torch") and case.version("torch") < torch_settings.FUSED_ON_CPU_SINCE
    ):
        return []
    names = fusable(case, torch_settings.FUSED_ON_CPU)
    spent = {name: sum(map(_spent, _steps_of(case, name))) for name in names}
    whole = sum(rank["window_ns"] for rank in case.report["ranks"])
    return [name for name, taken in spent.items() if taken > 0] if sum(spent.values()) >= WORTH * whole > 0 else []


def _spent(steps: RangeEntry) -> int:
    """ns of an optimizer's steps, without the forward and backward of a closure in them."""
    return steps["update_ns"] if "update_ns" in steps else steps["host_ns"]


def _mean(steps: RangeEntry) -> int:
    return steps["update_ns"] // steps["count"] if "update_ns" in steps else steps["host_mean_ns"]


def _steps_of(case: Case, name: str) -> list[RangeEntry]:
    return [one for one in case.report.get("ranges", ()) if one["name"] == f"Optimizer.step#{name}.step"]


CPU_RULE = Rule("cpu", (FewerThreads, OptimizerFusedOnCpu), propose, place=115)


RULES = (CPU_RULE, KERNEL_RULE)

"""Operators far below what their device could do: what brings them nearer to it, by what keeps them there."""

from __future__ import annotations

from collections.abc import Iterator

from gpuscope.analyzers.advice.prediction_cache import cost_ns
from gpuscope.analyzers.advice.rule import Case, Proposal, Rule, by_framework, config, device_waits, env, python
from gpuscope.analyzers.advice.settings import other_settings, torch_settings
from gpuscope.analyzers.what_if_changes import NearerRoof, Precision, Refused
from gpuscope.catalogue.finding import words_of
from gpuscope.catalogue.findings.compute import BelowRoof, FewBlocks
from gpuscope.catalogue.suggestion import Suggestion
from gpuscope.hardware.device_peaks import peaks_of
from gpuscope.schema.document import FindingEntry, Setting
from gpuscope.trace.kernel_categories import CONVOLUTION, GEMM, operator_category
from gpuscope.when_used import dataclass

# Kernels of few blocks: the program's own, launched on more.


@dataclass(frozen=True)
class MoreBlocks(Suggestion):
    """The kernel's work over the whole device."""

    code = "more_blocks"
    answers = ("few_blocks",)
    sets = "the grid of the program's own kernel: a thread per element, in blocks of 128 to 256"
    action = "Launch {kernel} on as many blocks as its data has parts"
    why_not = "how much of the kernel's work can run at once is not in a trace"
    risk = "blocks must not depend on each other's results: sums over them need atomics or a second pass"
    verify = "record again: its grid, and how long it takes"

    kernel: str


def grid_rules_propose(case: Case, finding: FindingEntry) -> Iterator[Proposal]:
    """None for kernels of libraries, whose grid follows from what they are asked."""
    del case
    found = words_of(finding)
    if isinstance(found, FewBlocks) and not found.of_library:
        value = "<<<(n + 255) / 256, 256>>> with i = blockIdx.x * blockDim.x + threadIdx.x, or a Triton program a part"
        yield Proposal(finding, MoreBlocks(found.kernel), config(f"grid of {found.kernel}", value))


GRID_RULE = Rule("grids", (MoreBlocks,), grid_rules_propose, programs=("pytorch", "native"), place=125)


# Matrix products at a precision that the tensor cores have: TF32, BF16 or FP16, FP8.

PRECISION_RULES_VERIFY = (
    "record again: the products' kernels name the precision (tf32, bf16…) and get shorter; compare the loss curve"
)


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
    verify = PRECISION_RULES_VERIFY


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
    verify = PRECISION_RULES_VERIFY
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


def precision_rules_propose(case: Case, finding: FindingEntry) -> Iterator[Proposal]:
    """TF32 where products run in FP32, autocast for these and for TF32, FP8 where 16 bits run near their peak; nothing
    where the device waits for the host."""
    if device_waits(case):
        return
    if finding["code"] == "half_precision_products":
        value = "model, for layers whose sizes are multiples of 16"
        by_hand = other_settings.FLOAT8.to(value)
        setting = by_framework(case, by_hand, megatron=other_settings.FP8_FORMAT.to("hybrid"))
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
        megatron=other_settings.MEGATRON_SETTINGS_HALF[half].to(""),
        deepspeed=other_settings.HALF[half].to("true"),
        fsdp2=torch_settings.MP_POLICY.to("MixedPrecisionPolicy(param_dtype=torch.bfloat16)"),
    )


PRECISION_RULE = Rule("precision", (Fp8, Tf32, Autocast, ScaledAutocast), precision_rules_propose, place=220)


VERIFY = "record again with shapes: how much of its roof {operator} reaches"


@dataclass(frozen=True)
class RoofSuggestion(Suggestion):
    """What all of these have in common."""

    answers = ("below_roof",)
    why = "{message}"
    verify = VERIFY

    operator: str

    @property
    def subject(self) -> str:
        return self.operator


@dataclass(frozen=True)
class TunedKernel(RoofSuggestion):
    """Another kernel for the same operator, found by trying."""

    code = "tuned_kernel"
    sets = '`torch.compile(mode="max-autotune-no-cudagraphs")`, `PYTORCH_TUNABLEOP_ENABLED`, `cudnn.benchmark`, for \
an operator far below its roof'
    action = "Let a search choose the kernel of {operator}"
    risk = (
        "the first steps take longer, for each shape anew; where every kernel is slow on these shapes nothing is gained"
    )


@dataclass(frozen=True)
class MoreTiles(RoofSuggestion):
    """More to do at once, or the sum split over the device."""

    code = "more_tiles"
    sets = 'a larger batch, or split-K by `torch.compile(mode="max-autotune-no-cudagraphs")` and TunableOp, where an \
operator has fewer tiles than the device multiprocessors'
    action = "Give {operator} more to do at once: a larger batch, or a kernel that splits its sum (split-K)"
    risk = "a larger batch takes memory and may need another learning rate; split-K adds in another order"


@dataclass(frozen=True)
class AlignedSizes(RoofSuggestion):
    """Sizes that fill tensor-core instructions."""

    code = "aligned_sizes"
    sets = "sizes of an operator far below its roof in multiples of 64"
    action = "Pad the sizes of {operator} to multiples of 8, better of 64"
    risk = "padding must be masked where it would count; checkpoints change shape"


@dataclass(frozen=True)
class WiderProducts(RoofSuggestion):
    """Several thin products as one."""

    code = "wider_products"
    sets = "products with a side shorter than a tile joined: weights side by side, requests batched"
    action = "Join thin products into wider ones: several tokens, requests or weights in one {operator}"
    risk = "joined weights change checkpoints; batching adds latency"


@dataclass(frozen=True)
class PackedSequences(RoofSuggestion):
    """Short sequences one behind the other."""

    code = "packed_sequences"
    sets = "sequences packed into long ones, with attention by their offsets (varlen, FlexAttention's document mask)"
    action = "Pack short sequences into long ones, with attention that keeps them apart"
    risk = "positions and masks must restart at each sequence"


@dataclass(frozen=True)
class WiderHeads(RoofSuggestion):
    """Fewer and wider heads."""

    code = "wider_heads"
    sets = "a head size of 128 with fewer heads"
    action = "Take heads of 128 and fewer of them, where the model is still to be chosen"
    risk = "another model: it has to be trained anew"
    alters_training = True


@dataclass(frozen=True)
class ChannelsLastImages(RoofSuggestion):
    """The layout that tensor cores want."""

    code = "channels_last_images"
    sets = "`model.to(memory_format=torch.channels_last)`, on ROCm with `PYTORCH_MIOPEN_SUGGEST_NHWC=1`, where \
convolutions run far below their roof on NCHW images"
    action = "Keep images and convolutions in channels-last layout"
    risk = "an operator without a channels-last kernel converts back: look for what remains"


@dataclass(frozen=True)
class TensorCores(RoofSuggestion):
    """FP32 at TF32's rate."""

    code = "tensor_cores"
    sets = '`torch.set_float32_matmul_precision("high")`, autocast, where FP32 runs no faster than without tensor cores'
    action = "Let {operator} use tensor cores: TF32, or 16 bits by autocast"
    risk = "products lose 13 bits of mantissa: harmless in most training, not in every solver or metric"


@dataclass(frozen=True)
class OneLayout(RoofSuggestion):
    """Inputs that lie in memory as they are read."""

    code = "one_layout"
    sets = "inputs made contiguous where they are created, or one memory format throughout"
    action = (
        "Give {operator} inputs of one memory layout: contiguous where they are made, or one memory format throughout"
    )
    risk = "a copy that makes them contiguous costs what it saves, unless it is made once for several uses"


def propose(case: Case, finding: FindingEntry) -> Iterator[Proposal]:
    """One suggestion for what keeps the operator below its roof; none where another rule answers that."""
    found = words_of(finding)
    if not isinstance(found, BelowRoof) or device_waits(case):
        return
    answer = _answer(case, found)
    if answer is None:
        return
    record, setting, certain = answer
    change = NearerRoof(found.operator, certain, found.reaches)
    if not isinstance(case.predict((change,)), Refused):
        yield Proposal(finding, record, setting, (change,))


_ANSWERED_BY = {"unfused_chain": "unfused_kernels", "odd_sizes": "odd_sizes", "channels_last": "layout_conversion"}
"""Reasons that have findings of their own, which other rules answer."""


def _answer(case: Case, found: BelowRoof) -> tuple[Suggestion, Setting, bool] | None:
    """The record, its setting, and whether something is gained for certain."""
    operator, reason = found.operator, found.reason
    if (other := _ANSWERED_BY.get(reason)) is not None and case.finding(other) is not None:
        return None
    if reason == "odd_sizes":
        return AlignedSizes(operator), python(f"sizes of {operator}", "rounded up to a multiple of 64"), True
    if reason == "channels_last":
        value = "memory_format=torch.channels_last  # the model and its input batches"
        return ChannelsLastImages(operator), torch_settings.MODULE_TO.to(value), True
    if reason == "wrong_precision":
        return TensorCores(operator), torch_settings.MATMUL_PRECISION.to('"high"'), True
    if reason == "few_tiles" and _is_searched(operator):
        return MoreTiles(operator), _searched(case, operator), False
    if reason == "tall_and_skinny":
        return WiderProducts(operator), config(f"shapes of {operator}", "several products joined into one"), False
    if reason == "short_sequence":
        return PackedSequences(operator), config("sequences", "packed, with cu_seqlens or a document mask"), False
    if reason == "narrow_head":
        return WiderHeads(operator), config("head size", "128, with fewer heads"), False
    if reason == "strided_input":
        return OneLayout(operator), python(f"inputs of {operator}", "contiguous() where they are made"), False
    return (TunedKernel(operator), _searched(case, operator), False) if _is_searched(operator) else None


def _is_searched(operator: str) -> bool:
    """Whether libraries have several kernels for it to choose from."""
    return operator_category(operator) in (GEMM, CONVOLUTION)


def _searched(case: Case, operator: str) -> Setting:
    """What makes PyTorch try several kernels for an operator, by its device and version."""
    if "conv" in operator:
        return torch_settings.CUDNN_BENCHMARK.to("True")
    if case.rocm and torch_settings.TUNABLE_OP.exists(case.version("torch")):
        return env(torch_settings.TUNABLE_OP.name, "1")
    searched = torch_settings.COMPILE_MODE.to('"max-autotune-no-cudagraphs"')
    return by_framework(case, searched, transformers=other_settings.TRAINER_COMPILE.to("True"))


ROOF_RULE = Rule(
    "roofs",
    (
        TunedKernel,
        MoreTiles,
        AlignedSizes,
        WiderProducts,
        PackedSequences,
        WiderHeads,
        ChannelsLastImages,
        TensorCores,
        OneLayout,
    ),
    propose,
    place=130,
)


RULES = (GRID_RULE, PRECISION_RULE, ROOF_RULE)

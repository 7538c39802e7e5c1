"""Compute that another setting would make shorter."""

from __future__ import annotations

from typing import ClassVar

from gpuscope.catalogue.finding import Finding
from gpuscope.when_used import dataclass
from gpuscope.words import units

# What torch.compile costs while training goes on, and where ranks compile unlike one another.

_LOGS = "logs of torch.compile (`TORCH_TRACE=DIR`, `gpuscope record --compile-logs`)"


@dataclass(frozen=True)
class Recompiling(Finding):
    """Frames are compiled again because a guard failed: a shape, a number or a mode is not what it was compiled for.
    Its cost lies within the causes of idle time: it is not added to them. Without a trace beside the logs it has none.
    """

    code = "recompiling"
    recognised = f"""{_LOGS}: compilations of a frame after its first. The cost is their time in judged steps. A step
    that compiles is rarely a steady one, so the cost may be 0 although compiling took long: the section `compilation`
    has its time in all recorded steps."""
    helps = """mark what changes as dynamic (`torch._dynamo.mark_dynamic`, `torch.compile(dynamic=True)`), or keep it
    the same."""
    misleads = """a first recompilation that makes a size dynamic, after which no other follows: in a recording of the
    first steps that is start-up."""

    times: int
    place: str
    """Function and line of the frame that was compiled again most."""
    reason: str
    """The guard that failed there last."""
    in_steps: bool
    """Whether any of it falls into recorded steps."""

    def message(self) -> str:
        when = "within steps" if self.in_steps else "after their first compilation"
        return (
            f"Frames are compiled again {when}, {units.plural(self.times, 'time')}, most at {self.place}: {self.reason}"
        )


@dataclass(frozen=True)
class CompileFailed(Finding):
    """torch.compile gave up on a function: it runs uncompiled, operator by operator, as if it had not been asked for.
    What that costs can't be measured: no compiled run is there to compare with.
    """

    code = "compile_failed"
    severity = "medium"
    recognised = f"{_LOGS}: compilations that end with an error."
    helps = """what the error says: the operator or the construct that it names, written in another way or kept out of
    the compiled function (`torch.compiler.disable`)."""
    misleads = "a frame that torch skips on purpose, because it holds nothing to compile."

    place: str
    reason: str
    """Of the first one."""
    places: int

    def message(self) -> str:
        others = f" (and at {units.plural(self.places - 1, 'other place')})" if self.places > 1 else ""
        return f"torch.compile failed at {self.place}{others}, which runs uncompiled: {self.reason}"


@dataclass(frozen=True)
class GraphBreak(Finding):
    """torch.compile ends a graph in the middle of a compiled function and goes on in Python. Its cost is the time
    between the graphs in which the device idles; kernels that can't be fused over the break come on top and are not
    counted. It lies within the causes of idle time: it is not added to them.
    """

    code = "graph_break"
    recognised = f"""{_LOGS}; the time between the graphs from the ranges of compiled regions, which torch.profiler
    records."""
    helps = "what torch's own hint says: the finding's advice names the setting for the common reasons."
    misleads = """a break where host and device have enough to do anyway: then nothing idles, and it costs fusion
    alone."""

    file: str
    line: int | None
    reason: str
    places: int
    """Lines at which graphs break."""

    def message(self) -> str:
        others = f" (and {units.plural(self.places - 1, 'other line')})" if self.places > 1 else ""
        return f"Compiled code breaks at {self.file}:{self.line or '?'}{others}: {self.reason}"


@dataclass(frozen=True)
class CompileDivergence(Finding):
    """Ranks do not compile alike: not the same frames, not for the same reasons, or not to the same collectives in the
    same order. A rank that compiles while the others do not is late by it; ranks whose collectives differ hang.
    """

    code = "compile_divergence"
    recognised = f"""{_LOGS} of two ranks or more. The cost is the time in judged steps that some ranks compile and
    others do not."""
    helps = """make all ranks see the same shapes in the same order; compile before the first collective; for
    collectives that differ, the code that depends on the rank."""
    misleads = "ranks of different pipeline stages, which compile different code: they are compared within their stage."

    kind: str
    place: str
    groups: list[list[int]]
    """Ranks that are alike, the largest group first."""

    def message(self) -> str:
        few = f"{units.rank_words(self.groups[-1])} differ{'s' if len(self.groups[-1]) == 1 else ''}"
        if self.kind == "schedule":
            return f"The compiled collectives of {self.place} are not the same on all ranks: {few} from the others"
        return f"Ranks compile unlike one another: {few} at {self.place}"


@dataclass(frozen=True)
class Reducible(Finding):
    """Work that another setting would make shorter: no fault, so its severity is low."""

    severity = "low"
    within_compute = True
    said: ClassVar[str]
    """What such work is."""

    kernels: int
    """Per step."""
    share: float
    sizes: list[str]
    """Those that matter, where it is these."""
    whole: str = "step"
    """`window` where no steps were found."""

    def message(self) -> str:
        sizes = f" ({', '.join(self.sizes)})" if self.sizes else ""
        kernels = f"{units.plural(self.kernels, 'kernel')} per {self.whole}"
        return f"{self.said}{sizes}: {kernels} take {units.share(self.share)} of the time"


@dataclass(frozen=True)
class SinglePrecision(Reducible):
    """Matrix products, convolutions or attention run in FP32 without tensor cores. Like the next eight, it is compute
    time that another setting would make shorter: no fault, so its severity is always low, and a line from 3 % of the
    judged time on.
    """

    code = "single_precision"
    recognised = """the operators' input types, and kernels that name FP32 (`ampere_sgemm`, `simt`, cuDNN's
    `…<float…>` engines)."""
    helps = """`torch.set_float32_matmul_precision("high")` for TF32 (Ampere and later), mixed precision by autocast."""
    misleads = "work that must be FP32 (solvers, metrics); a model that is run in FP32 for comparison."
    said = "Matrix products, convolutions and attention run in FP32, without tensor cores"


@dataclass(frozen=True)
class Tf32Products(Reducible):
    """Products and convolutions run at TF32: on tensor cores, but at half the rate of 16 bits, on twice the bytes."""

    code = "tf32_products"
    recognised = "kernels that name TF32, or its instruction (`s1688`)."
    helps = "mixed precision in BF16."
    misleads = "as above."
    said = "Matrix products and convolutions run at TF32, half the rate of 16 bits and on twice the bytes"


@dataclass(frozen=True)
class UnfusedKernels(Reducible):
    """Elementwise kernels, copies on the device, reductions and normalisations follow each other, and each reads from
    memory what the one before it wrote.
    """

    code = "unfused_kernels"
    recognised = """at least two such kernels of a stream between two that can't be fused with them. Kernels of cuDNN,
    of an optimizer, of the accumulation of gradients, and Inductor's own are left out; where Inductor's are more than
    a tenth of the memory-bound time, the model is compiled and there is no finding."""
    helps = "`torch.compile`; fused modules of libraries (RMSNorm, rotary embedding, SwiGLU)."
    misleads = "independent kernels that stand beside each other by chance; graph breaks between them."
    said = "Memory-bound kernels each read what the last one wrote"


@dataclass(frozen=True)
class OddSizes(Reducible):
    """Matrix products have sizes that are no multiples of 16 bytes (4 elements of 32 bits, 8 of 16), which rules out
    the fastest tensor-core kernels, or tensor cores at all.
    """

    code = "odd_sizes"
    recognised = "the recorded shapes of `mm`, `addmm`, `bmm` and their kin: the summed and the output size."
    helps = "a vocabulary, hidden or feature size rounded up to a multiple of 64."
    misleads = "a product that is bound by its bytes anyway; sizes that the library pads itself."
    said = "Matrix products have sizes that tensor cores handle badly, no multiples of 16 bytes"


@dataclass(frozen=True)
class HalfPrecisionProducts(Reducible):
    """Products in 16 bits at half their peak or more take 40 % of the time and more, on a device that multiplies FP8
    at twice the rate.
    """

    code = "half_precision_products"
    recognised = "FLOPs from shapes, against the peak of the device."
    helps = "FP8 for large linear layers (torchao, Transformer Engine, Megatron)."
    misleads = "layers too small to pay for casts and scales."
    said = "Matrix products in 16 bits run near their peak, on a device that also has FP8"


@dataclass(frozen=True)
class LayoutConversion(Reducible):
    """Kernels convert images between NCHW and NHWC around convolutions."""

    code = "layout_conversion"
    recognised = "their names (`nchwToNhwcKernel`, `batched_transpose_…`)."
    helps = """`memory_format=torch.channels_last` for the model and its inputs; on ROCm
    `PYTORCH_MIOPEN_SUGGEST_NHWC=1` too."""
    misleads = "conversions that an operator without a channels-last kernel needs either way."
    said = "Kernels convert tensors between NCHW and NHWC around convolutions"


@dataclass(frozen=True)
class UnfusedAttention(Reducible):
    """Attention is computed as two batched products with a softmax between them: the matrix of scores is written and
    read several times.
    """

    code = "unfused_attention"
    recognised = """a softmax (one kernel, or an exponential between two reductions) in a chain between two products.
    Where operators were recorded, these are `bmm`, `baddbmm` or `matmul`."""
    helps = "`torch.nn.functional.scaled_dot_product_attention`, FlexAttention for masks of one's own."
    misleads = (
        """a softmax between two products that is no attention; a mask or precision that no fused kernel takes."""
    )
    said = (
        "Attention is computed as two products with a softmax between them, which write and read the whole score matrix"
    )


@dataclass(frozen=True)
class FlashAttention2(Reducible):
    """Attention runs in FlashAttention 2 on a Hopper GPU, of whose asynchronous copies and products it makes no use."""

    code = "flash_attention_2"
    recognised = "`flash_fwd_kernel`, `flash_bwd_…` and the GPU's model, else kernels compiled for Hopper."
    helps = "cuDNN's attention (`sdpa_kernel(SDPBackend.CUDNN_ATTENTION)`) or FlashAttention 3."
    misleads = "head sizes, masks or short sequences for which these have no faster kernel."
    said = "Attention runs in FlashAttention 2, which does not use what Hopper added"


@dataclass(frozen=True)
class OptimizerPasses(Reducible):
    """The optimizer passes over parameters, gradients and states with a kernel per operation."""

    code = "optimizer_passes"
    recognised = "kernels within an optimizer's step that are neither torch's fused ones nor APEX's."
    helps = "`fused=True`."
    misleads = "an optimizer without a fused implementation."
    said = "The optimizer passes over parameters and states several times"


REASONS = {
    "few_tiles": "its output is cut into {tiles:,} tiles of {high} × {wide} for {units} multiprocessors",
    "odd_sizes": "size {size:,} is no multiple of what tensor cores take at once",
    "tall_and_skinny": "one side of its output is only {size:,} long, less than a tile",
    "short_sequence": "its sequences are only {size:,} long",
    "narrow_head": "its heads are only {size} wide",
    "depthwise": "each of its {size:,} channels is convolved by itself, which leaves tensor cores nothing to multiply",
    "channels_last": "its images are in NCHW layout, while tensor cores want channels last",
    "unfused_chain": "it is one of a chain of memory-bound kernels, each of which reads what the last one wrote",
    "wrong_precision": "it is no faster than without tensor cores, so it does not run at TF32",
    "strided_input": "its inputs lie in memory in different orders, or with gaps",
}
"""Why an operator runs below its roof, by the code of the reason."""


@dataclass(frozen=True)
class BelowRoof(Finding):
    """An operator runs below half of what its device could do: of the peak of the precision it computes in, or of the
    memory's bandwidth, whichever its FLOPs and bytes are nearer to. Calls with the same inputs are told together.
    """

    code = "below_roof"
    within_compute = True
    severity = "medium"
    recognised = """FLOPs and bytes from recorded shapes, types and strides, against the data sheet of the device, where
    operators of one name that run below half of their roof hold a tenth of the judged time. Bytes that fit the
    last-level cache set no floor. The reason is read off shapes, layout and the kernel's tile; where nothing of these
    explains it, none is named."""
    helps = """by the reason: larger batches or split-K for few tiles, padding for odd sizes, packed or longer
    sequences, channels-last, fusion, contiguous inputs, tensor cores; else a tuned kernel (max-autotune, TunableOp)."""
    misleads = """a device whose clock is held down, or a slice of one (MIG); an operator that uses only a part of its
    inputs."""

    operator: str
    shapes: str
    whole: str
    """`step` or `window`."""
    share: float
    """Of the judged time, of all its calls with these inputs."""
    rate: float
    """Share of its roof."""
    roof: str
    precision: str
    device: str
    assumed_device: bool
    """Whether no file tells the device, so that the likeliest is taken."""
    achieved_per_s: float
    peak_per_s: float
    call_ns: float
    """Mean of its calls."""
    call_floor_ns: float
    leaves_ns: int
    """Per step, above the roof."""
    reason: str
    """Its code; empty where nothing recorded explains it."""
    reaches: float | None
    """Share of the roof that this reason alone would leave, about."""
    figures: dict[str, int]
    others: int
    """Further operators, or shapes of this one, that are below half of their roofs."""

    def message(self) -> str:
        why = f"; {self.why}" if self.why else ""
        others = f"; so do {self.others} more" if self.others else ""
        return f"{self._where()}{why}{others}"

    def shows(self) -> str:
        return self._where() + (f"; {self.why}" if self.why else "")

    def headline(self) -> str:
        return f"{self.what} runs at {units.share(self.rate)} of {self._roof()}"

    @property
    def what(self) -> str:
        """The operator with its shapes."""
        return f"{self.operator} {self.shapes}".rstrip()

    @property
    def why(self) -> str:
        """The reason in words."""
        return REASONS[self.reason].format(**self.figures) if self.reason in REASONS else ""

    def _roof(self) -> str:
        device = f"{self.device} (assumed)" if self.assumed_device else self.device
        if self.roof == "memory":
            return f"the memory bandwidth of {device}"
        return f"the {f'{self.precision} ' if self.precision else ''}peak of {device}"

    def _where(self) -> str:
        if self.roof == "memory":
            rates = f"{units.bandwidth(self.achieved_per_s / 1e9)} of {units.bandwidth(self.peak_per_s / 1e9)}"
        else:
            rates = f"{units.flop_rate(self.achieved_per_s)} of {units.flop_rate(self.peak_per_s)}"
        call = units.span(round(self.call_ns), round(self.call_floor_ns), " → at least ")
        return (
            f"{self.what} takes {units.share(self.share)} of the {self.whole} at {units.share(self.rate)} of "
            f"{self._roof()} ({rates}): {call} a call, {units.duration(self.leaves_ns)} per {self.whole} above it"
        )


@dataclass(frozen=True)
class FewBlocks(Finding):
    """A kernel that is launched on so few blocks that most of the device idles while it runs, with nothing beside it:
    `<<<1, 1>>>` at the worst. Its time counts as compute.
    """

    code = "few_blocks"
    within_compute = True
    recognised = """kernels of at most eight blocks that run for 200 µs or longer, by the size of their launch in the
    trace; what other kernels ran beside them is left out. A block runs on one multiprocessor."""
    helps = "the work split over more blocks and threads; independent kernels on several streams."
    misleads = "work that can't be split, as a scan over one sequence."

    kernel: str
    """The one that takes longest."""
    blocks: int
    threads: int
    """Of a block."""
    count: int
    """Of its runs."""
    of_library: bool
    """Whether a library launches it, not the program."""
    share: float

    def message(self) -> str:
        size = f"{units.plural(self.blocks, 'block')} of {units.plural(self.threads, 'thread')}"
        most = units.plural(self.blocks, "multiprocessor")
        return (
            f"{self.kernel} runs on {size}, which occupy {most} of the device at most: "
            f"{units.share(self.share)} of the time, with nothing beside it"
        )

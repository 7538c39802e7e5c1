"""Compute that another setting would make shorter."""

from __future__ import annotations

from typing import ClassVar

from gpuscope.catalogue.finding import Finding
from gpuscope.when_used import dataclass
from gpuscope.words import units


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

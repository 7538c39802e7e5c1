"""Names are stored once and referred to by code: a trace holds millions of events and thousands of names."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from functools import cache
from itertools import repeat
from math import prod
from threading import Lock
from types import CodeType, FunctionType
from typing import Any, ClassVar

import numpy as np
from numpy import typing as npt

from gpuscope import when_used
from gpuscope.trace.schema import NA

# Operators of which a trace keeps the shapes of their inputs: those whose work or traffic follows from them.

NCCL_RANGES = ("nccl:", "rccl:")
"""How PyTorch names the ranges around its calls of NCCL."""


def named(text: str) -> frozenset[str]:
    """Names that stand in one text."""
    return frozenset(text.split())


# Families of aten's operators, by their names without namespace and overload; in-place forms end in an underscore.
UNARY = named(
    "neg sqrt rsqrt exp exp2 expm1 log log2 log10 log1p sin cos tan asin acos atan sinh cosh tanh sigmoid silu "
    "relu relu6 gelu elu selu celu leaky_relu hardtanh hardswish hardsigmoid mish softplus softshrink hardshrink "
    "logsigmoid log_sigmoid abs sgn sign reciprocal erf erfc erfinv square floor ceil round trunc frac clamp "
    "clamp_min clamp_max threshold nan_to_num logit bitwise_not positive deg2rad lgamma digamma i0 sinc isnan "
    "isinf isfinite isposinf isneginf logical_not native_dropout dropout feature_dropout alpha_dropout "
    "_fused_dropout pow clone contiguous _to_copy to flip roll tril triu logcumsumexp cumsum cumprod _softmax "
    "_log_softmax softmax log_softmax _safe_softmax rrelu_with_noise"
)
"""One tensor in, one of its shape out."""
BINARY = named(
    "add sub rsub mul multiply div divide true_divide floor_divide fmod remainder atan2 maximum minimum fmax fmin "
    "hypot copysign xlogy logaddexp logaddexp2 nextafter float_power bitwise_and bitwise_or bitwise_xor "
    "bitwise_left_shift bitwise_right_shift eq ne lt gt le ge logical_and logical_or logical_xor dist "
    "_prelu_kernel prelu threshold_backward gelu_backward silu_backward sigmoid_backward tanh_backward "
    "elu_backward leaky_relu_backward hardtanh_backward hardswish_backward hardsigmoid_backward mish_backward "
    "softplus_backward softshrink_backward hardshrink_backward log_sigmoid_backward native_dropout_backward "
    "masked_scale logit_backward _softmax_backward_data _log_softmax_backward_data mse_loss l1_loss "
    "smooth_l1_loss huber_loss mse_loss_backward smooth_l1_loss_backward huber_loss_backward binary_cross_entropy "
    "binary_cross_entropy_with_logits glu_jvp"
)
"""Tensors (or numbers) that are broadcast together, one out."""
TERNARY = named("where lerp addcmul addcdiv masked_fill masked_fill_backward addr")
REDUCTIONS = named(
    "sum nansum mean nanmean prod amax amin aminmax max min argmax argmin norm linalg_vector_norm linalg_norm std "
    "var var_mean std_mean any all logsumexp count_nonzero median nanmedian frobenius_norm"
)
WRITES = named(
    "fill zero zeros_like ones_like full_like normal uniform random bernoulli exponential rand_like randn_like"
)
NORMS = named(
    "native_layer_norm native_group_norm layer_norm group_norm batch_norm instance_norm rms_norm _fused_rms_norm "
    "cudnn_batch_norm miopen_batch_norm native_batch_norm _native_batch_norm_legit _batch_norm_with_update "
    "_batch_norm_impl_index _batch_norm_no_update batch_norm_elemt local_response_norm"
)
NORMS_BACKWARD = named(
    "native_layer_norm_backward native_group_norm_backward _fused_rms_norm_backward cudnn_batch_norm_backward "
    "miopen_batch_norm_backward native_batch_norm_backward batch_norm_backward"
)
LOOKUPS = named(
    "embedding embedding_dense_backward index_select gather index index_put _index_put_impl scatter scatter_add "
    "take index_add index_copy masked_select sort topk cat stack _embedding_bag repeat expand_copy "
    "repeat_interleave"
)
WINDOWS = named(
    "max_pool1d_with_indices max_pool2d_with_indices max_pool3d_with_indices avg_pool1d avg_pool2d avg_pool3d "
    "adaptive_avg_pool1d _adaptive_avg_pool2d _adaptive_avg_pool3d adaptive_max_pool2d adaptive_max_pool3d "
    "max_pool2d_with_indices_backward max_pool3d_with_indices_backward avg_pool2d_backward avg_pool3d_backward "
    "_adaptive_avg_pool2d_backward _adaptive_avg_pool3d_backward constant_pad_nd reflection_pad1d "
    "reflection_pad2d reflection_pad3d replication_pad1d replication_pad2d replication_pad3d upsample_nearest1d "
    "upsample_nearest2d upsample_nearest3d _upsample_nearest_exact2d upsample_linear1d upsample_bilinear2d "
    "upsample_trilinear3d upsample_bicubic2d _upsample_bilinear2d_aa im2col col2im pixel_shuffle pixel_unshuffle"
)
CONVOLUTIONS = named(
    "convolution _convolution convolution_overrideable convolution_backward convolution_backward_overrideable "
    "conv1d conv2d conv3d conv_transpose1d conv_transpose2d conv_transpose3d cudnn_convolution "
    "cudnn_convolution_transpose cudnn_convolution_relu miopen_convolution miopen_convolution_transpose "
    "miopen_depthwise_convolution miopen_convolution_relu mkldnn_convolution _conv_depthwise2d conv_depthwise3d "
    "thnn_conv2d _slow_conv2d_forward slow_conv3d slow_conv3d_forward slow_conv_dilated2d slow_conv_dilated3d "
    "slow_conv_transpose2d slow_conv_transpose3d"
)
_PRODUCTS = when_used.pattern(
    r"aten::(mm|addmm|bmm|baddbmm|addbmm|matmul|linear|mv|addmv|dot|_addmm_activation|_int_mm"
    r"|_?(scaled_)?(grouped_)?mm(_v2)?|_scaled_dot_product\w*|scaled_dot_product_attention"
    r"|_(flash|efficient|cudnn)_attention\w*)(\.\w+)?$"
    r"|flash_attn(_\d)?::\w+$|FlashAttn(Varlen)?Func$|xformers::efficient_attention_forward\w*$"
    r"|torch::autograd::AccumulateGrad$|[A-Z]\w*Backward\d*$"
)
LIBRARIES = when_used.pattern(
    r"(?!aten::|prim|c10d|torch|profiler)\w+(::\w+)*::(\w*(gemm|scaled_mm|fmha|mha|attention|attn|norm|rotary|rope|"
    r"_and_mul|moe|experts|silu|gelu|cache|quant|batch_prefill|cross_entropy|swiglu)\w*)(\.\w+)?$"
)
"""Operators of libraries (vLLM, SGLang, aiter, FlashInfer, Transformer Engine…) whose recorded tensors tell their
work."""
INDUCTOR = when_used.pattern(r"triton_\w+$")
_FUSED = when_used.pattern(r"aten::_(fused_(adam|adamw|sgd|adagrad)|foreach_\w+|amp_\w+)_?(\.\w+)?$")


@cache
def plain_name(name: str) -> str:
    """Without the namespace of aten and without an overload: `aten::mm.out` → `mm`."""
    return name.removeprefix("aten::").partition(".")[0]


def is_library(name: str) -> bool:
    """Whether an operator is one of a library whose recorded tensors tell its work."""
    return LIBRARIES.match(name) is not None


@cache
def computes(name: str) -> bool:
    """Whether an operator's floating-point operations, or its gradient's size, follows from its inputs; nodes of the
    backward pass too, whose inputs are gradients: how much each rank has to compute."""
    return _PRODUCTS.match(name) is not None or (name.startswith("aten::") and plain_name(name) in CONVOLUTIONS)


@cache
def moves(name: str) -> bool:
    """Whether an operator does little but move data: the bytes of its inputs and outputs are its work."""
    if not name.startswith("aten::"):
        return LIBRARIES.match(name) is not None or INDUCTOR.match(name) is not None
    plain = plain_name(name)
    return plain == "copy_" or plain.rstrip("_") in _MOVES or plain in _MOVES or _FUSED.match(name) is not None


_MOVES = (
    UNARY | BINARY | TERNARY | REDUCTIONS | WRITES | NORMS | NORMS_BACKWARD | LOOKUPS | WINDOWS | frozenset({"fill_"})
)


def is_shaped(name: str) -> bool:
    """Whether the shapes of an operator's inputs are of use; those of a call of NCCL are its message's size."""
    return computes(name) or moves(name) or name.startswith(NCCL_RANGES)


# What the description of a process group says of its use.

_PIPELINE = when_used.pattern(r"^PIPELINE_MODEL_PARALLEL_GROUP$|(?:^|_)(?:pp|pipe|pipeline)(?:_|$)", re.IGNORECASE)
"""Megatron-Core's description, DeviceMesh's (`mesh_pp`), DeepSpeed's (`pipe_parallel_group`)."""


def is_pipeline_group(description: str) -> bool:
    """Whether a group with that description holds the stages of a pipeline."""
    return _PIPELINE.search(description) is not None


# Names of element types: one spelling for torch's scalar types and its dtypes, and the bytes of an element.

_OF_SCALAR_TYPES = {
    "Float": "float32",
    "Double": "float64",
    "Half": "float16",
    "BFloat16": "bfloat16",
    "Byte": "uint8",
    "Char": "int8",
    "Short": "int16",
    "Int": "int32",
    "Long": "int64",
    "Bool": "bool",
    "ComplexFloat": "complex64",
    "ComplexDouble": "complex128",
    "Float8_e4m3fn": "float8_e4m3fn",
    "Float8_e5m2": "float8_e5m2",
    "float": "float32",
    "double": "float64",
    "half": "float16",
    "long": "int64",
    "int": "int32",
}


def dtype_name(text: str) -> str:
    """`float32` for «Float», «float», «torch.float32» and «float32»; other names unchanged."""
    plain = text.removeprefix("torch.")
    return _OF_SCALAR_TYPES.get(plain, plain)


_ITEM_BYTES = {
    "bool": 1,
    "byte": 1,
    "char": 1,
    "uint8": 1,
    "int8": 1,
    "unsigned char": 1,
    "signed char": 1,
    "short": 2,
    "half": 2,
    "bfloat16": 2,
    "float16": 2,
    "c10::half": 2,
    "c10::bfloat16": 2,
    "int16": 2,
    "fp16": 2,
    "bf16": 2,
    "bfp16": 2,
    "int": 4,
    "float": 4,
    "float32": 4,
    "int32": 4,
    "fp32": 4,
    "uint32": 4,
    "long": 8,
    "double": 8,
    "long int": 8,
    "int64": 8,
    "float64": 8,
    "complexfloat": 8,
    "c10::complex<float>": 8,
    "fp64": 8,
    "uint64": 8,
    "complexdouble": 16,
    "c10::complex<double>": 16,
}


LARGEST = 1 << 50
"""Bytes from which a message is damage: no memory holds it."""


def item_bytes(dtype: str) -> int:
    """Bytes per element of a dtype as profilers name it, or `NA`."""
    key = dtype.strip().lower()
    return 1 if key.startswith("float8") else _ITEM_BYTES.get(key, NA)


def total_bytes(dims: Any, types: Any) -> int:
    """Bytes of recorded inputs (`Input Dims`, `Input type`): all of them plain tensors of known types, else 0."""
    if not isinstance(dims, list) or not isinstance(types, list) or len(dims) != len(types):
        return 0
    total = 0
    for one, dtype in zip(dims, types, strict=True):
        item = item_bytes(str(dtype))
        if item == NA or not isinstance(one, list) or not all(isinstance(size, int) for size in one):
            return 0
        total += prod(one) * item
    return total if 0 < total < LARGEST else 0


Codes = npt.NDArray[np.int32]

NO_NAME = -1
"""The code of an absent name; pandas' own convention for a missing category."""


_NONE = np.empty(0, np.bool_)
_INTERNING = Lock()


class _Interned(dict[str, int]):
    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __missing__(self, name: str) -> int:
        with _INTERNING:
            code = self.get(name)  # another thread may have been quicker
            if code is None:
                self.names.append(name)
                code = self[name] = len(self)
            return code


class NamePool:
    """Interns strings: `code(name)` gives the same int32 for equal names, `pool[code]` the name back."""

    _latest: ClassVar[NamePool | None] = None
    """The one that was asked what matches last."""

    def __init__(self) -> None:
        self._codes = _Interned()
        self._before: NamePool | None = None
        self._matches: dict[CodeType, npt.NDArray[np.bool_]] = {}

    def __getstate__(self) -> dict[str, Any]:
        return {"_codes": self._codes}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__()  # type: ignore[misc]
        self.__dict__.update(state)

    def __len__(self) -> int:
        return len(self._codes)

    def __getitem__(self, code: int) -> str:
        return "" if code == NO_NAME else self.names[code]

    @property
    def names(self) -> list[str]:
        """Every name, at the index that is its code."""
        return self._codes.names

    def code(self, name: str) -> int:
        """The code of one name, newly given if it was not seen before."""
        return self._codes[name]

    def codes(self, names: Iterable[str], count: int = -1) -> Codes:
        """The codes of many names, shape (n,)."""
        return np.fromiter(map(self._codes.__getitem__, names), np.int32, count)

    def find(self, name: str) -> int:
        """The code of a name, or `NO_NAME` where it does not occur."""
        return self._codes.get(name, NO_NAME)

    def matching(self, predicate: object) -> npt.NDArray[np.bool_]:
        """Per code, whether `predicate(name)` holds: asked once per name, not once per event. Read-only."""
        assert callable(predicate)
        # A lambda is a new function each time but one code, which answers alike unless it looks at variables around it.
        if not isinstance(predicate, FunctionType) or predicate.__closure__ or predicate.__defaults__:
            return np.fromiter((bool(predicate(name)) for name in self.names), np.bool_, len(self))
        known = self._matches.get(predicate.__code__, _NONE)
        if len(known) < len(self):
            known = np.concatenate((known, self._told(predicate, self.names[len(known) :])))
            known.flags.writeable = False
            self._matches[predicate.__code__] = known
        return known

    def _told(self, predicate: FunctionType, names: list[str]) -> npt.NDArray[np.bool_]:
        """What a predicate says of names: ranks of a run share most of them, so what the pool asked before this one
        knows is taken from it."""
        latest = NamePool._latest
        if latest is not self:
            if latest is not None:
                latest._before = None
            self._before, NamePool._latest = latest, self
        answers = np.zeros(len(names), np.bool_)
        told = answers.copy()
        if (before := self._before) is not None:
            known = before._matches.get(predicate.__code__, _NONE)
            codes = np.fromiter(map(before._codes.get, names, repeat(NO_NAME)), np.int32, len(names))
            told = (codes >= 0) & (codes < len(known))
            answers[told] = known[codes[told]]
        for place in np.flatnonzero(~told).tolist():
            answers[place] = bool(predicate(names[place]))
        return answers


class PerName:
    """What `ask(name)` says of names, as an integer: asked once per name that occurs, not once per event."""

    def __init__(self, pool: NamePool, ask: Callable[[str], int]) -> None:
        self._pool, self._ask = pool, ask
        self._answers = np.empty(0, np.int32)
        self._asked = np.empty(0, np.bool_)

    def __call__(self, codes: Codes) -> npt.NDArray[np.int32]:
        """The answer for each code, shape (n,)."""
        room = len(self._pool) - len(self._asked)
        if room > 0:
            self._answers = np.concatenate((self._answers, np.zeros(room, np.int32)))
            self._asked = np.concatenate((self._asked, np.zeros(room, np.bool_)))
        occurs = np.zeros(len(self._asked), np.bool_)
        occurs[codes] = True
        for code in np.flatnonzero(occurs & ~self._asked).tolist():
            self._answers[code] = self._ask(self._pool[code])
            self._asked[code] = True
        return np.asarray(self._answers[codes])

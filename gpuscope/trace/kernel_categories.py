"""What a kernel does: by the operator that launched it, else by its own name; whole words only.

A name is read as words (`kernel_names.words`): «lamb» is found in `LAMBStage1Functor` and not in a C++ lambda,
«gemm» in `s16816gemm` and not in fbgemm. Rules are tried in their order; the first that matches holds.
"""

from __future__ import annotations

import re
from functools import cache

from gpuscope import when_used

# Reading a kernel's name: its own identifier, its namespaces, its words.
#
# Profilers write one kernel in three ways: demangled (`void ns::f<T>(int)`, with anonymous namespaces as
# `(anonymous namespace)::` in Kineto and `<unnamed>::` in nsys), mangled (`_ZN2ns1fE…`, as ROCm often does), and
# as a bare symbol (`triton_poi_fused_add_0`, `attn_fwd.kd`).

_ANONYMOUS = when_used.pattern(r"\(anonymous namespace\)::|<unnamed>::|\{[^}]*\}::")
_SUFFIX = when_used.pattern(r"(\s*\[clone [^\]]*\]|\.kd)+$")
_CAMEL = when_used.pattern(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")
_LENGTH = when_used.pattern(r"\d+")
_NOT_WORD = when_used.pattern(r"[^a-z0-9]+")


@cache
def qualified_name(kernel: str) -> str:
    """The function's identifier with its namespaces: `void ns::f<T>(int)` → `ns::f`."""
    if kernel.startswith("_Z"):
        return _demangled(kernel)
    name = _ANONYMOUS.sub("", _SUFFIX.sub("", kernel))
    kept: list[str] = []
    depth = 0
    for position, char in enumerate(name):
        if char == "<":
            depth += 1
        elif char == ">" and depth:
            depth -= name[position - 1] != "-"
        elif char == "(" and not depth:
            break
        elif not depth:
            kept.append(char)
    # What stands before the last blank is the return type of a template.
    return "".join(kept).strip().rpartition(" ")[2]


def base_name(kernel: str) -> str:
    """The function's own identifier: `void ns::f<T>(int)` → `f`."""
    return qualified_name(kernel).rpartition("::")[2]


@cache
def words(name: str) -> str:
    """The words of a name in lower case, each between underscores: `aten::_softmax`, `LayerNorm` → `_aten_softmax_`,
    `_layer_norm_`, so that `_lamb_` is found in «LAMBStage1» and not in «lambda»."""
    return "_" + _NOT_WORD.sub("_", _CAMEL.sub("_", name).lower()).strip("_") + "_"


def _demangled(symbol: str) -> str:
    """The qualified name of an Itanium symbol, up to the first template arguments (`_ZN2ns1fIiEEvv` → `ns::f`)."""
    head = re.match(r"_Z(N?)K?", symbol)
    assert head is not None  # the caller has seen `_Z`
    position, parts = head.end(), []
    while (length := _LENGTH.match(symbol, position)) is not None:
        position = length.end() + int(length[0])
        parts.append(symbol[length.end() : position])
        if not head[1]:
            break
    return "::".join(part for part in parts if not part.startswith("_GLOBAL__N")) or symbol


# In which precision a matrix product runs: by its operator's input type, else by its kernel's name.

SINGLE = "fp32"
_TYPES = {
    "float": SINGLE,
    "double": "fp64",
    "c10::half": "fp16",
    "half": "fp16",
    "c10::bfloat16": "bf16",
    "bfloat16": "bf16",
    "signed char": "int8",
    "unsigned char": "int8",
    "char": "int8",
}
_PRECISIONS_KERNELS = (
    ("fp8", when_used.pattern(r"_f8|_fp8|e4m3|e5m2|_qgmma_|_nvjet_(sm\d+_)?q\w+_")),
    ("tf32", when_used.pattern(r"tf32")),
    ("bf16", when_used.pattern(r"bf16|bfloat16_|_nvjet_(sm\d+_)?t\w{2}_|_cijk_\w*?_(bbs|bb|b_bs|b_b)_")),
    (
        "fp16",
        when_used.pattern(
            r"f16|_fp16|_h884|_(half|half_t|hgemm|h\d*(gemm|cudnn)|s884gemm|hhs|h_hs)_"
            r"|_nvjet_(sm\d+_)?h\w{2}_"
        ),
    ),
    ("fp64", when_used.pattern(r"f64|_(dgemm|d884gemm)_")),
    ("int8", when_used.pattern(r"s8s8|i8i8_i8i32|_int8_|_i(8\d+|16832)gemm_")),
    # With float inputs m16n8k8 is the TF32 instruction; `sgemm`, `simt` and the vector kernels
    # use no tensor cores.
    ("tf32", when_used.pattern(r"_tensorop_s1688|_s1688(gemm|fprop|dgrad|wgrad)")),
    (
        SINGLE,
        when_used.pattern(
            r"_cijk_\w*?_(sb|s_b)_|scudnn_|_gemv|_igemm_\w*_fp32_"
            r"|_(sgemm|simt|implicit_convolve_sgemm|gemm_sn|gemmk1"
            r"|dot_kernel|f32f32_f32f32_f32|(d|w)grad_(alg\d_)?engine_float)_"
        ),
    ),
)
"""Searched in the words of a name, each between underscores. With any letters at its begin a pattern would look at
every place of the name from every other. «igemm» alone is an implicit GEMM (MIOpen's `igemm_fwd_gtcx_nhwc_fp16_…`)."""


@cache
def of_type(dtype: str) -> str | None:
    """The precision of an element type as profilers write it (`c10::BFloat16` → bf16); None for any other.

    `float` is `fp32`; whether TF32 replaced it only the kernel name shows.
    """
    key = dtype.strip().lower()
    return "fp8" if "float8" in key else _TYPES.get(key)


@cache
def of_kernel(name: str) -> str | None:
    """The precision named by a kernel (`sm90_xmma_gemm_bf16bf16_bf16f32_…` → bf16), else None."""
    text = words(name)
    return next((precision for precision, pattern in _PRECISIONS_KERNELS if pattern.search(text)), None)


GEMM, ATTENTION, CONVOLUTION = "gemm", "attention", "convolution"
OPTIMIZER, EMBEDDING, TRITON, OTHER = "optimizer", "embedding", "triton_fused", "other"
NORMALISATION, SOFTMAX, COPY, ELEMENTWISE = "normalisation", "softmax", "copy", "elementwise"
CATEGORIES = (
    GEMM,
    ATTENTION,
    CONVOLUTION,
    NORMALISATION,
    SOFTMAX,
    EMBEDDING,
    "moe",
    OPTIMIZER,
    "reduction",
    "indexing",
    COPY,
    ELEMENTWISE,
    TRITON,
    OTHER,
)
"""Of compute kernels. Communication and memory are known by their kind."""
MULTIPLYING = (GEMM, ATTENTION, CONVOLUTION)
"""Categories whose floating-point operations are counted."""
ENCLOSING = (ATTENTION, CONVOLUTION, NORMALISATION, EMBEDDING)
"""Operators to which whatever runs inside belongs: an embedding is looked up by `index_select`, a convolution copies
its input into another layout, attention without a fused kernel is two products and a softmax."""

_ATTENTION = r"attention|attn|fmha|mha|mla|flash_(fwd|bwd|attn)|sdpa|flash_attn"
_CONVOLUTION = (
    r"conv|convolve|convolution|conv_?transpose|conv_?\dd|conv_?depthwise_?\dd|depthwise_conv\w*|winograd"
    r"|\w*(wgrad|dgrad|fprop)"
)
_NORMALISATION = (
    r"((batch|layer|group|instance|rms|l2|local_response)_?)(re)?norm(ali[sz]ation)?(_?\dd)?|normalization|bn"
)
_EMBEDDING = r"embedding|embeddings|embedding_?bag|embs|tbe|split_lookup_function|bounds_check_indices"
_MOE = r"moe|experts?|topk_gating|gating|token_permut\w*|moe_align|group_topk|grouped_topk"
_OPTIMIZERS = r"adam|adamw|adagrad|adadelta|adafactor|adamax|nadam|radam|lamb|lars|lion|sgd|muon|rmsprop|shampoo"
_REDUCTION = (
    r"reduce|reduction|sum|nansum|mean|std|var|amax|amin|argmax|argmin|aminmax|norm|prod|(?<=^_)(all|any)(?=_$)|logsumexp|cumsum|cumprod"
    r"|cummax|scan|loss|cross_entropy|count_nonzero|median|(?<=^_)(max|min|maximum|minimum)(?=_$)"
)
_INDEXING = (
    r"index|gather|scatter|index_select|masked_select|nonzero|sort|argsort|topk|unique|searchsorted|take|one_hot|bincount"
    r"|histc|segmented|permute_(1d|2d|pooled|sparse|indices)|permute_sparse_features|radix_sort"
)
_COPY = (
    r"copy|clone|contiguous|to|cast|cat|stack|fill|zero|zeros|ones|full|pad|transpose|permute|repeat|roll|flip|expand"
    r"|nchw_to_nhwc|nhwc_to_nchw|local_scalar_dense|convert|reformat|memcpy|memset|split_with_sizes|slice|narrow|tril|triu"
)
_ELEMENTWISE = (
    r"elementwise|pointwise|vectorized|unrolled|add|sub|rsub|mul|div|neg|pow|sqrt|rsqrt|exp|log|sin|cos|tanh|sigmoid|silu|relu"
    r"|gelu|swiglu|glu|dropout|where|clamp|clamp_min|clamp_max|threshold|abs|eq|ne|lt|gt|ge|le|maximum|minimum|arange|scale"
    r"|lerp|addcmul|addcdiv|erf|bitwise_\w+|logical_\w+|floor|round|reciprocal|square|random|uniform|normal|bernoulli"
    r"|distribution|rope|rotary|activation|act_and_mul|masked_fill|leaky_relu|elu|hardtanh|hardswish|mish|softplus|nan_to_num"
    r"|remainder|sign|ceil|bias|op_tensor|sub_tensor_op\w*|isfinite|isnan|grad|foreach|amp"
)
_MATRIX = (
    r"mm|addmm|bmm|baddbmm|addbmm|mv|addmv|matmul|linear|einsum|dot|outer|addr|scaled_mm|grouped_mm|scaled_grouped_mm"
    r"|int_mm|grouped_gemm|gemm|linear_backward"
)


def _rule(category: str, pattern: str) -> tuple[str, re.Pattern[str]]:
    return category, when_used.pattern(f"_({pattern})_")


# Of an operator's own name, without namespace. `_to_copy_`, `add_` and `AddBackward0` read as `add`.
_OPERATORS = (
    _rule(OPTIMIZER, rf"foreach|fused_({_OPTIMIZERS})|fused_?({_OPTIMIZERS})"),
    _rule(ATTENTION, _ATTENTION),
    _rule(CONVOLUTION, _CONVOLUTION),
    _rule(NORMALISATION, _NORMALISATION),
    _rule("softmax", r"(log_?)?softmax"),
    _rule(EMBEDDING, _EMBEDDING),
    _rule("moe", _MOE),
    _rule(GEMM, _MATRIX),
    _rule("reduction", rf"{_REDUCTION}|max_pool\w*|avg_pool\w*|adaptive_\w+_pool\w*|pool\w*"),
    _rule("indexing", _INDEXING),
    _rule(COPY, _COPY),
    _rule(ELEMENTWISE, _ELEMENTWISE),
)
_KERNELS = (
    _rule(EMBEDDING, _EMBEDDING),
    _rule(ATTENTION, rf"{_ATTENTION}|flash\w*|fmha\w*"),
    # cuDNN, CUTLASS and MIOpen (`igemm_fwd_gtc` is an implicit GEMM), Composable Kernel.
    _rule(
        CONVOLUTION,
        rf"{_CONVOLUTION}|\w*scudnn|[hs]884cudnn|implicit_(gemm|convolve\w*)|igemm_(fwd|bwd|wrw)"
        r"|im2col|col2im",
    ),
    _rule("moe", _MOE),
    # cuBLAS (`ampere_sgemm_128x64_tn`, `nvjet_tst_…`, `gemv2T`), CUTLASS (`…_s16816gemm_…`), Tensile (`Cijk_…`).
    _rule(
        GEMM,
        r"([a-z]|[a-z]\d+|[a-z]{2}\d+|deep|grouped|splitk|tf32)?gem[mv](k\d+|n?\d?[tn]?|sn|ex)?|gemm\w{0,2}"
        r"|nvjet|cijk|matmul|mat_mul|bmm|wgmma|split_?k_?reduce|xmma_gemm|cublas|marlin|gemmk1|dot_kernel",
    ),
    _rule(
        NORMALISATION,
        rf"{_NORMALISATION}|\w+(layer|rms|batch|group)norm|ln_(fwd|bwd)|rowwise_moments|"
        r"gamma_beta_backward|apply_layer_norm|compute_grad_input|part_grad_gamma_beta",
    ),
    _rule("softmax", r"(log_?)?soft_?max\w*"),
    _rule(
        OPTIMIZER,
        rf"multi_tensor_apply|multi_tensor|({_OPTIMIZERS})(_?(stage|functor|kernel|step)\w*)?"
        rf"|fused_?({_OPTIMIZERS})\w*",
    ),
    _rule("indexing", rf"{_INDEXING}|index_elementwise|scatter_gather|device_radix_sort\w*"),
    _rule("reduction", rf"{_REDUCTION}|reduce_\w+|\w+_pool\w*|pooling\w*|nll_loss\w*|device_(scan|reduce)\w*"),
    _rule(COPY, rf"{_COPY}|cat_array\w*|batched_transpose|\w+to_\w+_kernel|transpose\w*"),
    _rule(ELEMENTWISE, rf"{_ELEMENTWISE}|op\dd|loop_\w*fusion|\w*fusion"),
)
_INDUCTOR = when_used.pattern(r"triton_([a-z]+)_fused_?(.*)|triton_(mm|bmm)\w*")
_LOOPS = ("poi", "per", "red", "for", "spl")
"""Inductor's pointwise, persistent-reduction, reduction, foreach and scan kernels; others are templates."""
_MOVES = when_used.pattern(
    r"_(direct|bfloat16|float16|float8\w*|half|complex)_copy_kernel\w*_|_copy_kernel_cuda_|_fill_functor_"
)
_LAUNCHERS = when_used.pattern(r"_elementwise_")
_WRAPPERS = when_used.pattern(r"(^|::)(Kernel2?|device_kernel|kernel_wrapper|kernel|generic_kernel|run)$")
_PROJECTS = when_used.pattern(r"_multi_?head_")
ENGINE = "autograd::engine::evaluate_function: "
"""What torch puts before the name of a node of the backward pass."""
_NO_OPERATOR = when_used.pattern(
    r"autograd::engine::|ProfilerStep|Torch-Compiled Region|## |record_param_comms|c10d::|nccl:"
)


@cache
def operator_category(name: str) -> str | None:
    """What an operator does; None where its name does not say (`MyFunctionBackward`) or where it is no operator.

    >>> operator_category("aten::_scaled_dot_product_flash_attention_backward")
    'attention'
    """
    if _NO_OPERATOR.match(name):
        return None
    if name.startswith("triton_"):
        return kernel_category(name)
    text = words(re.sub(r"Backward\d*$|_backward(_\w+)?$", "", _identifier(name)))
    return _first(_OPERATORS, text) or _first(_OPERATORS[1:4], words(name))


@cache
def encloses(name: str) -> bool:
    """Whether whatever runs inside this operator is its own work. `_native_multi_head_attention` projects too."""
    return operator_category(name) in ENCLOSING and not _PROJECTS.search(words(name))


def _identifier(name: str) -> str:
    """Of `aten::mm.out` `mm`; of `torch::autograd::CppNode<ns::SplitLookupFunction_Op>` the template's argument."""
    inner = re.search(r"<(.*)>", name)
    name = inner[1] if inner else name
    return qualified_name(name).rpartition("::")[2].partition(".")[0]


@cache
def kernel_category(name: str) -> str:
    """What a compute kernel does by its name alone, else `other`.

    >>> kernel_category("void at::native::vectorized_elementwise_kernel<4, at::native::exp_kernel::{lambda()#1}>(int)")
    'elementwise'
    """
    if inductor := _INDUCTOR.match(name):
        return _of_inductor(inductor)
    if name.startswith(
        ("aten::", "torch::", "torch.", "autograd::", "Optimizer.")
    ):  # a CPU run's device work is operators
        step = OPTIMIZER if is_optimizer_step(name) else None
        return step or operator_category(name.removeprefix(ENGINE)) or OTHER
    own = words(base_name(name)).replace("_with_index_", "_")  # `arange` counts, it looks nothing up
    if _LAUNCHERS.search(own) and _MOVES.search(words(name)):
        return COPY
    if not _WRAPPERS.search(qualified_name(name)):
        found = _first(_KERNELS, own) or _first(_KERNELS, words(qualified_name(name)))
        if found:
            return found
    # A wrapper (`cutlass::Kernel2<…gemm…>`) says what it does in its arguments.
    return _first(_KERNELS, words(name)) or OTHER


def _of_inductor(match: re.Match[str]) -> str:
    """A fused loop is a category of its own; a template is what it is a template of."""
    if match[3]:
        return GEMM
    if match[1] in _LOOPS:
        return TRITON
    return _first((*_OPERATORS[1:3], _OPERATORS[7]), words(match[2])) or TRITON


def _first(rules: tuple[tuple[str, re.Pattern[str]], ...], text: str) -> str | None:
    return next((category for category, pattern in rules if pattern.search(text)), None)


def is_optimizer_step(name: str) -> bool:
    """A range in which the optimizer updates the parameters (`Optimizer.step#AdamW.step`)."""
    return _STEP.search(name) is not None


_STEP = when_used.pattern(
    r"^Optimizer\.step#|(?<![a-z])(optimi[sz]er|optim|opt)[ _.:/]*step(?![a-z])|^optimi[sz]er$", re.IGNORECASE
)

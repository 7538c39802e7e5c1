"""In which precision a matrix product runs: by its operator's input type, else by its kernel's name."""

from __future__ import annotations

from functools import cache

from gpuscope import when_used
from gpuscope.trace.naming.kernel_names import words

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
_KERNELS = (
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
    return next((precision for precision, pattern in _KERNELS if pattern.search(text)), None)

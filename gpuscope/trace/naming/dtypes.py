"""Names of element types: one spelling for torch's scalar types and its dtypes, and the bytes of an element."""

from __future__ import annotations

from math import prod
from typing import Any

from gpuscope.trace.schema import NA

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

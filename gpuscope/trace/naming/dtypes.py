"""Names of element types: one spelling for torch's scalar types and its dtypes."""

from __future__ import annotations

_OF_SCALAR_TYPES = {
    "Float": "float32", "Double": "float64", "Half": "float16", "BFloat16": "bfloat16", "Byte": "uint8",
    "Char": "int8", "Short": "int16", "Int": "int32", "Long": "int64", "Bool": "bool", "ComplexFloat": "complex64",
    "ComplexDouble": "complex128", "Float8_e4m3fn": "float8_e4m3fn", "Float8_e5m2": "float8_e5m2",
    "float": "float32", "double": "float64", "half": "float16", "long": "int64", "int": "int32",
}  # fmt: skip


def dtype_name(text: str) -> str:
    """`float32` for «Float», «float», «torch.float32» and «float32»; other names unchanged."""
    plain = text.removeprefix("torch.")
    return _OF_SCALAR_TYPES.get(plain, plain)

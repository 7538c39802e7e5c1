"""Matrix products whose sizes tensor cores handle badly: rows that do not begin at multiples of 16 bytes.

cuBLAS takes any size, but its fastest kernels want each dimension that is contiguous in memory to be a multiple of 16
bytes: 4 elements of 32 bits, 8 of 16, 16 of 8 (NVIDIA, «Matrix Multiplication Background User's Guide», 3.1). Which one
is contiguous is not recorded: of activations and weights it is the summed or the output one. A weight's gradient is
summed over the rows of a batch, which are contiguous in neither input; it is known by a sum longer than its output.
"""

from __future__ import annotations

from typing import Any

import msgspec

ALIGNED = 16
_OPERANDS = {
    "mm": (0, 1),
    "bmm": (0, 1),
    "matmul": (0, 1),
    "addmm": (1, 2),
    "baddbmm": (1, 2),
    "addbmm": (1, 2),
    "_addmm_activation": (1, 2),
}
_BYTES = {"bf16": 2, "fp16": 2, "fp8": 1}


def odd_sizes(name: str, dims: str, precision: str) -> tuple[int, ...]:
    """The summed and output sizes of a product that are no multiples of 16 bytes; empty where all are, or for another
    operator. Sizes of 1 are vectors, which use no tensor cores.

    >>> odd_sizes("aten::mm", "[[1024,9375],[9375,512]]", "tf32")
    (9375,)
    """
    operands = _OPERANDS.get(name.removeprefix("aten::").partition(".")[0])
    if operands is None:
        return ()
    try:
        shapes: Any = msgspec.json.decode(dims)
        first, second = (shapes[place] for place in operands)
        rows, summed, columns = int(first[-2]), int(first[-1]), int(second[-1])
    except (msgspec.DecodeError, IndexError, TypeError, ValueError):
        return ()
    unit = ALIGNED // _BYTES.get(precision, 4)
    if min(rows, summed, columns) < 2:
        return ()
    sizes = (columns,) if operands == (0, 1) and len(first) == 2 and summed > rows else (summed, columns)
    return tuple(dict.fromkeys(size for size in sizes if size % unit))

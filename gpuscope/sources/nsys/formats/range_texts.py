"""Texts of NVTX ranges, where what emit_nvtx adds to an operator's name is cut off.

`torch.autograd.profiler.emit_nvtx` writes `aten::mm, seq = 7, op_id = 31, sizes = [[2, 3], [3, 4]]`
(PyTorch `torch/csrc/profiler/util.cpp`, getNvtxStr): without the cut every call has a name of its own.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from gpuscope import when_used
from gpuscope.trace.columns.name_pool import Codes
from gpuscope.when_used import dataclass

USUAL = ", (?:seq|op_id) = "
"""What follows an operator's name."""
RARER = ", (?:sizes|input_op_ids) = "
"""What follows it where none of the usual is there."""
_RARER = when_used.pattern(RARER)


@dataclass(frozen=True)
class RangeTexts:
    """A column of texts, each distinct one once."""

    names: list[str]
    """The distinct texts after the cut, in the order in which they occur first."""
    cut: list[bool]
    """Whether something was cut off; one name may stand here both ways."""
    place: Codes
    """The place in `names` of each row's text, −1 where it has none; shape (n,), empty where none has."""


def cut(text: str) -> str:
    """The name in a text."""
    # Called once per range: the two usual additions are cut without a regular expression.
    name = text.partition(", seq = ")[0].partition(", op_id = ")[0]
    if len(name) == len(text) and ", " in text:
        return _RARER.split(text, maxsplit=1)[0]
    return name


def range_texts(texts: Iterable[str | None]) -> RangeTexts:
    """The texts of a column, as Python gives them."""
    found: dict[tuple[str, bool], int] = {}

    def place(text: str | None) -> int:
        if text is None:
            return -1
        name = cut(text)
        return found.setdefault((name, len(name) < len(text)), len(found))

    places = np.fromiter(map(place, texts), np.int32)
    return RangeTexts([name for name, _ in found], [shortened for _, shortened in found], places)

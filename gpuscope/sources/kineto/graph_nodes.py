"""Which node of a CUDA graph a device event was, for the few events that say so."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np

from gpuscope.sources.kineto.event_arguments import Loose, decode_arguments, integer
from gpuscope.trace.schema import NA

NODE_BITS = 0xFFFFFFFF
"""CUPTI's 64-bit id is graph << 32 | node; torch 2.15 writes the low half, older versions the whole."""


class _Node(msgspec.Struct, gc=False):
    node: Loose = msgspec.field(default=None, name="graph node id")


def nodes_of(texts: Sequence[msgspec.Raw]) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """The node of each event from the JSON of its arguments, shape (n,); `NA` where it is not recorded."""
    return low_half(np.array([integer(one.node) for one in decode_arguments(texts, _Node)], np.int64))


def low_half(ids: np.ndarray[tuple[int], np.dtype[np.int64]]) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """The node alone of CUPTI's ids; `NA` stays."""
    return np.where(ids == NA, NA, ids & NODE_BITS)

"""Kernels that run long on few blocks: which are worth a row of `small_grids`."""

from __future__ import annotations

import numpy as np

from gpuscope.trace.columns.table import Times

FEW = 8
"""Blocks: fewer than the multiprocessors of any GPU that trains, so that most of it idles."""
LONG_NS = 200_000
"""Shorter kernels are as long as their launch, whatever their grid."""


def small(blocks: Times, lasts: Times) -> Times:
    """Places of such kernels, of their blocks (0 or less where they are not known) and their duration, ns."""
    return np.flatnonzero((blocks > 0) & (blocks <= FEW) & (lasts >= LONG_NS))

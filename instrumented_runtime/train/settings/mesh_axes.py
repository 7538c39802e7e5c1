"""The names of the mesh's dimensions, as options, manifests and process groups spell them."""

from __future__ import annotations

from enum import StrEnum


class MeshAxis(StrEnum):
    """A dimension of the device mesh; listed outermost first."""

    PP = "pp"
    REPLICATE = "replicate"
    SHARD = "shard"
    CP = "cp"
    EP = "ep"
    TP = "tp"


DATA = (MeshAxis.REPLICATE, MeshAxis.SHARD, MeshAxis.EP)
"""Dimensions whose ranks read different sequences."""
ALL_DATA = (MeshAxis.REPLICATE, MeshAxis.SHARD, MeshAxis.CP, MeshAxis.EP)
"""Those over which gradients are averaged: ranks with different sequences, or parts of them."""
SAME_EXPERTS = (MeshAxis.REPLICATE, MeshAxis.SHARD, MeshAxis.CP)
"""Those of them whose ranks hold the same experts."""
MODEL_PARALLEL = (MeshAxis.TP, MeshAxis.PP, MeshAxis.CP, MeshAxis.EP)
"""Dimensions with an option of their own; the others divide the data-parallel ranks."""

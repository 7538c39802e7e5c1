"""Which of torch's optimizers have a fused form on a GPU, and which a foreach one (torch/optim/*.py, 2.13)."""

from __future__ import annotations

FUSED: dict[str, tuple[int, int]] = {"Adam": (1, 13), "AdamW": (2, 0), "SGD": (2, 3)}
"""By class the torch from which on CUDA and ROCm have it. Adagrad's was for CPUs alone up to 2.11 at least."""
FOREACH = frozenset({
    "ASGD", "Adadelta", "Adagrad", "Adam", "AdamW", "Adamax", "NAdam", "RAdam", "RMSprop", "Rprop", "SGD",
})  # fmt: skip


def has_fused(name: str, version: tuple[int, ...]) -> bool:
    """Whether a class has a fused form in that torch; in the newest where the version is not recorded."""
    return name in FUSED and (not version or version >= FUSED[name])

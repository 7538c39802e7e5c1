"""Environment variables that change how fast a job runs."""

from __future__ import annotations

import os

from gpuscope.instrumented_runtime.record.applied.ledger import Family, Knob, Ledger
from gpuscope.recorded_environment import NAMES, allowed

PREFIX = "env."
UNSET = "unset"
MORE = ("HOROVOD_FUSION_THRESHOLD",)
"""Variables besides those that may be recorded."""
FIXED = (
    "CUDA_VISIBLE_DEVICES",
    "GPUSCOPE_",
    "HIP_VISIBLE_DEVICES",
    "OMPI_COMM_WORLD_",
    "ROCR_VISIBLE_DEVICES",
    "TORCHELASTIC_",
    *NAMES,
)
"""Of those, what says which job it is, not how it runs."""
RECORDERS = (
    "NCCL_DEBUG",
    "NCCL_INSPECTOR_",
    "NCCL_PROFILER_PLUGIN",
    "TORCH_FR_",
    "TORCH_NCCL_DEBUG_INFO_",
    "TORCH_NCCL_DUMP_",
)
"""Those that the recorder sets itself, by its own options: no settings of the job."""
SAFE = (
    "CUDA_",
    "GLOO_",
    "HOROVOD_",
    "HSA_",
    "KMP_",
    "NCCL_",
    "OMP_",
    "PYTORCH_ALLOC_",
    "PYTORCH_CUDA_ALLOC_",
    "PYTORCH_HIP_ALLOC_",
    "PYTORCH_NO_",
    "RCCL_",
    "TORCH_NCCL_",
    "TORCHINDUCTOR_CACHE_DIR",
)
"""Families that compute the same, but for the order of sums."""


def may_set(name: str) -> bool:
    """Whether a change may set this variable."""
    return (allowed(name) and not name.startswith(FIXED)) or name in MORE


def variable(name: str) -> Knob:
    """The knob of one variable."""
    return Knob(
        name=f"{PREFIX}{name}",
        takes=GENERAL.takes,
        read=GENERAL.read,
        how="environment",
        alters=GENERAL.alters,
        allow="" if name.startswith(SAFE) else GENERAL.allow,
        shown_by=GENERAL.shown_by,
    )


GENERAL = Knob(
    name=f"{PREFIX}NAME",
    takes="any text, or unset to take it out",
    read=str,
    how="environment",
    allow="env",
    alters=f"What the variable says; those of {', '.join(f'`{one}`' for one in SAFE)} need no permission.",
    shown_by="test_process.py",
)


def _install(ledger: Ledger) -> None:
    for name, value in ledger.changes.items():
        if not name.startswith(PREFIX):
            continue
        found = os.environ.get(name.removeprefix(PREFIX), UNSET)
        if found == value:
            ledger.applied(name)
        else:
            ledger.refused(name, f"the launcher gives its ranks {found}")
    for name, value in sorted(os.environ.items()):
        if may_set(name) and not name.startswith(RECORDERS):
            ledger.seen(f"{PREFIX}{name}", value)


FAMILY = Family("environment", (GENERAL,), _install)

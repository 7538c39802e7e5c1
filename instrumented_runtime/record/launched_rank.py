"""Which rank a launcher made this process, and whether this process is a launcher itself. Light to import."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import NamedTuple


class LaunchedRank(NamedTuple):
    """A rank by its launcher's variables; `world_size` is 1 where only the rank is known."""

    rank: int
    world_size: int
    local_rank: int


# Rank, world size, local rank. torchrun and Kubeflow first: they may run inside a Slurm step. Of Slurm's variables only
# srun sets the number of tasks of a step; a batch script has SLURM_PROCID too and is no rank.
VARIABLES = (
    ("RANK", "WORLD_SIZE", "LOCAL_RANK"),
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK"),
    ("MV2_COMM_WORLD_RANK", "MV2_COMM_WORLD_SIZE", "MV2_COMM_WORLD_LOCAL_RANK"),
    ("PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID"),
    ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID"),
)
SCRIPTS = {"torchrun", "accelerate", "deepspeed", "mpirun", "mpiexec", "horovodrun", "composer", "torchrun.py"}
MODULES = ("torch.distributed.", "accelerate.commands.", "deepspeed.launcher.", "ray.")
# Interpreter options that take the next word as their value.
_WITH_VALUE = ("-W", "-X", "--check-hash-based-pycs")


def launched_rank(environment: Mapping[str, str] | None = None) -> LaunchedRank | None:
    """The rank by the variables of torchrun, mpirun, srun…; None in a process that no launcher numbered."""
    variables = os.environ if environment is None else environment
    for rank, size, local in VARIABLES:
        number, of = _number(variables, rank), _number(variables, size)
        if number is not None and (of is not None or rank == "RANK"):
            return LaunchedRank(number, of or 1, _number(variables, local) or 0)
    return None


def is_launcher(words: Sequence[str]) -> bool:
    """Whether `words`, a Python process's `sys.orig_argv`, start ranks and are none: torchrun, `accelerate launch`…

    A launcher may have RANK in its environment: Kubeflow gives every pod one.
    """
    rest = list(words[1:])
    while rest:
        word = rest.pop(0)
        if word == "-m" or (word.startswith("-") and not word.startswith("--") and word.endswith("m")):
            return bool(rest) and f"{rest[0]}.".startswith(MODULES)
        if word == "-c":
            return False
        if word in _WITH_VALUE:
            rest[:1] = []
        elif not word.startswith("-"):
            return os.path.basename(word) in SCRIPTS
    return False


def _number(variables: Mapping[str, str], name: str) -> int | None:
    text = variables.get(name, "").strip()
    return int(text) if text.isdigit() else None

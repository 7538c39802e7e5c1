"""Which environment variables of a profiled program may be kept, and where they are taken out.

A report of Nsight Systems holds the whole environment of the program, and often its arguments; a header of Kineto holds
whatever the script put there; a command line may begin with assignments. API keys are among them. This is the one
allow-list: nothing that gpuscope writes (report, page, store, cache, reduced file, export, answer) carries a variable
that is not in it. SECURITY.md says what else is assumed of traces.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from gpuscope import when_used

NAMES = frozenset(
    {
        "LOCAL_RANK",
        "LOCAL_WORLD_SIZE",
        "GROUP_RANK",
        "ROLE_RANK",
        "MASTER_ADDR",
        "MASTER_PORT",
        "NODE_RANK",
        "RANK",
        "WORLD_SIZE",
        "NVIDIA_VISIBLE_DEVICES",
        "PALS_RANKID",
        "JSM_NAMESPACE_RANK",
        "JSM_NAMESPACE_SIZE",
        "FLUX_TASK_RANK",
        "FLUX_JOB_SIZE",
        "PMIX_RANK",
        "PMIX_SIZE",
        "PMI_RANK",
        "PMI_SIZE",
        "MV2_COMM_WORLD_RANK",
        "MV2_COMM_WORLD_SIZE",
        "SLURM_JOB_ID",
        "SLURM_JOB_NUM_NODES",
        "SLURM_LOCALID",
        "SLURM_NNODES",
        "SLURM_NODEID",
        "SLURM_NODELIST",
        "SLURM_NPROCS",
        "SLURM_NTASKS",
        "SLURM_NTASKS_PER_NODE",
        "SLURM_PROCID",
        "SLURM_STEP_NUM_TASKS",
    }
)
"""Variables that say which rank a process is and where."""
PREFIXES = (
    "CUBLAS_",
    "CUDA_",
    "CUDNN_",
    "GLOO_",
    "GPUSCOPE_",
    "HIP_",
    "HSA_",
    "KINETO_",
    "KMP_",
    "MIOPEN_",
    "MKL_",
    "NCCL_",
    "NVTE_",
    "NVTX_",
    "OMP_",
    "OMPI_COMM_WORLD_",
    "PYTORCH_ALLOC_",
    "PYTORCH_CUDA_ALLOC_",
    "PYTORCH_HIP_ALLOC_",
    "PYTORCH_NO_",
    "RCCL_",
    "ROCR_",
    "TORCHELASTIC_",
    "TORCHINDUCTOR_",
    "TORCH_CPP_LOG_",
    "TORCH_CUDNN_",
    "TORCH_DISTRIBUTED_",
    "TORCH_FR_",
    "TORCH_LOGS",
    "TORCH_NCCL_",
    "TORCH_SHOW_",
)
"""Families of variables that change how fast a job runs."""
HEADER = frozenset(
    {
        "baseTimeNanoseconds",
        "cuda_driver_version",
        "cuda_runtime_version",
        "deviceProperties",
        "displayTimeUnit",
        "distributedInfo",
        "gpuscope_cores",
        "gpuscope_gpu",
        "hip_driver_version",
        "hip_runtime_version",
        "host_name",
        "profile_memory",
        "record_shapes",
        "schemaVersion",
        "traceName",
        "with_flops",
        "with_modules",
        "with_stack",
    }
)
"""Keys of a trace's header that are kept: scripts add others (`add_metadata_json`), an environment among them."""
_SECRET = (
    "key",
    "keys",
    "token",
    "secret",
    "secrets",
    "password",
    "passwd",
    "passphrase",
    "credential",
    "credentials",
    "auth",
    "cookie",
    "signature",
)
"""No name with a part that ends so is kept, whatever family it claims to be of."""
_ASSIGNMENT = when_used.pattern(r"\b([A-Za-z_][A-Za-z0-9_]*)=(\"[^\"]*\"|'[^']*'|[^\s;,\"']+)")
_IN_URL = when_used.pattern(r"(\w+://)[^/\s@]+@")
TAKEN_OUT = "…"
"""What stands in place of a value."""


def allowed(name: str) -> bool:
    """Whether a variable of that name may be kept."""
    return (name in NAMES or name.startswith(PREFIXES)) and not _names_a_secret(name)


def _names_a_secret(name: str) -> bool:
    return any(part.endswith(_SECRET) for part in re.split(r"[-_.]", name.lower()))


def kept_facts(facts: Mapping[str, Any]) -> dict[str, Any]:
    """What a file says of itself, of its header only what is in `HEADER`."""
    header = facts.get("header")
    if not isinstance(header, Mapping):
        return dict(facts)
    return {**facts, "header": {key: value for key, value in header.items() if key in HEADER}}


def kept(variables: Mapping[str, str]) -> dict[str, str]:
    """The variables that may be kept, in order of name."""
    return {name: value for name, value in sorted(variables.items()) if allowed(name)}


def kept_assignments(text: str) -> str:
    """Of `NAME=value` pairs those that may be kept, one a line; `;`, a NUL or a line's end ends a pair."""
    pairs = re.split("[;\0\n]", text)
    return "\n".join(pair for pair in pairs if allowed(pair.partition("=")[0].strip()) and "=" in pair)


def redacted(text: str) -> str:
    """A text that may quote an environment or a command line, without the values of variables that are not allowed.

    >>> redacted("env WANDB_API_KEY=abc NCCL_DEBUG=INFO python train.py")
    'env WANDB_API_KEY=… NCCL_DEBUG=INFO python train.py'
    """

    def without(match: re.Match[str]) -> str:
        name = match[1]
        # `lr=0.1` is an argument; environment variables are written in capitals.
        open_value = allowed(name) or not (name.isupper() or _names_a_secret(name))
        return match[0] if open_value else f"{name}={TAKEN_OUT}"

    return _IN_URL.sub(rf"\1{TAKEN_OUT}@", _ASSIGNMENT.sub(without, text))


def redacted_command(words: Iterable[str]) -> list[str]:
    """A command line without the values of such variables and of options named like a secret (`--api-key X`)."""
    found: list[str] = []
    after_secret = False
    for word in words:
        name, equals, _ = word.partition("=")
        if after_secret and not word.startswith("-"):
            found.append(TAKEN_OUT)
        elif name.startswith("-") and equals and _names_a_secret(name):
            found.append(f"{name}={TAKEN_OUT}")
        else:
            found.append(redacted(word))
        after_secret = not equals and word.startswith("-") and _names_a_secret(word)
    return found

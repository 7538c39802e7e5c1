"""Exchanges that go through host memory, though the devices could reach each other."""

from __future__ import annotations

from collections.abc import Iterator

from gpuscope.analyzers.advice.framework_settings import config, needed, step_now
from gpuscope.analyzers.advice.rule import Case, Proposal, Rule
from gpuscope.analyzers.advice.settings import other_settings, torch_settings
from gpuscope.analyzers.changes import Predicted, Refused
from gpuscope.catalogue.suggestion import Suggestion
from gpuscope.schema.document import FindingEntry
from gpuscope.when_used import dataclass
from gpuscope.words import units


@dataclass(frozen=True)
class DeviceBuffers(Suggestion):
    """Device buffers given to MPI, or to NCCL."""

    code = "gpu_aware_exchange"
    answers = ("host_staged_exchange",)
    sets = "device pointers given to a CUDA-aware MPI, or NCCL, where data goes through host memory"
    action = "Exchange device buffers directly, without copies through host memory"
    why = "{cost}; {message}"
    risk = "needs an MPI built for it, and GPUDirect (nvidia-peermem) between hosts; else it stages by itself"
    verify = "record again: no copies to and from the host around the messages"


def propose(case: Case, finding: FindingEntry) -> Iterator[Proposal]:
    """By the kind of program."""
    if case.native or case.program is None:
        setting = config(
            "MPI_Send, MPI_Recv and their kin",
            "device pointers, with a CUDA-aware MPI (Open MPI over "
            "UCX, MVAPICH2-GDR, Cray MPICH with MPICH_GPU_SUPPORT_ENABLED=1), or NCCL",
        )
    elif case.program == "jax":
        setting = other_settings.JAX_INITIALIZE.to("collectives inside jit, over NCCL")
    else:
        setting = torch_settings.INIT_PROCESS_GROUP.to('backend="nccl"  # tensors stay on the device')
    yield Proposal(finding, DeviceBuffers(), setting, outcome=_outcome(case, finding))


def _outcome(case: Case, finding: FindingEntry) -> Predicted | Refused:
    """The copies gone, the messages as long as they are."""
    before = step_now(case)
    own = [rank for rank in case.report["ranks"] if rank["rank"] in finding["ranks"]]
    exposed = [needed(case, rank, "exposed_memory") for rank in own]
    # Copies beside kernels cost the step nothing.
    saved = min(finding.get("per_step_ns") or 0, max(exposed, default=0))
    if not 0 < saved < before:
        return Refused("how much of the step the copies take with nothing beside them is not known")
    return Predicted(
        before,
        before - saved,
        max(before - 2 * saved, 0),
        before - saved // 2,
        f"the copies around the messages ({units.duration(saved)}) gone, the messages as long as now; at worst half of "
        "the copies' time stays, at best as much again goes with messages that need not wait (assumed)",
        "assumed",
    )


RULE = Rule("staging", (DeviceBuffers,), propose, programs=("pytorch", "jax", "native"), place=230)

"""Commands that settle which of two settings of NCCL is faster: nccl-tests or `gpuscope tune --nccl`.

Each variant writes its own log. NCCL logs its variables there (subsystem ENV), not its calls (COLL, TUNING), whose
logging would be in the times; `gpuscope analyze` of the logs compares them size by size.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from gpuscope.analyzers.nccl.logged.nccl_grammar import UNSET
from gpuscope.when_used import dataclass

PROGRAMS = {
    "all_reduce": "all_reduce_perf",
    "all_gather": "all_gather_perf",
    "reduce_scatter": "reduce_scatter_perf",
    "all_to_all": "alltoall_perf",
    "broadcast": "broadcast_perf",
    "reduce": "reduce_perf",
    "send_recv": "sendrecv_perf",
}
"""Operations by the program of NVIDIA/nccl-tests that times them."""


@dataclass(frozen=True)
class Variant:
    """A run to compare: the name of its log, and the variables that it differs by."""

    name: str
    settings: Mapping[str, str]


def comparison(op: str, sizes: Sequence[int], ranks: int, variants: Sequence[Variant]) -> str:
    """The commands for an operation over messages of these sizes (bytes) and their neighbours, among so many ranks."""
    low, high = min(sizes) // 2 or 1, max(sizes) * 2
    program = PROGRAMS.get(op, "all_reduce_perf")
    span = f"-b {short_size(low)} -e {short_size(high)} -f 2 -g 1 -w 20 -n 100"
    logged = "-x NCCL_DEBUG=INFO -x NCCL_DEBUG_SUBSYS=INIT,ENV"
    lines = [
        f"mpirun -np {ranks} {logged} {_exported(one.settings)}{program} {span} > {one.name}.log" for one in variants
    ]
    return "; ".join([*lines, f"gpuscope analyze {' '.join(f'{one.name}.log' for one in variants)}"])


SEARCH = "gpuscope tune --nccl -- COMMAND"
"""The same search by gpuscope itself, on the messages of the job that COMMAND starts."""


def short_size(nbytes: int) -> str:
    """As nccl-tests and `gpuscope bench` take it: 65536 is `64K`."""
    for unit, power in (("G", 30), ("M", 20), ("K", 10)):
        if nbytes >= 1 << power and not nbytes % (1 << power):
            return f"{nbytes >> power}{unit}"
    return str(nbytes)


def _exported(settings: Mapping[str, str]) -> str:
    """As options of mpirun; what is unset is left out."""
    return "".join(f"-x {name}={value} " for name, value in settings.items() if value != UNSET)

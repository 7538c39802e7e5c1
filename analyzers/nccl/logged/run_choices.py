"""What a run records of NCCL: its choices, and where its communicators lie."""

from __future__ import annotations

from gpuscope.analyzers.changes import Refused
from gpuscope.analyzers.facts.placement import Placed
from gpuscope.analyzers.facts.run_facts import RunFacts
from gpuscope.analyzers.nccl.logged.choices import Choices
from gpuscope.collective_costs.nccl_constants import Generation
from gpuscope.collective_costs.nccl_model import Choice, Place
from gpuscope.hardware.link_rates import compute_capability, gpu_fabric

_GENERATIONS: tuple[tuple[int, Generation], ...] = ((100, "blackwell"), (90, "hopper"), (80, "ampere"), (0, "volta"))
"""By compute capability times ten, as NCCL's tuning distinguishes them."""


class RunChoices:
    """What NCCL chose in one run, and where groups of its ranks lie."""

    def __init__(self, facts: RunFacts) -> None:
        self._choices = Choices(facts.trace.rows("choices"))
        self._placement = facts.placement
        self._ranks = facts.trace.ranks
        self._nvlinks = any(host.nvlinks() for host in facts.hosts)

    def choice(self, op: str, nbytes: int, group_size: int) -> Choice | None:
        """What NCCL chose, where its log has it."""
        return self._choices.of(op, nbytes, group_size)

    def place(self, group_size: int) -> Place | Refused:
        """Where a group of that size lies: as the job if it is all of it, else as NCCL's log says of such groups."""
        whole = self._placement.of_ranks(self._ranks, len(self._ranks))
        placed = whole if group_size == len(self._ranks) else self._placement.of_size(group_size)
        placed = _known(placed, whole)
        if placed.hosts is None or group_size % placed.hosts:
            return Refused("the number of hosts of the ranks is not recorded: add a log of NCCL_DEBUG=INFO")
        model = placed.models[0] if placed.models else ""
        capability = compute_capability(model)
        if capability is None:
            return Refused("the GPU's model is not recorded, or NCCL has no figures for it")
        generation = next(name for least, name in _GENERATIONS if capability >= least)
        return Place(group_size, placed.hosts, self._nvlinks or gpu_fabric(model) is not None, generation)


def _known(placed: Placed, whole: Placed) -> Placed:
    """A part of a job on one host lies on that host, on the job's GPUs."""
    hosts = placed.hosts if placed.hosts is not None else 1 if whole.hosts == 1 else None
    return Placed(placed.size, hosts, placed.models or whole.models)

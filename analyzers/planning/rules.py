"""The literature's decision table, row by row, with what it says of a model and a cluster."""

from __future__ import annotations

from gpuscope.analyzers.planning.candidates import LONG_SEQUENCE, Question, Scored
from gpuscope.analyzers.planning.inputs.cluster import Cluster
from gpuscope.analyzers.planning.layout import NO
from gpuscope.schema.plan_document import PlanRule
from gpuscope.words import units

HOST_MEMORY = 1.5
CORES_PER_GPU = 4
PCIE_LANES = 16


def rules(question: Question, rows: list[Scored]) -> list[PlanRule]:
    """Every rule; `applies` where this model on this cluster calls for it."""
    model, cluster = question.model, question.cluster
    limit = cluster.usable
    needs = [_least(rows, stages) for stages in ((0,), (1, 2), (3,))]
    alone, light, full = needs
    fits = [need is not None and need <= limit for need in needs]
    return [
        _rule(
            "plain data parallelism while a replica fits one GPU",
            fits[0],
            _needs(alone, limit),
            "Li et al., PyTorch Distributed, arXiv:2006.15704",
        ),
        _rule(
            "else divide the optimizer and gradients (ZeRO-1, ZeRO-2): the same volume",
            fits[1] and not fits[0],
            _needs(light, limit),
            "Rajbhandari et al., ZeRO, arXiv:1910.02054, section 7",
        ),
        _rule(
            "else divide the weights too (ZeRO-3, FSDP): weights gathered twice per micro-batch",
            fits[2] and not any(fits[:2]),
            _needs(full, limit),
            "Zhao et al., PyTorch FSDP, arXiv:2304.11277",
        ),
        _rule(
            "tensor parallelism only inside a host's fast links, at most as wide as the host",
            cluster.gpus_per_host > 1 and not any(fits[:2]),
            f"{cluster.inside.name}, {units.bandwidth(cluster.inside.usable)}"
            + (f", between hosts {units.bandwidth(cluster.port_gbps)} per GPU" if cluster.network else ""),
            "Narayanan et al., arXiv:2104.04473, takeaway 1",
        ),
        _rule(
            "pipeline across hosts once a host's tensor parallelism does not suffice, with many micro-batches",
            cluster.hosts > 1 and not any(fits),
            f"a batch of {units.plural(question.batch, 'sequence')} on {units.plural(cluster.hosts, 'host')}",
            "Narayanan et al., arXiv:2104.04473, takeaways 1 and 2",
        ),
        _rule(
            "context parallelism for long sequences",
            model.sequence >= LONG_SEQUENCE,
            f"sequences of {model.sequence:,}; in every size from {LONG_SEQUENCE:,}, below it in halves",
            "Llama 3, arXiv:2407.21783, section 3.3.2",
        ),
        _rule(
            "expert parallelism for mixtures of experts, inside a host where it can be",
            model.experts > 0,
            f"{model.experts} experts; between hosts a GPU's all-to-all has {units.bandwidth(cluster.port_gbps)}"
            if model.experts and cluster.network
            else f"{model.experts} experts"
            if model.experts
            else "no experts",
            "Lepikhin et al., GShard, arXiv:2006.16668",
        ),
        *_host(cluster),
    ]


def _host(cluster: Cluster) -> list[PlanRule]:
    """What a host should have beside its GPUs, of what the cluster's file tells; `applies` where it has less."""
    gpus, memory = cluster.gpus_per_host, cluster.gpus_per_host * cluster.memory
    each = f"for {units.plural(gpus, 'GPU')}"
    found: list[tuple[bool, str, bool, str]] = [
        (
            cluster.host_memory > 0,
            "memory 1.5 to 2 times its GPUs'",
            cluster.host_memory < HOST_MEMORY * memory,
            f"{units.size(cluster.host_memory)} beside {units.size(memory)}",
        ),
        (
            cluster.host_cores > 0,
            f"{CORES_PER_GPU} cores per GPU or more",
            cluster.host_cores < CORES_PER_GPU * gpus,
            f"{cluster.host_cores} {each}",
        ),
        (
            cluster.pcie_lanes > 0,
            f"{PCIE_LANES} PCIe lanes per GPU",
            cluster.pcie_lanes < PCIE_LANES,
            f"{cluster.pcie_lanes}",
        ),
        (
            cluster.network is not None,
            "a network port for two GPUs or more",
            2 * cluster.ports < gpus,
            f"{units.plural(cluster.ports, 'port')} {each}",
        ),
    ]
    return [
        _rule(f"a host should have {what}", less, f"it has {has}", "rule of thumb", host=True)
        for known, what, less, has in found
        if known
    ]


def _least(rows: list[Scored], stages: tuple[int, ...]) -> float | None:
    """Memory of data parallelism alone with these stages of ZeRO; None where no layout divides the batch."""
    return min(
        (
            row.needs
            for row in rows
            if row.layout.tensor == row.layout.pipeline == row.layout.context == row.layout.expert == 1
            and row.layout.zero in stages
            and row.layout.offload == NO
        ),
        default=None,
    )


def _needs(need: float | None, limit: float) -> str:
    if need is None:
        return "no such layout divides the batch"
    return f"takes {units.size(round(need))} of {units.size(round(limit))} usable per GPU"


def _rule(rule: str, applies: bool, why: str, source: str, *, host: bool = False) -> PlanRule:
    return {"rule": rule, "applies": applies, "why": why, "source": source, "host": host}

"""What `gpuscope advise` says, as one JSON document (docs/planning.md). Sizes are bytes, times ns."""

from __future__ import annotations

from typing import TypedDict

PLAN_VERSION = 1


class PlanModel(TypedDict):
    """The model by its shape."""

    name: str
    parameters: int
    flops_per_step: float
    states_bytes: int
    """Weights, gradients and optimizer, undivided: 16 bytes per parameter."""


class PlanCluster(TypedDict):
    """The cluster by its figures."""

    name: str
    gpus: int
    hosts: int
    memory_bytes: int
    peak_flops_per_s: float
    inside: str
    network: str | None


class PlanEntry(TypedDict):
    """One way to spread the model."""

    name: str
    data: int
    tensor: int
    pipeline: int
    context: int
    expert: int
    zero: int
    micro_batch: int
    micro_batches: int
    recompute: bool
    memory_bytes: dict[str, int]
    memory_frac: float
    """Sum of the parts by the GPU's memory."""
    volume_bytes: dict[str, int]
    bubble_frac: float
    estimate_ns: int
    """For the order only; not a prediction."""
    why: list[str]


class PlanRule(TypedDict):
    """A row of the decision table, with what it says of this model and cluster."""

    rule: str
    applies: bool
    why: str
    source: str


class Plan(TypedDict):
    """The whole document."""

    plan_version: int
    gpuscope_version: str
    model: PlanModel
    cluster: PlanCluster
    global_batch: int
    sequence: int
    considered: int
    feasible: int
    candidates: list[PlanEntry]
    rules: list[PlanRule]
    placement: list[str]
    assumptions: list[str]

"""What `gpuscope advise` says, as one JSON document (docs/planning.md). Sizes are bytes, times ns."""

from __future__ import annotations

from typing import TypedDict

PLAN_VERSION = 2


class PlanModel(TypedDict):
    """The model by its shape."""

    name: str
    parameters: int
    active_parameters: int
    flops_per_step: float
    states_bytes: int
    """Weights, gradients and optimizer, undivided: 18 bytes per parameter."""


class PlanCluster(TypedDict):
    """The cluster by its figures."""

    name: str
    gpus: int
    hosts: int
    memory_bytes: int
    usable_bytes: int
    peak_flops_per_s: float
    inside: str
    inside_gbps: float
    network: str | None
    network_gbps: float
    """Per GPU; 0 with one host."""


class PlanEntry(TypedDict):
    """One way to spread the model."""

    name: str
    data: int
    tensor: int
    pipeline: int
    chunks: int
    context: int
    exchange: str | None
    expert: int
    zero: int
    shard: int
    secondary: int
    offload: str
    micro_batch: int
    micro_batches: int
    recompute: str
    layers: list[int]
    """Of each pipeline stage."""
    memory_bytes: dict[str, int]
    memory_frac: float
    """Sum of the parts by the GPU's memory."""
    lacks_bytes: int
    """Missing per GPU; 0 where the layout fits."""
    volume_bytes: dict[str, int]
    communication_ns: dict[str, int]
    exposed_ns: dict[str, int]
    compute_ns: int
    bubble_ns: int
    bubble_frac: float
    estimate_ns: int
    low_ns: int | None
    high_ns: int | None
    """Range of the estimate where a run calibrates it; null where it is for the order only."""
    slower_frac: float
    """Than the first candidate."""
    why: list[str]


class PlanRule(TypedDict):
    """A row of the decision table, with what it says of this model and cluster."""

    rule: str
    applies: bool
    why: str
    source: str


class PlanChange(TypedDict):
    """What another batch, sequence, link or memory would change."""

    change: str
    name: str | None
    same: bool
    """Whether the best layout stays the same but for its micro-batches."""
    tokens_per_s: float
    factor: float
    """Tokens per second by those of the first candidate."""


class PlanGoodput(TypedDict):
    """Failures and what they leave."""

    mtbf_ns: int
    checkpoint_ns: int
    checkpoint_interval_ns: int
    goodput_frac: float


class PlanCost(TypedDict):
    """Of a million tokens, failures included."""

    gpu_hours: float
    joules: float | None
    price: float | None


class PlanCalibration(TypedDict):
    """What a recorded run gave."""

    run: str
    layout: str
    measured_step_ns: int
    estimated_step_ns: int
    """The same layout by the calibrated model."""
    compute_frac: float
    """Of the peak, in matrix multiplications with what runs between them."""
    attention_frac: float
    """Of the peak, in attention; the same where its kernels are not known."""
    links: list[str]
    notes: list[str]


class Plan(TypedDict):
    """The whole document."""

    plan_version: int
    gpuscope_version: str
    model: PlanModel
    cluster: PlanCluster
    global_batch: int
    sequence: int
    tokens: int
    precision: str
    considered: int
    feasible: int
    candidates: list[PlanEntry]
    nearest: list[PlanEntry]
    """Where nothing fits: the layouts that lack least memory."""
    rules: list[PlanRule]
    placement: list[str]
    sensitivity: list[PlanChange]
    goodput: PlanGoodput | None
    cost: PlanCost | None
    commands: dict[str, str]
    """The first candidate in the terms of `torchtitan`, `megatron` and `deepspeed`; only those that can do it."""
    calibration: PlanCalibration | None
    assumptions: list[str]

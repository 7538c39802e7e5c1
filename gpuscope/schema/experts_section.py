"""The report's section `experts`: how unevenly tokens go to the ranks of their experts, and what that costs."""

from __future__ import annotations

from typing import Literal, NotRequired

from gpuscope.schema.replay_section import Prediction
from gpuscope.when_used import TypedDict


class ExpertPassEntry(TypedDict):
    """A pass through a layer of experts, forward or backward: means over the judged steps."""

    group: str
    number: int
    """Within the step, from 0: forwards in the order of the layers, then backwards."""
    bytes: int
    """Mean that a rank receives."""
    imbalance: float
    """What the busiest rank receives, times the mean."""
    busiest: int
    """The rank that receives most, most often."""
    ranks: list[int]
    loads: list[float]
    """What each of `ranks` receives, times the mean."""
    experts_ns: int
    """From the tokens' arrival to their return, on the slowest rank."""
    imbalance_ns: int
    """Of it and of both transfers, what even routing would save."""
    straggler_ns: int
    """Of it, what the slowest rank takes beyond what its tokens explain."""
    dispatch_ns: int
    combine_ns: int
    """Transfers, after the last rank has arrived."""
    exposed_ns: int
    """Of dispatch and combine, waiting included, what no other work of the rank covers: mean over the ranks."""
    tokens: NotRequired[list[list[float]]]
    """Of each of `ranks`, tokens of each of its experts; absent where no shapes tell them."""


class ExpertRankEntry(TypedDict):
    """What a rank receives for its experts."""

    rank: int
    load: float
    """Times the mean of its group."""
    bytes_per_step: int
    experts_ns_per_step: int


class ExpertCost(TypedDict):
    """ns per step, passes added up; what overlaps other computing is in it."""

    imbalance_ns: int
    straggler_ns: int
    network_ns: int
    """Both transfers, without what uneven loads add."""


GainKind = Literal["even", "placement", "redundant", "capacity"]


class ExpertGain(TypedDict):
    """What the replay predicts for another routing or placement, or why it does not."""

    kind: GainKind
    """Every rank receives the mean; experts placed anew by their tokens; so and one more per rank, copies of those
    with most tokens; tokens beyond `capacity_factor` times the mean dropped."""
    capacity_factor: float | None
    dropped_frac: float
    predicted: Prediction | None
    why_not: str


class ExpertsSection(TypedDict):
    """Mixtures of experts, from the sizes of their all-to-alls. Absent without sizes."""

    passes: list[ExpertPassEntry]
    ranks: list[ExpertRankEntry]
    cost: ExpertCost
    gains: list[ExpertGain]
    """Even routing first, then placements, then capacity factors."""
    overlapping: int
    """Passes that begin before the combine of another: micro-batches that overlap."""
    left_out: int
    """All-to-alls of tokens that are no dispatch with its combine: scales and weights of tokens, cut steps."""
    not_separable: NotRequired[str]
    """Kernels that wait, transfer and hold no sizes: what they take can't be divided."""

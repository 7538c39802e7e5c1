"""Experts with uneven numbers of tokens: a router that balances, or a limit on what an expert takes."""

from __future__ import annotations

from collections.abc import Iterator

from gpuscope.analyzers.advice.rule import Case, Proposal, Rule, as_reported
from gpuscope.analyzers.advice.settings import megatron_settings
from gpuscope.catalogue.suggestion import Suggestion
from gpuscope.schema.document import FindingEntry
from gpuscope.when_used import dataclass
from gpuscope.words import units


@dataclass(frozen=True)
class EvenRouting(Suggestion):
    """A router that gives every rank's experts as much."""

    code = "even_routing"
    answers = ("expert_imbalance",)
    sets = "the weight of the auxiliary loss, or an expert bias"
    action = "Balance the router, or move the experts with most tokens to other ranks"
    why = "{busiest} up to {most:.2f} times the mean; the others wait for its experts and for its part of the transfers"
    risk = "a stronger auxiliary loss costs quality; a bias (DeepSeek-V3's) less; real routing is never quite even"
    verify = "record again: experts.ranks[].load below 1.2"

    busiest: str
    most: float


@dataclass(frozen=True)
class CapacityFactor(Suggestion):
    """Tokens beyond a limit are dropped."""

    code = "capacity_factor"
    answers = ("expert_imbalance",)
    sets = "the capacity factor of the experts"
    action = "Limit each expert to {factor:g} times the mean of the tokens"
    why = "it bounds the busiest rank; {dropped} of the tokens are dropped with the recorded routing"
    risk = "dropped tokens pass the layer unchanged, which costs quality: try a balanced router first"
    verify = "record again: experts.ranks[].load, and the loss"

    factor: float
    dropped: str


def propose(case: Case, finding: FindingEntry) -> Iterator[Proposal]:
    """Even routing first, then the capacities that drop something, the mildest first."""
    section = case.report.get("experts")
    if section is None or not section["gains"]:
        return
    most = max(section["ranks"], key=lambda one: one["load"])
    even = section["gains"][0]
    limits = [one for one in section["gains"] if one["kind"] == "capacity"]
    told = EvenRouting(f"rank {most['rank']} receives", most["load"])
    yield Proposal(finding, told, megatron_settings.AUX_LOSS.to("higher, or an expert bias"), outcome=as_reported(even))
    for one in sorted(limits, key=lambda one: one["dropped_frac"]):
        factor = one["capacity_factor"] or 1.0
        limit = CapacityFactor(factor, units.share(one["dropped_frac"]))
        yield Proposal(finding, limit, megatron_settings.CAPACITY_FACTOR.to(f"{factor:g}"), outcome=as_reported(one))


RULE = Rule("experts", (EvenRouting, CapacityFactor), propose, place=106)
"""What uneven routing costs beside a slow rank and the network."""

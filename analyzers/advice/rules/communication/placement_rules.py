"""Which ranks share a host, and what joins GPUs to it."""

from __future__ import annotations

from collections.abc import Iterator

from gpuscope.analyzers.advice.framework_settings import by_framework, config
from gpuscope.analyzers.advice.rule import Case, Proposal, Rule
from gpuscope.analyzers.advice.settings import megatron_settings, torch_settings
from gpuscope.catalogue.suggestion import Suggestion
from gpuscope.schema.document import FindingEntry
from gpuscope.when_used import dataclass
from gpuscope.words import units

LEAST = 0.03
"""Share of the time from which a slow link is worth a repair, as of any stall."""


@dataclass(frozen=True)
class InsideHost(Suggestion):
    """The group that communicates most on neighbouring ranks."""

    code = "inside_host"
    answers = ("group_across_hosts",)
    sets = "the order of the device mesh: tensor parallel within a host"
    action = "Lay the ranks out so that this group lies within one host, pipeline and data parallel across hosts"
    why = "{message}"
    why_not = (
        "this trace does not show how fast the group is within a host: measure it with `gpuscope bench collectives` on "
        "one host"
    )
    risk = "checkpoints sharded by the old layout must be resharded (DCP does it on loading)"
    verify = "record again: the group's busbw is that of the link inside the host"


@dataclass(frozen=True)
class WholeLink(Suggestion):
    """A link of a GPU that runs below what its hardware can."""

    code = "whole_link"
    answers = ("slow_pcie", "slow_copies", "degraded_link")
    sets = "the card or its riser reseated, another slot, bifurcation in the BIOS, or another host"
    action = "Repair the link of {who}: reseat the card, choose another slot, or use another host"
    why = "{message}"
    why_not = "how much of the time of a copy the link takes is not in a trace"
    risk = "none for training; the host has to be stopped"
    verify = "`gpuscope bench topology` on the host names no card on fewer lanes; record again: copies get shorter"

    ranks: list[int]

    @property
    def who(self) -> str:
        return units.rank_words(self.ranks) if self.ranks else "the GPUs named"


def propose(case: Case, finding: FindingEntry) -> Iterator[Proposal]:
    """The dimension that talks most innermost, so that it stays within a host; links as wide as they can be."""
    if finding["code"] in WholeLink.answers:
        if finding["code"] == "slow_copies" and finding["share_frac"] < LEAST:
            return
        setting = config("PCIe or NVLink of the GPU", "all that the card can use")
        yield Proposal(finding, WholeLink(finding["ranks"]), setting)
        return
    setting = by_framework(
        case,
        torch_settings.MESH_DIM_NAMES.to('("pp", "dp", "tp")  # the last one is innermost'),
        megatron=megatron_settings.TENSOR_PARALLEL.to("at most the GPUs of one host"),
    )
    yield Proposal(finding, InsideHost(), setting)


RULE = Rule("placement", (InsideHost, WholeLink), propose, place=210)

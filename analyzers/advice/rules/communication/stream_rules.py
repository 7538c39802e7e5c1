"""Collectives on the stream that computes: the way out, by framework."""

from __future__ import annotations

from collections.abc import Iterator

from gpuscope.analyzers.advice.framework_settings import by_framework, python
from gpuscope.analyzers.advice.rule import Case, Proposal, Rule
from gpuscope.analyzers.advice.settings import megatron_settings
from gpuscope.catalogue.suggestion import Suggestion
from gpuscope.schema.document import FindingEntry
from gpuscope.when_used import dataclass
from gpuscope.words import units

LEAST = 0.03
"""Share of the time from which it is worth a change, as of any stall."""


@dataclass(frozen=True)
class OwnStream(Suggestion):
    """A stream of its own, and the wait for its result as late as possible."""

    code = "own_stream"
    answers = ("shared_stream",)
    sets = """`async_op=True` and a later `wait()`, Megatron `--tp-comm-overlap`, where a stream carries compute and \
communication"""
    action = "Issue these collectives asynchronously and wait where their result is used"
    why = "{cost}; on one stream nothing can run beside them"
    why_not = (
        "which later kernel needs the result is not recorded: at most {share} of the time, and nothing where the very "
        "next one does"
    )
    risk = "a result that is read before work.wait() is not there yet; buffers must live until then"
    verify = "record again: collectives on a stream of their own, overlap_frac of the ranks rises"

    share_frac: float

    @property
    def share(self) -> str:
        return units.share(self.share_frac)


def propose(case: Case, finding: FindingEntry) -> Iterator[Proposal]:
    """One suggestion for all devices: that of the finding that costs most."""
    if finding["share_frac"] < LEAST or finding is not max(_all(case), key=lambda one: one["share_frac"]):
        return
    setting = by_framework(
        case,
        python(
            "torch.distributed collectives",
            "async_op=True, and work.wait() right before the first use; of several "
            "in a row, the next one's input is computed meanwhile",
        ),
        megatron=megatron_settings.TP_COMM_OVERLAP.to(""),
    )
    yield Proposal(finding, OwnStream(finding["share_frac"]), setting)


def _all(case: Case) -> list[FindingEntry]:
    """One per device; the suggestion is the same for all."""
    return [one for one in case.report["findings"] if one["code"] == "shared_stream"]


RULE = Rule("streams", (OwnStream,), propose, place=250)

"""Collectives on the stream that computes: the way out, by framework."""

from __future__ import annotations

from collections.abc import Iterator

from gpuscope.analyzers.advice.framework_settings import config, cost, in_dialect, python
from gpuscope.analyzers.advice.rule import Case, Knob, Proposal, Rule
from gpuscope.analyzers.changes import Refused
from gpuscope.schema.document import FindingEntry
from gpuscope.words import units

LEAST = 0.03
"""Share of the time from which it is worth a change, as of any stall."""


def propose(case: Case, finding: FindingEntry) -> Iterator[Proposal]:
    """A stream of its own, and the wait for its result as late as possible."""
    if finding["share_frac"] < LEAST or finding is not max(_all(case), key=lambda one: one["share_frac"]):
        return
    setting = in_dialect(case, {"megatron": config("--tp-comm-overlap", "")})
    yield Proposal(
        code="own_stream",
        action="Issue these collectives asynchronously and wait where their result is used",
        why=f"{cost(finding)}; on one stream nothing can run beside them",
        setting=setting or python("torch.distributed collectives", "async_op=True, and work.wait() right before the "
                                  "first use; of several in a row, the next one's input is computed meanwhile"),
        risk="a result that is read before work.wait() is not there yet; buffers must live until then",
        verify="record again: collectives on a stream of their own, overlap_frac of the ranks rises",
        outcome=Refused("which later kernel needs the result is not recorded: at most "
                        f"{units.share(finding['share_frac'])} of the time, and nothing where the very next one does"),
    )  # fmt: skip


def _all(case: Case) -> list[FindingEntry]:
    """One per device; the suggestion is the same for all."""
    return [one for one in case.report["findings"] if one["code"] == "shared_stream"]


RULE = Rule(
    "streams",
    (
        Knob(
            "own_stream", ("shared_stream",),
            "`async_op=True` and a later `wait()`, Megatron `--tp-comm-overlap`, where a stream carries compute and "
            "communication",
        ),
    ),
    propose,
    place=250,
)  # fmt: skip

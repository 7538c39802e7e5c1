"""Debug settings that cost time in every step."""

from __future__ import annotations

from collections.abc import Iterator

from gpuscope.analyzers.advice.rule import Case, Proposal, Rule
from gpuscope.analyzers.advice.settings import torch_settings
from gpuscope.catalogue.suggestion import Suggestion
from gpuscope.schema.document import FindingEntry
from gpuscope.when_used import dataclass


@dataclass(frozen=True)
class NoDebugChecks(Suggestion):
    """torch's checks of every collective switched off."""

    code = "no_debug_checks"
    answers = ("debug_checks",)
    sets = "`TORCH_DISTRIBUTED_DEBUG` unset, where the trace shows the checks of `DETAIL`"
    action = "Unset TORCH_DISTRIBUTED_DEBUG"
    why = "{message}"
    why_not = "what the ranks wait for in the checks, they may wait for in the collectives themselves"
    risk = "a mismatch of collectives then hangs, where the checks would name it"
    verify = "record again: no sends, receives and gathers inside c10d:: calls of collectives"


@dataclass(frozen=True)
class NoRecordedDebug(NoDebugChecks):
    """The same where the environment alone tells of it: what the checks cost is then not known."""

    answers = ("latency", "straggler", "exposed_communication", "sync", "host_other")
    why = "{cost}; the recorded environment has TORCH_DISTRIBUTED_DEBUG=DETAIL, which checks every collective first"
    why_not = "the recording does not show the checks"
    bounded = False


def propose(case: Case, finding: FindingEntry) -> Iterator[Proposal]:
    """The variable taken away: where its checks were recorded, or the environment says that it is set."""
    setting = torch_settings.DISTRIBUTED_DEBUG.to("OFF")
    if finding["code"] == "debug_checks":
        yield Proposal(finding, NoDebugChecks(), setting)
    elif case.variables.get(setting["name"], "").upper() == "DETAIL" and case.finding("debug_checks") is None:
        yield Proposal(finding, NoRecordedDebug(), setting)


RULE = Rule("debug_settings", (NoDebugChecks, NoRecordedDebug), propose, place=40)

"""What the replay says of changes to one run, each combination asked for once."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import Literal

from gpuscope.analyzers.advice.rule import Case, Estimate, Predict, Proposal
from gpuscope.analyzers.what_if_changes import Change, Predicted, Refused, in_order
from gpuscope.catalogue.finding import within_compute
from gpuscope.catalogue.suggestion import BY_CODE
from gpuscope.schema.document import BeyondEntry, Diagnosis, FindingEntry, RankEntry, StepBound
from gpuscope.schema.nccl_sections import BandwidthEntry

# What rules on NCCL ask of a report: variables, versions, the costliest operation, what its links could carry.

_BETWEEN = "network port"
"""What the link of a group over several hosts is called."""


def costliest(case: Case, ops: Collection[str] = ()) -> BandwidthEntry | None:
    """The operation, group and size of the trace that takes most time; among `ops`, where any are given."""
    rows = [row for row in case.report.get("bandwidth", ()) if row["tool"] == "trace" and (not ops or row["op"] in ops)]
    return max(rows, key=lambda row: row["dur_ns"] * row["count"], default=None)


def variable(case: Case, name: str) -> str | None:
    """A variable's value as NCCL's log says it was set."""
    logged = case.report["nccl"]["environment"] if "nccl" in case.report else []
    return next((one["value"] for one in logged if one["name"] == name), None)


def older_than(case: Case, version: tuple[int, ...]) -> str:
    """A logged version of NCCL that is older than that; empty where none is, or none is logged."""
    logged = case.report["nccl"]["versions"] if "nccl" in case.report else []
    return next((one for one in logged if (numbers := _numbers(one)) and numbers < version), "")


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split("+")[0].split(".")[:2] if part.isdecimal())


def line_rates(case: Case, between: bool | None = None) -> tuple[tuple[int, float], ...]:
    """By number of ranks, the line rate in GB/s of what links the groups of the trace, where it is known; `between`
    keeps those over several hosts, or those within one."""
    found = {
        row["group_size"]: row["peak_gbps"]
        for row in case.report.get("bandwidth", ())
        if row["tool"] == "trace"
        and row["peak_gbps"] is not None
        and (between is None or between == (_BETWEEN in (row["link"] or "")))
    }
    return tuple(sorted(found.items()))


# What a change can save at most where no replay tells what it saves: all that its finding costs.

ALL_VANISHED = "if all of it vanished and nothing else changed"
AT_MOST = "if the change saved all that it can and nothing else changed"
EXPLAINED_FRAC = 0.01
"""Of the step: differences below are within what two runs differ by."""
CAUSES_NAMED = 2
_LATE = ("straggler", "slow_worker", "slow_stage")
"""Findings whose ranks are at fault: the others pay."""


def step_bound(report: Diagnosis, finding: FindingEntry, at_most: int | None = None) -> StepBound | None:
    """«The step», or the window without steps, less the largest over the ranks of what the finding costs there in a
    step (of a late rank the largest wait for it). Without its own work the host may also have no need to run ahead of
    its blocking calls. Without stalls a device computes as long as before; only of findings about its kernels the step
    may get shorter than that. No more than `at_most` ns, where given. None of what costs nothing, or is paid once."""
    step, ranks = report["step_time"], report["ranks"]
    before = step["median_ns"] if step else max((entry["window_ns"] for entry in ranks), default=0)
    share = _share(finding, ranks)
    if (finding["cost_ns_per_step"] is None and step) or not before or share <= 0:
        return None
    computes = max(
        (entry["breakdown_ns"]["compute"] / entry["window_ns"] for entry in ranks if entry["window_ns"]), default=0.0
    )
    if finding["code"] == "host_other":
        share += max(_cost(entry, "sync") / entry["window_ns"] for entry in ranks if entry["window_ns"])
    most = share if within_compute(finding["code"]) else min(share, 1 - computes)
    saved = round(most * before)
    gained = saved if at_most is None else min(saved, at_most)
    basis = ALL_VANISHED if gained == saved else AT_MOST
    return {"step_ns_before": before, "step_ns_low": before - gained, "basis": basis} if gained > 0 else None


def cost_ns(report: Diagnosis, finding: FindingEntry, before: int) -> int:
    """What a finding costs in a step of so many ns, the largest over the ranks."""
    return round(_share(finding, report["ranks"]) * before)


def explained(report: Diagnosis, finding: FindingEntry, outcome: Predicted) -> Predicted:
    """An outcome that promises no more than there is to gain: what its finding costs, or all that a rank does in a step
    beside computing, with what the replay saves of computing. These are means over steps, so that more is possible."""
    shares = [_beside_compute(entry) for entry in report["ranks"] if entry["window_ns"]]
    beside = round(max(shares, default=1.0) * outcome.before) + max(outcome.saved.get("compute", 0), 0)
    most = max(cost_ns(report, finding, outcome.before), beside)
    over = outcome.before - outcome.after - most
    if not outcome.saved or over <= EXPLAINED_FRAC * outcome.before:
        return outcome
    return replace(outcome, after=outcome.after + over, high=outcome.high + over)


def _beside_compute(entry: RankEntry) -> float:
    return 1 - entry["breakdown_ns"]["compute"] / entry["window_ns"]


def beyond(report: Diagnosis, finding: FindingEntry, outcome: Predicted) -> BeyondEntry | None:
    """What of a gain is more than its finding costs, and where that comes from: parts of the step that get shorter, and
    of the finding's own part the other causes."""
    cost = cost_ns(report, finding, outcome.before)
    rest = outcome.before - outcome.after - cost
    if not cost or rest <= EXPLAINED_FRAC * outcome.before:
        return None
    cause = _CAUSES.get(finding["code"])
    own = _part_of(report, cause)
    least = EXPLAINED_FRAC * outcome.before
    saved = {part: ns for part, ns in outcome.saved.items() if part != own and ns > least}
    others = (
        [
            (max(entry["stall_ns"][kind].get(code, 0) / entry["window_ns"] for entry in report["ranks"]), code)
            for kind in _KINDS
            if own is not None and PART_OF[kind] == own
            for code in {code for entry in report["ranks"] for code in entry["stall_ns"][kind]} - {cause}
        ]
        if all(entry["window_ns"] for entry in report["ranks"])
        else []
    )
    causes = [code for share, code in sorted(others, reverse=True) if share > EXPLAINED_FRAC]
    return {"ns": rest, "cost_ns": cost, "saved_ns": saved, "causes": causes[:CAUSES_NAMED]}


def _part_of(report: Diagnosis, cause: str | None) -> str | None:
    if cause == "allocator":
        return "idle"
    found = (kind for kind in _KINDS for entry in report["ranks"] if cause in entry["stall_ns"][kind])
    kind = next(found, None)
    return None if kind is None else PART_OF[kind]


_KINDS: tuple[Literal["cpu", "communication", "memory"], ...] = ("cpu", "communication", "memory")
PART_OF = {"cpu": "idle", "communication": "exposed_communication", "memory": "exposed_memory"}
"""The part of a breakdown that a class's stalls are in, but for the allocator's, which are idle time."""


def _share(finding: FindingEntry, ranks: list[RankEntry]) -> float:
    """Largest share of a rank's judged time that the finding costs it."""
    code = finding["code"]
    cause = "straggler" if code in _LATE else _CAUSES.get(code)
    shares = [_cost(entry, cause) / entry["window_ns"] for entry in ranks if entry["window_ns"] and cause]
    share = finding["share_frac"]
    if code not in _LATE and cause is None and finding["ranks"]:
        own = sum(entry["window_ns"] for entry in ranks if entry["rank"] in finding["ranks"])
        if finding["cost_ns"] and own:
            # Of those that lose it: the finding's share is theirs or all ranks', its cost may be of more steps.
            share = min(finding["cost_ns"], share * sum(entry["window_ns"] for entry in ranks)) / own
    return max([share, finding.get("worst_share_frac", 0.0), *shares])


def _cost(entry: RankEntry, cause: str | None) -> int:
    stalls = entry["stall_ns"]
    if cause == "unattributed":
        return stalls["unattributed"]
    return sum(stalls[part].get(cause or "", 0) for part in ("cpu", "communication", "memory"))


_CAUSES = {cause.finding_code: cause.code for cause in BY_CODE.values()}


MIN_GAIN_FRAC = 0.01
"""A gain below one percent of the step is within what two runs differ by: not worth a change."""
TIE_FRAC = MIN_GAIN_FRAC / 2
"""Of the step as it is: values of one knob that come closer to the best one are equally good."""
UNCERTAIN_GAIN_FRAC = 0.03
"""Gains from which a suggestion is worth knowing though its range holds no gain as well: as much as a finding of medium
severity costs."""


class Tries:
    """Estimates and predictions of one run."""

    def __init__(self, predict: Predict, estimate: Estimate | None = None) -> None:
        self._predict, self._estimate = predict, estimate
        self._predicted: dict[tuple[Change, ...], Predicted | Refused] = {}
        self._estimated: dict[tuple[Change, ...], int | Refused] = {}

    def predict(self, changes: Sequence[Change]) -> Predicted | Refused:
        """A prediction with its range."""
        key = tuple(changes)
        if key not in self._predicted:
            self._predicted[key] = self._predict(key)
        return self._predicted[key]

    def after(self, changes: Sequence[Change]) -> int | Refused:
        """The step alone, ns."""
        key = tuple(changes)
        if self._estimate is None or key in self._predicted:
            outcome = self.predict(key)
            return outcome if isinstance(outcome, Refused) else outcome.after
        if key not in self._estimated:
            self._estimated[key] = self._estimate(key)
        return self._estimated[key]

    def hopeless(self, proposal: Proposal, after: int) -> bool:
        """Whether the step that a proposal leads to is known, without its range, to be no gain."""
        before = self.after(()) if self._estimate is not None and proposal.gains_time else Refused("")
        return not isinstance(before, Refused) and after > before * (1 - MIN_GAIN_FRAC)

    def step(self, proposal: Proposal) -> int | Refused:
        """The step that a proposal alone leads to, ns."""
        if (known := proposal.known) is not None:
            return known if isinstance(known, Refused) else known.after
        return self.after(proposal.changes)

    def outcome(self, proposal: Proposal) -> Predicted | Refused:
        """What a proposal alone leads to, with its range."""
        return proposal.known or self.predict(proposal.changes)

    def if_unused(self, proposal: Proposal) -> Predicted | Refused:
        """The same where the host does not need what it reads."""
        return self.predict(proposal.if_unused)

    def together(self, proposals: Sequence[Proposal]) -> int | Refused:
        """The step that proposals made together lead to, ns."""
        return self.after(_changes(proposals))

    def predict_together(self, proposals: Sequence[Proposal]) -> Predicted | Refused:
        """The same with its range."""
        return self.predict(_changes(proposals))


def _changes(proposals: Sequence[Proposal]) -> list[Change]:
    return in_order(change for proposal in proposals for change in proposal.changes)


def is_gain(predicted: Predicted) -> bool:
    """Whether the step gets at least `MIN_GAIN_FRAC` shorter, and shorter for certain."""
    return predicted.after <= predicted.before * (1 - MIN_GAIN_FRAC) and predicted.high < predicted.before


def may_gain(predicted: Predicted) -> bool:
    """Whether the step is expected to get clearly shorter, though its range holds no gain as well."""
    return predicted.after <= predicted.before * (1 - UNCERTAIN_GAIN_FRAC) and not is_gain(predicted)

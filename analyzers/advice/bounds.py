"""What a change can save at most where no replay tells what it saves: all that its finding costs."""

from __future__ import annotations

from gpuscope.catalogue.cause_table import BY_CODE
from gpuscope.schema.document import Diagnosis, FindingEntry, RankEntry, StepBound

ALL_VANISHED = "if all of it vanished and nothing else changed"
_LATE = ("straggler", "slow_worker", "slow_stage")
"""Findings whose ranks are at fault: the others pay."""


def step_bound(report: Diagnosis, finding: FindingEntry) -> StepBound | None:
    """«The step», or the window without steps, less the largest over the ranks of what the finding costs there in a
    step (of a late rank the largest wait for it). Without stalls a device computes as long as before; only of findings
    about its kernels the step may get shorter than that. None of what costs nothing, or is paid once."""
    step, ranks = report["step_time"], report["ranks"]
    before = step["median_ns"] if step else max((entry["window_ns"] for entry in ranks), default=0)
    share = _share(finding, ranks)
    if (finding["cost_ns_per_step"] is None and step) or not before or share <= 0:
        return None
    computes = 0.0
    if finding["code"] not in of_kernels(report):
        computes = max((entry["breakdown_ns"]["compute"] / entry["window_ns"] for entry in ranks if entry["window_ns"]),
                       default=0.0)  # fmt: skip
    low = before - round(min(share, 1 - computes) * before)
    return {"step_ns_before": before, "step_ns_low": low, "basis": ALL_VANISHED} if low < before else None


def of_kernels(report: Diagnosis) -> set[str]:
    """Codes of findings about what kernels do, not about what the device waits for."""
    return {part["code"] for entry in report.get("compute", []) for part in entry["reducible"]}


def _share(finding: FindingEntry, ranks: list[RankEntry]) -> float:
    """Largest share of a rank's judged time that the finding costs it."""
    code = finding["code"]
    cause = "straggler" if code in _LATE else _CAUSES.get(code)
    shares = [_cost(entry, cause) / entry["window_ns"] for entry in ranks if entry["window_ns"] and cause]
    share = finding["share_frac"]
    if code not in _LATE and cause is None and finding["ranks"]:
        own = sum(entry["window_ns"] for entry in ranks if entry["rank"] in finding["ranks"])
        if finding["cost_ns"] and own:  # of those that lose it, whether the finding's share is theirs or all ranks'
            share = finding["cost_ns"] / own
    return max([share, *shares])


def _cost(entry: RankEntry, cause: str | None) -> int:
    stalls = entry["stall_ns"]
    if cause == "unattributed":
        return stalls["unattributed"]
    return sum(stalls[part].get(cause or "", 0) for part in ("cpu", "communication", "memory"))


_CAUSES = {cause.finding_code: cause.code for cause in BY_CODE.values()}

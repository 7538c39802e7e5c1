"""What bounds the run, how sure that is, and when the trace can't tell (definitions: «Verdict»)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from gpuscope.analyzers.frame.analyzer import Attributed
from gpuscope.analyzers.frame.causes import CLASS_OF, UNATTRIBUTED, UNTOLD_COMMUNICATION, VERDICT_SHARE
from gpuscope.report.schema.document import Class, ProblemEntry, Slowdown, Verdict
from gpuscope.report.view import units
from gpuscope.report.view.vocabulary import CLASSES, cause_label

LOST_WORK = 0.5
"""If lost kernels, as long as the recorded ones on average, could fill this share of the idle time, it may be none."""
MAX_CONFIDENCE = 0.95


@dataclass(frozen=True)
class Evidence:
    """What the verdict weighs, over all lanes."""

    window: int
    causes: Mapping[str, int]
    """ns by cause, all lanes."""
    idle: int
    ranks_present: int
    world_size: int | None
    launches: int
    kernels_lost: int
    events: int
    launch_missing: int
    events_lost: int
    steps: int
    assumed: Sequence[str]
    why_no_device: str
    """What the sources say of why no device event was recorded; empty where they don't."""
    hung: bool
    """Whether a hang was found: then the window holds the wait for it, not the steps of a run."""
    waits_matched: bool
    """Whether exposed communication was split by matching all ranks."""
    slowdown: Slowdown | None = None
    """What a what-if on the job's operations found; it knows no causes, so it makes no verdict."""
    contradiction: str = ""
    """What does not add up; empty where all does."""


def class_sums(causes: Mapping[str, int]) -> dict[Class, int]:
    """ns by class; unexplained exposed communication counts to its class, unexplained idle to none."""
    sums: dict[Class, int] = {"cpu": 0, "communication": 0, "memory": 0}
    for cause, spent in causes.items():
        if cause == UNTOLD_COMMUNICATION:
            sums["communication"] += spent
        elif cause != UNATTRIBUTED:
            sums[CLASS_OF[cause]] += spent
    return sums


def bound(causes: Mapping[str, int], window: int) -> tuple[Class, str | None, float]:
    """(class, its largest cause, its share): the class with the largest share if it holds 10 %."""
    sums = class_sums(causes)
    top = max(sums, key=lambda name: sums[name])
    share = sums[top] / window if window else 0.0
    if share < VERDICT_SHARE:
        return "compute", None, max(0.0, 1.0 - sum(causes.values()) / window) if window else 0.0
    own = {cause: ns for cause, ns in causes.items() if CLASS_OF.get(cause) == top}
    untold = causes.get(UNTOLD_COMMUNICATION, 0) if top == "communication" else 0
    cause = max(own, key=lambda name: own[name]) if own else None
    return top, cause if cause is not None and own[cause] >= untold else None, share


def decide(evidence: Evidence) -> Verdict:
    """The verdict, or an abstention that says what to record."""
    why = _cannot_tell(evidence)
    if why:
        return {
            "bound_by": None,
            "cause": None,
            "share_frac": 0.0,
            "confidence": 0.0,
            "abstained": True,
            "why": why + _besides(evidence.slowdown),
        }
    top, cause, share = bound(evidence.causes, evidence.window)
    return {
        "bound_by": top,
        "cause": cause,
        "share_frac": share,
        "confidence": round(_confidence(evidence, top, cause, share), 2),
        "abstained": False,
        "why": _why(evidence, top, cause, share),
    }


def _besides(slowdown: Slowdown | None) -> str:
    """What a what-if on operations found where there is no verdict."""
    if slowdown is None:
        return ""
    return f"; by its operations the step takes {slowdown['total']:.3f} times as long as without stragglers"


def _cannot_tell(evidence: Evidence) -> str:
    if evidence.contradiction:
        return f"the analysis contradicts itself, which is a bug of gpuscope: {evidence.contradiction}"
    if evidence.hung and evidence.events:
        return (
            "the job hung, so the window holds the wait for it: see the finding `hang`; --steps takes whole steps only"
        )
    if evidence.window <= 0 or not evidence.events:
        why = evidence.why_no_device or (
            "record the device too (ProfilerActivity.CUDA in torch.profiler, `nsys -t cuda`)"
        )
        return "no device events: " + why.removeprefix("no device events: ")
    unattributed = evidence.causes.get(UNATTRIBUTED, 0)
    sums = class_sums(evidence.causes)
    idle_dominates = evidence.idle >= max(VERDICT_SHARE * evidence.window, *sums.values())
    lost_work = evidence.kernels_lost * (evidence.window - evidence.idle) / evidence.events
    if idle_dominates and lost_work > LOST_WORK * evidence.idle:
        return (
            f"{evidence.kernels_lost} of {evidence.launches} kernel launches have no kernel in the trace, so idle time "
            "may be work that was not recorded: record fewer steps, or with larger profiler buffers"
        )
    if unattributed >= VERDICT_SHARE * evidence.window and unattributed > max(sums.values()):
        return (
            f"the device is idle {units.share(unattributed / evidence.window)} of the time and no host events are "
            "recorded that could explain it: record the host too (ProfilerActivity.CPU, `nsys -t cuda,nvtx,osrt`)"
        )
    top, _, _ = bound(evidence.causes, evidence.window)
    if top == "communication" and not evidence.waits_matched and _ranks_missing(evidence):
        of = f" of {evidence.world_size}" if evidence.world_size else ""
        are = "ranks are" if of or evidence.ranks_present > 1 else "rank is"
        return (
            f"exposed communication takes {units.share(sums['communication'] / evidence.window)}, but only "
            f"{evidence.ranks_present}{of} {are} here: a slow rank and a slow link look the same from one side. "
            "Record all ranks of a group"
        )
    return ""


def _ranks_missing(evidence: Evidence) -> bool:
    return evidence.world_size is None or evidence.ranks_present < evidence.world_size


def _confidence(evidence: Evidence, top: Class, cause: str | None, share: float) -> float:
    """A product of what speaks against the verdict; docs/definitions.md tells it in words.

    How clear the lead is (the runner-up class, or the 10 % line), and the shares of what is unexplained,
    lost, unlinked, assumed or missing.
    """
    sums = class_sums(evidence.causes)
    if top == "compute":
        lead = 1 - max(sums.values()) / (VERDICT_SHARE * evidence.window)
    else:
        runner_up = max((ns for name, ns in sums.items() if name != top), default=0)
        lead = min(1 - runner_up / sums[top], (share - VERDICT_SHARE) / VERDICT_SHARE + 0.1)
    confidence = 0.5 + 0.5 * min(max(lead, 0.0), 1.0)
    not_compute = sum(evidence.causes.values())
    untold = evidence.causes.get(UNATTRIBUTED, 0) + evidence.causes.get(UNTOLD_COMMUNICATION, 0)
    confidence *= 1 - untold / max(not_compute, evidence.window // 10, 1)
    confidence *= 1 - evidence.kernels_lost / max(evidence.launches, evidence.kernels_lost, 1)
    confidence *= evidence.events / (evidence.events + evidence.events_lost)
    if top == "cpu":
        confidence *= 1 - 0.5 * evidence.launch_missing / evidence.events
    if cause in evidence.assumed:
        confidence *= 0.7
    if _ranks_missing(evidence) and evidence.world_size is not None:
        confidence *= 0.9
    if top == "communication" and evidence.world_size is None:
        confidence *= 0.8
    if evidence.steps < 2:
        confidence *= 0.9
    return min(max(confidence, 0.05), MAX_CONFIDENCE)


def _why(evidence: Evidence, top: Class, cause: str | None, share: float) -> str:
    if top == "compute":
        sums = class_sums(evidence.causes)
        worst = max(sums, key=lambda name: sums[name])
        return (
            f"the device computes {units.share(share)} of the time and no class of stalls reaches "
            f"{units.share(VERDICT_SHARE)} ({worst}: {units.share(sums[worst] / evidence.window)})"
        )
    if cause is None:
        return f"{units.share(share)} of the time is exposed communication whose cause the trace can't tell"
    spent = evidence.causes[cause]
    return (
        f"{CLASSES[top]} stalls take {units.share(share)} of the time, "
        f"{cause_label(cause)} {units.share(spent / evidence.window)}"
    )


def count_problem(problems: Sequence[ProblemEntry], *codes: str) -> int:
    """Occurrences of the problems with those codes."""
    return sum(problem["count"] for problem in problems if problem["code"] in codes)


def totals(found: Sequence[Mapping[str, Attributed]]) -> dict[str, int]:
    """ns by cause over several lanes."""
    sums: dict[str, int] = {}
    for causes in found:
        for cause, attributed in causes.items():
            sums[cause] = sums.get(cause, 0) + attributed.total
    return sums

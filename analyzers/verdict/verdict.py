"""What bounds the run, how sure that is, and when the trace can't show it (definitions: «Verdict»)."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import field
from math import floor, prod

from gpuscope.analyzers.base.analyzer import Attributed
from gpuscope.analyzers.verdict.cause_findings import Unexplained
from gpuscope.catalogue.cause import UNATTRIBUTED, UNDIVIDED_COMMUNICATION
from gpuscope.catalogue.suggestion import BY_CODE, cause_label, class_of
from gpuscope.problems.problem import ProblemKind
from gpuscope.schema.document import AbstainReason, Class, ProblemEntry, Slowdown, Verdict
from gpuscope.when_used import dataclass
from gpuscope.words import units
from gpuscope.words.vocabulary import CLASSES, VERDICT_SHARE

LOST_WORK = 0.5
"""If lost kernels of average length could fill this share of the idle time, the device may not have been idle."""
MAX_CONFIDENCE = 0.95
WHOLE_WINDOW = 0.8
"""Confidence that remains where the whole window is judged, warm-up and all."""
TOLD = 0.9
"""A doubt that leaves no more than this of the confidence is told as a limit of the verdict."""
ESTIMATED_SIZES = 0.9
"""Confidence that remains in latency or bandwidth where the sizes that tell them apart are estimated."""
TOTALS_DIFFER = 0.5
"""Confidence that remains where a file's own totals contradict what was read of it."""
UNKNOWN_KERNELS = 0.6
"""Confidence that remains where kernels that may communicate are counted as compute."""
CORES_HELD = 0.7
"""Confidence that remains where most of the waiting may be for cores that other processes held."""
THINNED = 0.8
"""Confidence that remains where events were dropped, but not enough to change the class."""
OVERRUNS = 0.9
"""Confidence that remains where ends of device events can't be right and were cut: the rest came from that recorder."""
DROPPED = 0.5
"""Share of a recording's events that, left out, leaves nothing to judge."""
DROPPED_DEVICE = 0.01
"""… where no event of a device is left: those may be what had to be left out."""
ASSUMED_WORLD = 0.9
"""What an assumed world takes off the confidence: as much as ranks that are known to be missing."""


WHOLE = "keep every event (activities=[CPU, CUDA], the file unfiltered; nsys: --trace=cuda,nvtx)"
"""How a recording is whole."""
LITTLE_WORK = 10_000
"""ns of device work in all that is judged under which nothing can be said of it (definitions: «Verdict»)."""


@dataclass(frozen=True)
class Evidence:
    """What the verdict weighs, over all lanes."""

    window: int
    causes: Mapping[str, int]
    """ns by cause, all lanes."""
    idle: int
    ranks: Sequence[int]
    """Ranks whose traces are here."""
    world_size: int | None
    launches: int
    kernels_lost: int
    events: int
    launch_missing: int
    events_lost: int
    why_whole: str
    """Why the whole window is judged, not the steady state; empty where that is."""
    thinned: str
    """Evidence that events were dropped from the recording; empty where there is none."""
    assumed: Sequence[str]
    why_no_device: str
    """What the sources say of why no device event was recorded; empty where they don't."""
    hung: bool
    """Whether a hang was found: then the window holds the wait for it, not the steps of a run."""
    killed: Collection[int] = ()
    """Ranks that were killed, and left no trace."""
    slowdown: Slowdown | None = None
    """What a what-if on the job's operations found; it makes the verdict where nothing but operations is known."""
    bubble: float | None = None
    """Share of the stages' time in which they compute nothing, where timers hold computations alone."""
    world_assumed: bool = False
    """Whether the ranks in the files are only assumed to be the whole job."""
    sizes_estimated: bool = False
    """Whether message sizes are estimated, not recorded."""
    waits_without_core: float = 0.0
    """Share of the waiting for late ranks that others' threads may have caused by holding the cores."""
    contradiction: str = ""
    """What does not add up; empty where all does."""
    timelines_cut: int = 0
    """Recordings that are cut off: what they seem to lack may be in the part that is missing."""
    totals_differ: bool = False
    """Whether a file's own totals contradict what was read of it."""
    members_unknown: bool = False
    """Whether it is not recorded which ranks belong to the groups of the collectives."""
    peers_unknown: bool = False
    """Whether it is not recorded which ranks sends and receives go between."""
    by_host: bool = False
    """Whether hosts alone communicate, by gloo or MPI, whose ranges hold the sizes."""
    unknown_communication: bool = False
    """Whether kernels that behave like communication are counted as compute."""
    worked: int | None = None
    """ns in which a device worked in what is judged; None of runs without a device."""
    copies_alone: bool = False
    """Whether devices only copied and filled memory, in less time than they were idle: no kernel was held up."""
    unjudged: Sequence[int] = ()
    """Ranks that are here without a step of those that are judged: cut off early, say."""
    unexplained: Unexplained = field(default_factory=Unexplained)
    totals_contradict: str = ""
    """How the file's own totals differ from its events as read, where by a tenth of the recording; else empty."""
    nothing_delivered: str = ""
    """That launches were recorded without one of their kernels; empty where that is not so."""
    stands: bool = False
    """Whether the class of a thinned recording stands whatever was dropped: only the causes of idle time are open."""
    exposed: int = 0
    """ns of exposed communication, all lanes."""
    overruns: int = 0
    """Device events that were recorded to run on after their successor on the stream had ended."""
    dropped: int = 0
    """Events that were left out because their times are impossible or unreadable."""
    why_dropped: str = ""
    recorded: int = 0
    """Events in the files, those left out among them."""

    @property
    def cores_held(self) -> bool:
        """Whether most of the waiting for late ranks may be for cores that others held."""
        return self.waits_without_core >= LOST_WORK


def class_sums(causes: Mapping[str, int]) -> dict[Class, int]:
    """ns by class; unexplained exposed communication counts to its class, unexplained idle to none."""
    sums: dict[Class, int] = {"cpu": 0, "communication": 0, "memory": 0}
    for cause, spent in causes.items():
        class_name = class_of(cause)
        if class_name is not None:
            sums[class_name] += spent
    return sums


def bound(causes: Mapping[str, int], window: int) -> tuple[Class, str | None, float]:
    """(class, its largest cause, its share): the class with the largest share if it holds 10 %."""
    sums = class_sums(causes)
    top = max(sums, key=lambda name: sums[name])
    share = sums[top] / window if window else 0.0
    if share < VERDICT_SHARE:
        return "compute", None, max(0.0, 1.0 - sum(causes.values()) / window) if window else 0.0
    own = {cause: ns for cause, ns in causes.items() if class_of(cause) == top and cause != UNDIVIDED_COMMUNICATION}
    unknown = causes.get(UNDIVIDED_COMMUNICATION, 0) if top == "communication" else 0
    cause = max(own, key=lambda name: own[name]) if own else None
    return top, cause if cause is not None and own[cause] >= unknown else None, share


def class_stands(causes: Mapping[str, int], window: int, left: Mapping[str, int], lost: int | None, idle: int) -> bool:
    """Whether the class stays what it is, however long kernels ran that the recording lacks.

    `lost` is how long they may have run, ns, None where that is not known: then it stays where the device idles
    (`idle`) for less than what makes a class. `left` is the idle time and the exposed communication, ns by part, that
    they may have run in; `causes` are all, as they were attributed.
    """
    if lost is None:
        return idle < VERDICT_SHARE * window
    top, _, _ = bound(causes, window)
    for parts in (("idle",), ("exposed_communication",), ("idle", "exposed_communication")):
        fewer = dict(causes)
        for part in parts:
            taken = min(left.get(part, 0), lost)
            own = [cause for cause in causes if BY_CODE[cause].part == part]
            for cause in sorted(own, key=lambda cause: class_of(cause) != top):  # where it hurts the class most
                fewer[cause] -= min(fewer[cause], taken)
                taken -= causes[cause] - fewer[cause]
        if bound(fewer, window)[0] != top:
            return False
    return True


def decide(evidence: Evidence) -> Verdict:
    """The verdict, or an abstention that says what to record."""
    if not evidence.events and evidence.slowdown is not None and not evidence.contradiction:
        return _by_operations(evidence.slowdown, evidence.bubble)
    if (found := _why_abstain(evidence)) is not None:
        reason, why, record = found
        besides = _besides(evidence.slowdown)
        said = f"{why}: {record}" if record else why
        abstained = _verdict(None, None, 0.0, 0.0, said + besides, reason=reason, record=record)
        abstained["reason"] = why + besides
        return abstained
    top, cause, share = bound(evidence.causes, evidence.window)
    if cause == "straggler" and evidence.cores_held:
        cause = _with_cores(evidence, top)
    if evidence.thinned and cause is not None and BY_CODE[cause].part == "idle":
        cause = None
    cause_abstained = cause is None and (top == "communication" or (top != "compute" and evidence.thinned != ""))
    doubts = _doubts(evidence, top, cause, share)
    confidence = _confidence(doubts)
    why = _why(evidence, top, cause, share) + _world_taken(evidence)
    if evidence.why_whole:
        why += f"; {evidence.why_whole}"
    by_weight = sorted(doubts, key=lambda doubt: (not doubt.of_loss, doubt.factor))  # what was dropped comes first
    limits = [doubt.why for doubt in by_weight if doubt.factor <= TOLD]
    record = "" if not cause_abstained else _what_to_add(evidence) if top == "communication" else WHOLE
    return _verdict(top, cause, share, confidence, why, limits=limits, record=record)


def _with_cores(evidence: Evidence, top: Class) -> str | None:
    """The cause of the class if its ranks had not waited for each other as long as for cores; None where the class
    would not bound the run then."""
    waiting = round(evidence.causes["straggler"] * (1 - evidence.waits_without_core))
    bound_by, cause, _ = bound({**evidence.causes, "straggler": waiting}, evidence.window)
    return cause if bound_by == top else None


def _verdict(
    bound_by: Class | None,
    cause: str | None,
    share: float,
    confidence: float,
    why: str,
    *,
    limits: Sequence[str] = (),
    reason: AbstainReason | None = None,
    record: str = "",
) -> Verdict:
    """`reason` is of a verdict that abstains, `record` what would settle it, or its cause."""
    return {
        "bound_by": bound_by,
        "cause": cause,
        "share_frac": share,
        "confidence": confidence,
        "abstained": reason is not None,
        "cause_abstained": bound_by is not None and bool(record),
        "why": why,
        "limits": list(limits),
        "abstain_reason": reason,
        "record": record,
    }


SLOWED = 1.1
"""A job known by its operations alone is bound by its stragglers from this slowdown on."""


def _by_operations(slowdown: Slowdown, bubble: float | None) -> Verdict:
    """The verdict on a job known by its operations alone: its slowdown against a run without stragglers, else the
    pipeline's bubble where what is no computation is one."""
    total = slowdown["total"]
    share = 1 - 1 / total if total > 1 else 0.0
    if total >= SLOWED:
        why = f"by its operations the step takes {total:.3f} times as long as without stragglers"
        return _verdict("communication", "straggler", share, OPERATIONS_CONFIDENCE, why)
    if bubble is not None and bubble >= VERDICT_SHARE:
        why = (
            f"stages compute in {units.share(1 - bubble)} of the pipeline's time; stragglers make it {total:.3f} times"
        )
        return _verdict("communication", "pipeline_bubble", bubble, OPERATIONS_CONFIDENCE, f"{why} as long")
    why = f"by its operations the step takes no more than {total:.3f} times as long as without stragglers"
    return _verdict("compute", None, 1 - share, OPERATIONS_CONFIDENCE, why)


OPERATIONS_CONFIDENCE = 0.8
"""The operations are exact; what waits for what is inferred from their pattern."""


def _besides(slowdown: Slowdown | None) -> str:
    """What a what-if on operations found where there is no verdict."""
    if slowdown is None:
        return ""
    return (
        f"; by its operations the step takes {slowdown['total']:.3f} times as long as with every operation at the mean "
        "of its peers"
    )


def _why_abstain(evidence: Evidence) -> tuple[AbstainReason, str, str] | None:
    """Why there is no verdict, in code and words, and, where it stands apart, what to record; None where there is
    one."""
    if evidence.contradiction:
        why = f"the analysis contradicts itself, which is a bug of gpuscope: {evidence.contradiction}"
        return "contradiction", why, ""
    if evidence.hung and evidence.events:
        why = (
            "the job hung, so the window holds the wait for it: see the finding `hang`; --steps takes whole steps only"
        )
        return "hung", why, ""
    cut = "the file is" if evidence.timelines_cut == 1 else f"{evidence.timelines_cut} files are"
    again = "copy the whole file again, or record again and let the profiler finish"
    if evidence.dropped > (DROPPED if evidence.events else DROPPED_DEVICE) * evidence.recorded:
        left_out = (
            f"{units.count(evidence.dropped)} of {units.plural(max(evidence.recorded, evidence.dropped), 'event')}"
        )
        why = f"{left_out} had to be left out ({evidence.why_dropped})"
        return "events_dropped", why, "export the trace again, and change no times in it (ts and dur are in µs)"
    if not evidence.events and evidence.timelines_cut:
        lacks = "and what is left holds no device events; they may be in the missing part"
        return "cut_off", f"{cut} cut off, {lacks}", again
    if evidence.window <= 0 or not evidence.events:
        if evidence.nothing_delivered:
            return "kernels_lost", evidence.nothing_delivered, evidence.why_no_device
        record = "record the device too (ProfilerActivity.CUDA in torch.profiler, `nsys -t cuda`)"
        return "no_device_events", "no device events", evidence.why_no_device or record
    if evidence.totals_contradict:
        record = "go by the file's own totals; if the events themselves are right, please report the trace"
        return "totals_contradict", evidence.totals_contradict, record
    if evidence.worked is not None and (evidence.worked < LITTLE_WORK or evidence.copies_alone):
        done = f"{units.plural(evidence.events, 'operation')}, {units.duration(evidence.worked)} together"
        why = f"the device's work in all that is judged is {done}{', no kernel' if evidence.copies_alone else ''}"
        return "little_work", why, "record several whole steps"
    if evidence.thinned and not evidence.stands:
        why = (
            f"{evidence.thinned}, as if the recording were sampled or filtered; shares are of the events that are left"
        )
        return "thinned", why, WHOLE
    unattributed = evidence.causes.get(UNATTRIBUTED, 0)
    sums = class_sums(evidence.causes)
    idle_dominates = evidence.idle >= max(VERDICT_SHARE * evidence.window, *sums.values())
    lost_work = evidence.kernels_lost * (evidence.window - evidence.idle) / evidence.events
    left = {"idle": evidence.idle, "exposed_communication": evidence.exposed}
    may_change = not class_stands(evidence.causes, evidence.window, left, round(lost_work), evidence.idle)
    if idle_dominates and lost_work > LOST_WORK * evidence.idle and may_change:
        why = (
            f"{evidence.kernels_lost} of {evidence.launches} kernel launches have no kernel in the trace, so idle time "
            "may be work that was not recorded"
        )
        return "kernels_lost", why, "record fewer steps, or with larger profiler buffers"
    if idle_dominates and evidence.timelines_cut:
        why = f"{cut} cut off, so where the device seems idle, its work may be in the missing part"
        return "cut_off", why, again
    if unattributed >= VERDICT_SHARE * evidence.window and unattributed > max(sums.values()):
        return _idle_unexplained(evidence, unattributed)
    return None


def _idle_unexplained(evidence: Evidence, unattributed: int) -> tuple[AbstainReason, str, str]:
    """Why idle time has no cause, by what is recorded in it."""
    idle = f"the device is idle {units.share(unattributed / evidence.window)} of the time"
    known = evidence.unexplained
    if not known.host_recorded:
        why = f"{idle} and no host events are recorded that could explain it"
        return "no_host_events", why, "record the host too (ProfilerActivity.CPU, `nsys -t cuda,nvtx,osrt`)"
    if known.call is not None:
        covers = f"{known.call} covers {units.duration(known.covered)} of it"
        why = f"{idle}: {covers}, but what that waits for is not recorded"
    else:
        why = f"{idle}, no call is recorded in it, and none launched what ends it"
    by_torch = "" if known.stacks else "torch.profiler with_stack=True, "
    record = f"record what the host does there ({by_torch}`nsys -t cuda,nvtx,osrt -s process-tree`)"
    return "idle_unexplained", why, record


def _ranks_missing(evidence: Evidence) -> bool:
    return evidence.world_size is None or len(evidence.ranks) < evidence.world_size


@dataclass(frozen=True)
class Doubt:
    """One thing that makes the verdict less certain: what it leaves of the confidence, and why."""

    factor: float
    why: str
    of_loss: bool = False
    """Whether it is of what the recording held and could not be read: it always shows, however little that is."""


def _confidence(doubts: Sequence[Doubt]) -> float:
    """The doubts' product: at most `MAX_CONFIDENCE`, less than that where anything was lost."""
    whole = min(prod(doubt.factor for doubt in doubts if not doubt.of_loss), MAX_CONFIDENCE)
    left = whole * prod(doubt.factor for doubt in doubts if doubt.of_loss)
    return max(round(left, 2) if left == whole else floor(100 * left) / 100, 0.05)


def _doubts(evidence: Evidence, top: Class, cause: str | None, share: float) -> list[Doubt]:
    """The doubts about the verdict, whose product is its confidence; docs/definitions.md explains it.

    How clear the lead is (the runner-up class, or the 10 % line), and the shares of what is unexplained,
    lost, unlinked, assumed or missing.
    """
    doubts = [_lead(evidence, top, share), *_of_recording(evidence, top)]
    unknown = evidence.causes.get(UNATTRIBUTED, 0)
    if cause is not None:  # where the cause is left open, an unknown one lowers nothing
        unknown += evidence.causes.get(UNDIVIDED_COMMUNICATION, 0)
    not_compute = max(sum(evidence.causes.values()), evidence.window // 10, 1)
    doubts.append(
        Doubt(1 - unknown / not_compute, f"{units.share(unknown / evidence.window)} of the time has no known cause")
    )
    if cause is not None and cause in evidence.assumed:
        doubts.append(Doubt(0.7, f"{cause_label(cause)} is inferred from assumed link speeds"))
    if cause in ("latency", "bandwidth") and evidence.sizes_estimated:
        doubts.append(Doubt(ESTIMATED_SIZES, "the sizes of messages are estimated, not recorded"))
    if top == "communication" and evidence.cores_held:
        explained = f"for long enough to explain {units.share(evidence.waits_without_core)} of the waiting"
        doubts.append(Doubt(CORES_HELD, f"training threads had no core {explained}"))
    world = evidence.world_size
    if world is not None and len(evidence.ranks) < world:
        present = len(evidence.ranks)
        doubts.append(Doubt(0.9, f"only {present} of {world} ranks {units.be(evidence.ranks)} in these files"))
    if evidence.world_assumed:
        said = f"the {len(evidence.ranks)} ranks in these files are assumed to be the whole job"
        doubts.append(Doubt(ASSUMED_WORLD, said))
    if top == "communication" and world is None:
        doubts.append(Doubt(0.8, "how many ranks the job has is not recorded"))
    if evidence.why_whole:
        doubts.append(Doubt(WHOLE_WINDOW, evidence.why_whole))
    if evidence.unknown_communication:
        doubts.append(Doubt(UNKNOWN_KERNELS, "kernels that behave like communication are counted as compute"))
    return doubts


def _lead(evidence: Evidence, top: Class, share: float) -> Doubt:
    """How far the next class, or the 10 % line, is from changing the verdict."""
    sums = class_sums(evidence.causes)
    others: dict[Class, int] = {name: ns for name, ns in sums.items() if name != top}
    next_one = max(others, key=lambda name: others[name])
    taken = units.share(others[next_one] / evidence.window)
    line = units.whole_share(VERDICT_SHARE)
    if top == "compute":
        lead = 1 - max(sums.values()) / (VERDICT_SHARE * evidence.window)
        why = f"{CLASSES[next_one]} stalls take {taken}; from {line} on it is {CLASSES[next_one]}-bound"
    else:
        to_runner_up = 1 - others[next_one] / sums[top]
        to_line = (share - VERDICT_SHARE) / VERDICT_SHARE + 0.1
        lead = min(to_runner_up, to_line)
        why = (
            f"{CLASSES[next_one]} stalls also take {taken}"
            if to_runner_up <= to_line
            else f"{CLASSES[top]} stalls take {units.share(share)}; below {line} it is compute-bound"
        )
    return Doubt(0.5 + 0.5 * min(max(lead, 0.0), 1.0), why)


def _of_recording(evidence: Evidence, top: Class) -> list[Doubt]:
    """Records that were lost, or lack their other half."""
    launches = max(evidence.launches, evidence.kernels_lost, 1)
    unlinked = evidence.launch_missing / evidence.events
    doubts = [
        Doubt(
            1 - evidence.kernels_lost / launches,
            f"the kernels of {evidence.kernels_lost} of {launches} launches are not recorded",
        ),
        Doubt(
            evidence.events / (evidence.events + evidence.events_lost),
            f"{units.plural(evidence.events_lost, 'event')} could not be read",
            of_loss=True,
        ),
    ]
    if evidence.overruns:
        late = f"{units.plural(evidence.overruns, 'device event')} of {evidence.events:,} can't have ended as recorded"
        factor = OVERRUNS * evidence.events / (evidence.events + evidence.overruns)
        doubts.append(Doubt(factor, f"{late}, after the next one on the stream: cut where that begins", of_loss=True))
    if evidence.thinned:
        doubts.append(Doubt(THINNED, f"{evidence.thinned}: why the device idles is left open"))
    if evidence.totals_differ:
        doubts.append(Doubt(TOTALS_DIFFER, "the trace's own totals differ from those of the events as read"))
    if top == "cpu":
        doubts.append(
            Doubt(1 - 0.5 * unlinked, f"the launches of {units.share(unlinked)} of the device events are not recorded")
        )
    return doubts


def _world_taken(evidence: Evidence) -> str:
    if not evidence.world_assumed:
        return ""
    return f"; the {len(evidence.ranks)} ranks in these files are assumed to be the whole job"


def _why(evidence: Evidence, top: Class, cause: str | None, share: float) -> str:
    if top == "compute":
        sums = class_sums(evidence.causes)
        worst = max(sums, key=lambda name: sums[name])
        return (
            f"the device computes {units.share(share)} of the time and no class of stalls reaches "
            f"{units.share(VERDICT_SHARE)} ({worst}: {units.share(sums[worst] / evidence.window)})"
        )
    if cause is None and top != "communication":
        return (
            f"{CLASSES[top]} stalls take {units.share(share)} of the time; through what is left open, since "
            f"{evidence.thinned}: {WHOLE}"
        )
    if cause is None and evidence.cores_held:
        return (
            f"{CLASSES[top]} stalls take {units.share(share)} of the time; the ranks wait for each other, but their "
            "training threads had no core for long enough to explain "
            f"{units.share(evidence.waits_without_core)} of that: {_what_to_add(evidence)}"
        )
    if cause is None:
        return (
            f"{units.share(share)} of the time is exposed communication; whether ranks wait or transfer is unknown: "
            + _what_to_add(evidence)
            + ("; how many there are is not recorded" if _world_unknown(evidence) else "")
        )
    spent = evidence.causes[cause]
    return (
        f"{CLASSES[top]} stalls take {units.share(share)} of the time, "
        f"{cause_label(cause)} {units.share(spent / evidence.window)}"
    )


def _world_unknown(evidence: Evidence) -> bool:
    """Whether nothing tells how many ranks there are, and more than which form a group is missing."""
    return evidence.world_size is None and not (evidence.members_unknown and len(evidence.ranks) > 1)


def _what_to_add(evidence: Evidence) -> str:
    """What would distinguish a slow rank from a slow link."""
    if evidence.cores_held:
        return "record where nothing else runs, or with cores of its own for each rank"
    if evidence.unjudged:
        ranks = f"{'rank' if len(evidence.unjudged) == 1 else 'ranks'} {units.ranks(evidence.unjudged)}"
        return f"record more steps: the files of {ranks} hold none of those that are judged"
    if not _ranks_missing(evidence):
        if evidence.by_host and evidence.peers_unknown:
            return "record with gpuscope record, which notes the other end of each send and receive (gloo does not)"
        if evidence.by_host:
            return "record with gpuscope record, which notes when each operation is done (gloo: when it is waited for)"
        return "record the sizes of collectives (NCCL's own arguments in torch.profiler, NVTX payloads in nsys)"
    if evidence.world_size is None:
        if _world_unknown(evidence):
            return "add the traces of all ranks"
        return "record which ranks form each group (distributedInfo, communicators): no file at hand says"
    missing = sorted(set(range(evidence.world_size)) - set(evidence.ranks))
    if evidence.killed and set(missing) <= set(evidence.killed):
        return f"record steps before {units.rank_words(missing)} {units.be(missing)} killed: --always, or --on-demand"
    return f"add the traces of {units.rank_words(missing)}"


def count_problem(problems: Sequence[ProblemEntry], kind: ProblemKind) -> int:
    """Occurrences of the problems of a kind."""
    return sum(problem["count"] for problem in problems if problem["code"] == kind.code)


def totals(found: Sequence[Mapping[str, Attributed]]) -> dict[str, int]:
    """ns by cause over several lanes."""
    sums: dict[str, int] = {}
    for causes in found:
        for cause, attributed in causes.items():
            sums[cause] = sums.get(cause, 0) + attributed.total
    return sums

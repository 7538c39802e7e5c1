"""A rank that all others wait for: what to do depends on why it is late."""

from __future__ import annotations

from collections.abc import Iterator

from gpuscope.analyzers.advice.rule import Case, Proposal, Rule, config, on_cpu, python
from gpuscope.analyzers.advice.settings import torch_settings
from gpuscope.analyzers.what_if_changes import Predicted, Refused, ReplacedRank, SharedWork
from gpuscope.catalogue.straggler_sentences import ranks_of, shared_words
from gpuscope.catalogue.suggestion import OfRank, Suggestion
from gpuscope.schema.document import FindingEntry, Setting, StragglerEntry
from gpuscope.trace.frameworks import WRAPPERS
from gpuscope.trace.kinds import POINT_TO_POINT
from gpuscope.when_used import TypedDict, dataclass
from gpuscope.words import units


@dataclass(frozen=True)
class SlowDevice(OfRank):
    """A device that computes more slowly than its peers."""

    code = "slow_rank"
    answers = ("straggler", "slow_worker")
    sets = "the node of a slow device checked, drained or replaced"
    action = "Check the device of {who}, and drain or replace the node"
    why = "{cost}{shown}; as fast as the others are, the step is shorter"
    risk = (
        "none for training; if another job on the same host takes power or bandwidth, moving the rank to another host "
        "helps as much"
    )
    verify = "{tool} on its host; swap two hosts and see whether {subject} still comes late"

    reason: str
    """What the trace shows; empty where it shows nothing."""
    rocm: bool

    @property
    def shown(self) -> str:
        return f"; {self.reason}" if self.reason else ""

    @property
    def tool(self) -> str:
        return "`rocm-smi --showclocks --showthrottle`" if self.rocm else "`nvidia-smi -q -d CLOCK,PERFORMANCE,ECC`"


@dataclass(frozen=True)
class LateForUnknownReason(OfRank):
    """Nothing to replace before the reason is known; what it costs is known."""

    code = "slow_rank"
    answers = ("straggler",)
    sets = SlowDevice.sets
    action = "Find out why {who} comes late before replacing anything"
    why = "{cost}; {reason}; as fast as the others are, the step is shorter, whatever the reason"
    risk = "where it has more data than the others, sharing that gains less than replacing its device would"
    verify = "stragglers[].reason of {subject} is not null"

    reason: str


@dataclass(frozen=True)
class EvenData(OfRank):
    """A rank that has more data."""

    code = "even_data"
    answers = ("straggler",)
    sets = "a sampler by length, packed sequences: where the late rank has more data"
    action = "Give every rank equal work ({who} {have} more)"
    why = "{cost}; {reason}"
    risk = "the order of the samples changes; padding to one length would make every rank as slow as the late one"
    verify = "record again: the input shapes of {subject} are those of the others"

    reason: str

    @property
    def have(self) -> str:
        return "have" if self.ranks else "has"


@dataclass(frozen=True)
class EvenBatches(Suggestion):
    """Ranks that take turns being late."""

    code = "even_data"
    answers = ("straggler",)
    sets = EvenData.sets
    action = "Give every rank equal work in each step: ranks take turns being late"
    why = (
        "{cost}; none is late more often than by chance, as with batches of unlike length; the gain is that of steps "
        "in which all compute the mean"
    )
    risk = (
        "the order of the samples changes; where clocks or other jobs make the ranks late, it gains nothing: compare "
        "the input shapes of a late step (record_shapes=True)"
    )
    verify = "record again: the ranks' compute in a step differs less, and the waiting falls"


@dataclass(frozen=True)
class OwnWork(OfRank):
    """What no other rank runs at all, and outside the model's passes, is code of this rank: within them the same code
    may choose another operator for other data."""

    code = "own_work"
    answers = ("straggler",)
    sets = "code that the late rank alone runs: removed, less often, or shared by all"
    action = "Remove the {operation} that only {who} {run} {phase}, or share it"
    why = "{cost}; {reason}"
    risk = "the result may be needed (metrics, checks): then compute it less often, or give each rank a part of it"
    verify = "record again with with_stack=True to see what calls it; after the change it no longer runs on {subject}"

    reason: str
    operation: str
    phase: str
    """When, such as `before forward`."""

    @property
    def run(self) -> str:
        return "run" if self.ranks else "runs"


@dataclass(frozen=True)
class LateHost(OfRank):
    """A host that delays its rank."""

    code = "late_host"
    answers = ("straggler",)
    sets = "the late rank's own cpu cause, on that rank"
    action = "{answer} on {who}"
    why = "{cost}; {reason}"
    risk = "none for the other ranks"
    verify = "record again: `{cause}` takes no longer on {subject} than on the others"

    reason: str
    cause: str

    @property
    def of_cause(self) -> str:
        return self.cause

    @property
    def answer(self) -> str:
        return _HOST.get(self.cause, _HOST["host_other"])[0]


@dataclass(frozen=True)
class WorkOutsidePipeline(OfRank):
    """What a rank of a pipeline does besides its stage."""

    code = "outside_work"
    answers = ("work_outside_pipeline",)
    sets = "what one rank of a pipeline does besides its stage"
    action = "Remove the work that rank {rank} does outside the pipeline, or run it in another thread"
    why = "{cost}; every stage waits for it"
    risk = "if that work is needed in every step, another rank or thread has to do it"
    verify = "record again: rank {rank} works no longer outside forward and backward than the other ranks"


def propose(case: Case, finding: FindingEntry) -> Iterator[Proposal]:
    """The late ranks, one or one group at a time, the costliest first, each by the reason that the trace shows.

    A rank that is late no more often than by chance is not to blame, however long the others waited; where several take
    turns on devices, one whose host is seen to be slower than the others' may be. Where training
    threads had no core to run on, the pace of a rank tells nothing: only more data, or a host that is late, does.
    """
    late = {entry["rank"]: entry for entry in case.report["stragglers"]}
    held = case.finding("waits_for_core") is not None
    if finding["code"] == "work_outside_pipeline":
        for rank in finding["ranks"]:
            setting = config(f"work of rank {rank} outside forward and backward", "as on the other ranks")
            seen = any(row["op"] in POINT_TO_POINT for row in case.report["collectives"])
            yield Proposal(
                finding,
                WorkOutsidePipeline(rank),
                setting,
                (ReplacedRank(rank),),
                None if seen else Refused(_NO_MESSAGES),
            )
    elif finding["code"] != "straggler":
        for rank in () if held else finding["ranks"]:
            yield _slow_device(case, finding, rank, late.get(rank))
    else:
        again = [rank for rank in finding["ranks"] if rank in late and late[rank]["recurrent"]]
        in_turns = len(finding["ranks"]) > 1 and not again
        slower = [rank for rank in finding["ranks"] if rank in late and late[rank]["reason"] == "device"]
        # On the same shapes: none is late each time, as they hide each other. Ranks that share cores do so anyway.
        if in_turns and slower and not (held or on_cpu(case)):
            yield _slow_device(case, finding, slower[0], late[slower[0]], tuple(slower))
        alike = any(entry["reason"] == "device" for entry in late.values())
        if in_turns and _own_batches(case) and not (held or alike or "pipeline" in case.report):
            yield Proposal(
                finding, EvenBatches(), _SAMPLER, (SharedWork(),), Refused(_SHARED_CORES) if on_cpu(case) else None
            )
            hosts = [late[rank] for rank in finding["ranks"] if rank in late and late[rank]["reason"] == "host"]
            if hosts and not on_cpu(case):
                yield _by_reason(case, finding, max(hosts, key=lambda one: one["caused_wait_ns"]))
        blamed = [late[rank] for rank in finding["ranks"] if rank in late and _to_blame(case, late[rank])]
        excused = ("cores", "device", None) if held else ("cores",)
        done: set[int] = set()
        for entry in sorted(blamed, key=lambda one: (one["reason"] is None, -one["caused_wait_ns"])):
            if entry["rank"] not in done and entry["reason"] not in excused:
                done |= set(ranks_of(entry))
                yield _by_reason(case, finding, entry)


def _to_blame(case: Case, entry: StragglerEntry) -> bool:
    """Whether a rank is late again and again, by itself."""
    # The first stage ends a pipeline last, and stages differ in their work: neither makes a rank late.
    staged = "pipeline" in case.report
    return entry["recurrent"] and (entry["root_wait_ns"] > 0 or (entry["reason"] is not None and not staged))


def _by_reason(case: Case, finding: FindingEntry, entry: StragglerEntry) -> Proposal:
    """What answers the reason for which a rank is late, or a group of them: they are mended together."""
    rank, reason, shown = entry["rank"], entry["reason"], str(entry["reason_why"])
    ranks = ranks_of(entry)
    group: _Group = {"ranks": ranks, "shared": shared_words(entry)} if len(ranks) > 1 else {}
    replaced = tuple(ReplacedRank(one) for one in ranks)
    if reason == "device":
        return _slow_device(case, finding, rank, entry)
    if reason == "host":
        cause = entry.get("host_cause", "host_other")
        setting = _HOST.get(cause, _HOST["host_other"])[1]
        return Proposal(finding, LateHost(rank, shown, cause, **group), setting, replaced)
    if reason is None:
        setting = (
            torch_settings.RECORD_SHAPES.to("True")
            if case.program == "pytorch"
            else config("nsys profile", "-t cuda,nvtx,osrt on all ranks")
        )
        why = entry["reason_why"] or "no reason is recorded"
        return Proposal(finding, LateForUnknownReason(rank, why, **group), setting, replaced)
    phase, operation = entry["phase"] or "", entry.get("own_operation")
    if operation is not None and phase.startswith("before "):
        value = "removed, every N steps, or shared by all ranks"
        setting = python(f"{operation} {phase} on {units.rank_words(ranks)}", value)
        return Proposal(finding, OwnWork(rank, shown, operation, phase, **group), setting, replaced)
    return Proposal(finding, EvenData(rank, shown, **group), _SAMPLER, tuple(SharedWork(one) for one in ranks))


def _own_batches(case: Case) -> bool:
    """Whether ranks have batches of their own, as far as is known; on a CPU only where the trace shows it, since shared
    cores are likelier the reason there."""
    kinds = case.report["trace"].get("parallelism") or {}  # older reports have none
    shown = {"dp", "ep"} & set(kinds) or WRAPPERS & set(case.frameworks)
    return bool(shown) or not (kinds or on_cpu(case))


_NO_MESSAGES = "no messages between stages are recorded, through which the other stages wait for this rank"
_SHARED_CORES = "threads that compute on a CPU take turns too where ranks share cores, whatever their batches are"
_SAMPLER = python(
    "the sampler of the data loader",
    "batches of the same number of tokens on every rank (by length, or packed to one length); for experts, a balanced "
    "router",
)


class _Group(TypedDict, total=False):
    """The fields of `OfRank` for a group."""

    ranks: tuple[int, ...]
    shared: str


def _slow_device(
    case: Case, finding: FindingEntry, rank: int, entry: StragglerEntry | None, ranks: tuple[int, ...] = ()
) -> Proposal:
    """`ranks`: those that are mended together, where it is not the entry that tells."""
    reason = (entry["reason_why"] or "") if entry is not None else ""
    ranks = ranks or (ranks_of(entry) if entry is not None else (rank,))
    group: _Group = {"ranks": ranks, "shared": shared_words(entry)} if entry is not None and len(ranks) > 1 else {}
    timed = _from_timers(case, rank)
    return Proposal(
        finding,
        SlowDevice(rank, reason, case.rocm, **group),
        config(f"node of {units.rank_words(ranks)}", "drained until it is checked"),
        () if timed else tuple(ReplacedRank(one) for one in ranks),
        timed,
    )


def _from_timers(case: Case, rank: int) -> Predicted | None:
    """What the slowdown of a job known by its operations alone says of a rank: there is no timeline to replay."""
    slowdown = case.report.get("slowdown")
    found = slowdown.get("at_peers_pace", {}).get(str(rank)) if slowdown is not None else None
    if found is None:
        return None
    return Predicted(
        found["step_ns_before"],
        found["step_ns_after"],
        found["low_ns"],
        found["high_ns"],
        found["basis"],
        found["provenance"],
    )


_HOST: dict[str, tuple[str, Setting]] = {
    "input": (
        "Find out why batches come late",
        config("cores, storage and loader workers of its host", "as on the other hosts"),
    ),
    "sync": ("Remove the blocking calls made", python("the blocking calls of that rank", "as on the other ranks")),
    "launch": (
        "Free the cores that launch",
        config("CPU of its host", "cores bound to the rank, governor performance, no other jobs"),
    ),
    "gc": (
        "Collect garbage at the same step as elsewhere",
        python("gc", "gc.freeze(); gc.disable(); gc.collect(1) at the same step on all ranks"),
    ),
    "host_other": (
        "Keep other work (logging, checkpoints, files) off the launching thread",
        config("work of that host (logging, checkpoints, files)", "in another thread, or shared by the ranks"),
    ),
}
"""What answers a host that is late for each cause."""

RULE = Rule(
    "ranks",
    (SlowDevice, LateForUnknownReason, EvenData, EvenBatches, OwnWork, WorkOutsidePipeline, LateHost),
    propose,
    programs=("pytorch", "jax", "native"),
    place=240,
)

"""A rank that all others wait for: what to do depends on why it is late."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from statistics import median

from gpuscope.analyzers.advice.framework_settings import config, cost, python
from gpuscope.analyzers.advice.rule import Case, Knob, Proposal, Rule
from gpuscope.analyzers.changes import Predicted, Refused, ReplacedRank, SharedWork
from gpuscope.schema.document import FindingEntry, Setting, StragglerEntry

MIN_STEPS = 2
"""Steps in which a rank must be the latest to be blamed."""


def propose(case: Case, finding: FindingEntry) -> Iterator[Proposal]:
    """The late ranks one at a time, the one that costs most first, each by the reason that the trace shows.

    A rank that is last no more often than by chance is not to blame, however long the others waited. Where training
    threads had no core to run on, the pace of a rank tells nothing: only more data, or a host that is late, does.
    """
    late = {entry["rank"]: entry for entry in case.report["stragglers"]}
    held = case.finding("waits_for_core") is not None
    if finding["code"] == "work_outside_pipeline":
        for rank in finding["ranks"]:
            yield _outside(finding, rank)
        return
    if finding["code"] != "straggler":
        if held:
            return
        for rank in finding["ranks"]:
            yield _slow_device(case, finding, rank, late.get(rank))
        return
    blamed = [rank for rank in finding["ranks"] if rank in late and _to_blame(case, late[rank])]
    excused = ("cores", "device", None) if held else ("cores",)
    blamed = [rank for rank in blamed if late[rank]["reason"] not in excused]
    for rank in sorted(blamed, key=lambda rank: -late[rank]["caused_wait_ns"]):
        entry = late[rank]
        yield _BY_REASON[entry["reason"]](case, finding, rank, entry)


def _to_blame(case: Case, entry: StragglerEntry) -> bool:
    """Whether a rank is late more often than by chance; where too few steps are recorded for that, whether it is the
    latest in every steady one and the trace shows why. The pace of a CPU varies by itself: few steps show nothing."""
    if entry["recurrent"]:
        # The first stage ends a pipeline last, and stages differ in their work: neither makes a rank late.
        staged = "pipeline" in case.report
        return entry["root_wait_ns"] > 0 or (entry["reason"] is not None and not staged)
    if entry["reason"] == "device" and all(one["device"] is None for one in case.report["ranks"]):
        return False
    steady = {step["step"] for step in case.report["steps"] if step["role"] == "steady"}
    caused: dict[int, dict[int, int]] = {}
    for cell in case.report["rank_steps"]:
        if cell["step"] in steady:
            caused.setdefault(cell["step"], {})[cell["rank"]] = cell["wait_caused_ns"]
    always = all(max(own, key=lambda rank: own[rank]) == entry["rank"] for own in caused.values())
    return entry["reason"] is not None and len(caused) >= MIN_STEPS and always


def _slow_device(case: Case, finding: FindingEntry, rank: int, entry: StragglerEntry | None) -> Proposal:
    shown = f"; {entry['reason_why']}" if entry is not None and entry["reason_why"] else ""
    rocm = case.rocm
    timed = _from_timers(case, rank)
    return Proposal(
        code="slow_rank",
        action=f"Check the device of rank {rank}, and drain or replace its node",
        why=f"{cost(finding)}{shown}; with this rank as fast as its peers the step is shorter",
        setting=config(f"node of rank {rank}", "drained until it is checked"),
        risk="none for the run; if a neighbour on the same host draws power or bandwidth, another host helps as much",
        verify=("`rocm-smi --showclocks --showthrottle`" if rocm else "`nvidia-smi -q -d CLOCK,PERFORMANCE,ECC`")
        + f" on its host; swap two hosts and see whether the late rank stays {rank}",
        changes=() if timed else (ReplacedRank(rank),),
        outcome=timed,
        subject=f"rank {rank}",
    )


def _from_timers(case: Case, rank: int) -> Predicted | None:
    """What the slowdown of a job known by its operations alone says of a rank: there is no timeline to replay."""
    slowdown = case.report.get("slowdown")
    found = slowdown.get("at_peers_pace", {}).get(str(rank)) if slowdown is not None else None
    if found is None:
        return None
    return Predicted(
        found["step_ns_before"], found["step_ns_after"], found["low_ns"], found["high_ns"], found["basis"],
        found["provenance"],
    )  # fmt: skip


def _uneven_data(_: Case, finding: FindingEntry, rank: int, entry: StragglerEntry | None) -> Proposal:
    assert entry is not None
    phase, own = entry["phase"] or "", entry.get("own_operation")
    if own is not None and phase.startswith("before "):
        return _own_work(finding, rank, entry, own)
    return Proposal(
        code="even_data",
        action=f"Give every rank the same amount of work (rank {rank} has more)",
        why=f"{cost(finding)}; {entry['reason_why']}",
        setting=python("the sampler of the data loader", "batches of the same number of tokens on every rank (by "
                       "length, or packed to one length); for experts, a balanced router"),
        risk="the order of the samples changes; padding to one length would make every rank as slow as this one",
        verify=f"record again: the input shapes of rank {rank} are those of the others",
        changes=(SharedWork(rank),),
        subject=f"rank {rank}",
    )  # fmt: skip


def _own_work(finding: FindingEntry, rank: int, entry: StragglerEntry, operation: str) -> Proposal:
    """What no other rank runs at all, and outside the model's passes, is code of this rank: within them the same code
    may choose another operator for other data."""
    when = f" {entry['phase']}"
    return Proposal(
        code="own_work",
        action=f"Find the code that rank {rank} alone runs ({operation}{when}), and remove it or move it off the step",
        why=f"{cost(finding)}; {entry['reason_why']}",
        setting=python(f"{operation}{when} on rank {rank}", "removed, every N steps, or shared by all ranks"),
        risk="what the code computes may be needed (metrics, checks): then less often, or a part of it on each rank",
        verify=f"record again with_stack=True to see what calls it; afterwards rank {rank} runs it no more",
        changes=(ReplacedRank(rank),),
        subject=f"rank {rank}",
    )


def _late_host(case: Case, finding: FindingEntry, rank: int, entry: StragglerEntry | None) -> Proposal:
    assert entry is not None
    cause = _host_cause(case, rank)
    action, setting = _HOST.get(cause, _HOST["host_other"])
    return Proposal(
        code="late_host",
        action=f"{action} on rank {rank}",
        why=f"{cost(finding)}; {entry['reason_why']}",
        setting=setting,
        risk="none for the other ranks",
        verify=f"record again: `{cause}` of rank {rank} is that of the others",
        changes=(ReplacedRank(rank),),
        subject=f"rank {rank}",
    )


def _outside(finding: FindingEntry, rank: int) -> Proposal:
    return Proposal(
        code="outside_work",
        action=f"Take off rank {rank} what it computes besides the pipeline, or do it meanwhile in another thread",
        why=f"{cost(finding)}; every stage waits for it",
        setting=config(f"work of rank {rank} outside forward and backward", "as on the other ranks"),
        risk="none where it is not needed in every step; else another rank or thread has to do it",
        verify=f"record again: rank {rank} computes no more outside the pipeline's computations than the others",
        changes=(ReplacedRank(rank),),
        subject=f"rank {rank}",
    )


def _host_cause(case: Case, rank: int) -> str:
    """The cause of class cpu that costs a rank most beyond the median of the others."""
    per_rank: dict[int, Mapping[str, float]] = {
        entry["rank"]: {cause: spent / max(entry["steps"], 1) for cause, spent in entry["stall_ns"]["cpu"].items()}
        for entry in case.report["ranks"]
    }
    own = per_rank.get(rank, {})
    others = [causes for other, causes in per_rank.items() if other != rank]

    def excess(cause: str) -> float:
        return own[cause] - (median(one.get(cause, 0.0) for one in others) if others else 0.0)

    return max(own, key=excess, default="host_other")


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
        "Move aside what the launching thread does",
        config("work of that host (logging, checkpoints, files)", "in another thread, or shared by the ranks"),
    ),
}
"""What answers a host that is late for each cause."""


def _unknown(case: Case, finding: FindingEntry, rank: int, entry: StragglerEntry | None) -> Proposal:
    assert entry is not None
    why = entry["reason_why"] or "no reason is recorded"
    return Proposal(
        code="slow_rank",
        action=f"Find out why rank {rank} is late before replacing anything",
        why=f"{cost(finding)}",
        setting=python("torch.profiler.profile.record_shapes", "True")
        if case.program == "pytorch"
        else config("nsys profile", "-t cuda,nvtx,osrt on all ranks"),
        risk="",
        verify=f"stragglers[].reason of rank {rank} is not null",
        outcome=Refused(why),
        subject=f"rank {rank}",
    )


_BY_REASON: Mapping[str | None, Callable[[Case, FindingEntry, int, StragglerEntry | None], Proposal]] = {
    "device": _slow_device,
    "data": _uneven_data,
    "host": _late_host,
    None: _unknown,
}

RULE = Rule(
    "ranks",
    (
        Knob("slow_rank", ("straggler", "slow_worker"), "the node of a slow device checked, drained or replaced"),
        Knob("even_data", ("straggler",), "a sampler by length, packed sequences: where the late rank has more data"),
        Knob("own_work", ("straggler",), "code that the late rank alone runs: removed, less often, or shared by all"),
        Knob("outside_work", ("work_outside_pipeline",), "what one rank of a pipeline does besides its stage"),
        Knob("late_host", ("straggler",), "the late rank's own cpu cause, on that rank"),
    ),
    propose,
    programs=("pytorch", "jax", "native"),
    place=240,
)

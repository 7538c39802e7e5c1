"""The truth about a run, by the definitions, from what the simulator knows and no trace could show better.

Idle time has the reason for which the thread that launched next was held up; what is left is split between blocking
calls and launching by running each rank alone once more, its calls returning at once.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from statistics import median_low

from simulator import spans
from simulator.device import Hardware
from simulator.instructions import (
    Allocate,
    Batch,
    Collective,
    Graph,
    Host,
    Instruction,
    Kind,
    Launch,
    Program,
    Reason,
    Synchronize,
    Work,
)
from simulator.machine import Programs, execute
from simulator.recorded import Operation, Recorded, Run
from simulator.script import COPY_STREAM
from simulator.spans import Spans

CLASSES = {
    "input": "cpu",
    "sync": "cpu",
    "launch": "cpu",
    "gc": "cpu",
    "host_other": "cpu",
    "straggler": "communication",
    "latency": "communication",
    "bandwidth": "communication",
    "pipeline_bubble": "communication",
    "copy": "memory",
    "allocator": "memory",
    "unattributed": "unattributed",
}
QUEUED_LAUNCH_NS = 10_000
"""So much of a gap before an operation that was already queued is launch overhead, the rest unattributed."""
VERDICT_SHARE = 0.1


@dataclass(frozen=True)
class Verdict:
    """`share` is that of the class, over the judged steps of the ranks at hand."""

    bound_by: str
    cause: str | None
    share: float
    causes: dict[str, float]
    """Share of each cause, of all windows."""


@dataclass(frozen=True)
class Truth:
    """`steps` are d_k, the largest over ranks; `steady` the numbers of the judged ones."""

    steps: dict[int, int]
    steady: tuple[int, ...]
    verdict: Verdict
    caused_wait: dict[int, int]
    """By rank, ns that others waited for it in collectives of the judged steps."""

    @property
    def step_ns(self) -> float:
        """«The step»: the median of the steady ones."""
        return float(median_low(self.steps[k] for k in self.steady))


def truth_of(
    run: Run,
    programs: Mapping[int, Programs],
    hardware: Hardware,
    unlike: Iterable[int] = (),
    ranks: Iterable[int] | None = None,
) -> Truth:
    """`unlike`: steps injected to be unlike the others; `ranks`: those the recording holds."""
    held = sorted(run.ranks if ranks is None else ranks)
    bounds = {rank: device_steps(run.ranks[rank]) for rank in run.ranks}
    steps, steady = _judged(run, bounds, unlike, held)
    total: Counter[str] = Counter()
    for rank in held:
        free = run_alone(run.ranks[rank], programs[rank], hardware)
        total += _rank(run.ranks[rank], free, bounds[rank], steady, hardware)
    window = sum(bounds[rank][k][1] - bounds[rank][k][0] for rank in held for k in steady)
    shares = {cause: ns / window for cause, ns in total.items()}
    waits = {rank: ns for rank, ns in _caused(run, steady).items() if rank in held}
    return Truth(steps, steady, _verdict(shares), waits)


def step_ns(run: Run, unlike: Iterable[int] = ()) -> float:
    """«The step» of a run, in a fraction of the time that its whole truth takes. Copies on a stream of their own, which
    may run steps ahead, begin none."""
    bounds = {rank: device_steps(recorded, ahead=COPY_STREAM) for rank, recorded in run.ranks.items()}
    steps, steady = _judged(run, bounds, unlike, sorted(bounds))
    return float(median_low(steps[k] for k in steady))


def _judged(
    run: Run, bounds: Mapping[int, Mapping[int, tuple[int, int]]], unlike: Iterable[int], held: Sequence[int]
) -> tuple[dict[int, int], tuple[int, ...]]:
    """The steps' times, and which of them are judged: the largest over ranks or, where a collective joins all ranks in
    every step and these are less, from the earliest begin on any rank to the next."""
    numbers = sorted(set.intersection(*(set(own) for own in bounds.values())))
    steady = tuple(k for k in numbers[:-1] if k not in set(unlike))
    largest = {k: max(bounds[rank][k][1] - bounds[rank][k][0] for rank in held) for k in numbers}
    members: dict[int, Counter[tuple[str, int]]] = defaultdict(Counter)
    for rank in held:
        for operation in run.ranks[rank].operations:
            if operation.collective is not None and operation.collective.op != "send_recv":
                members[operation.step][operation.collective.group, operation.collective.seq] += 1
    if len(held) < 2 or not all(len(held) in members[k].values() for k in steady):
        return largest, steady
    begin = {k: min(bounds[rank][k][0] for rank in held) for k in numbers}
    inner = {k: begin[after] - begin[k] for k, after in pairwise(numbers) if k != numbers[0]}
    together = {**largest, **inner}
    less = median_low(together[k] for k in steady) < median_low(largest[k] for k in steady)
    return together if less else largest, steady


def device_steps(recorded: Recorded, ahead: int | None = None) -> dict[int, tuple[int, int]]:
    """Start and end of each device step: the first operation launched in the host step, to that of the next. Those of
    the stream `ahead` begin none."""
    begin: dict[int, int] = {}
    for operation in recorded.operations:
        if operation.step >= 0 and operation.stream != ahead:
            begin[operation.step] = min(operation.start, begin.get(operation.step, operation.start))
    starts = sorted(begin.items())
    ends = [start for _, start in starts[1:]] + [max(o.end for o in recorded.operations)]
    return {k: (start, end) for (k, start), end in zip(starts, ends, strict=True)}


def run_alone(recorded: Recorded, programs: Programs, hardware: Hardware) -> Recorded:
    """The rank by itself with blocking calls that return at once and a queue without end; operations keep how long
    they took, collectives too, and the host's own work stays."""
    freed = {name: _freed(recorded, name, program) for name, program in programs.items()}
    alone = replace(hardware, queue=None, compute_slow=1.0, transfer_slow=1.0, share_link=False)
    return execute({recorded.rank: freed}, alone).ranks[recorded.rank]


def _freed(recorded: Recorded, name: str, program: Program) -> list[Instruction]:
    produced = iter(recorded.produced[name])

    def kept(operation: Operation) -> Work:
        return Work(operation.name, operation.end - operation.start, operation.stream, operation.kind)

    made: list[Instruction] = []
    for instruction, dur in zip(program, recorded.durations[name], strict=True):
        match instruction:
            case Synchronize():
                continue
            case Batch():
                made += [Host(dur - instruction.own, Reason.INPUT), Host(instruction.own)]
            case Allocate():
                made.append(Host(dur, Reason.ALLOCATOR))
            case Launch():
                made.append(replace(instruction, work=kept(next(produced)), blocks=False))
            case Graph(nodes):
                made.append(replace(instruction, nodes=tuple(kept(next(produced)) for _ in nodes)))
            case Collective():
                made.append(Launch(kept(next(produced)), dur=instruction.dur, latency=instruction.latency))
            case _:
                made.append(instruction)
    return made


def _rank(
    recorded: Recorded, free: Recorded, bounds: dict[int, tuple[int, int]], steady: Iterable[int], hardware: Hardware
) -> Counter[str]:
    """Ns of each cause in a rank's judged steps."""
    total: Counter[str] = Counter()
    free_bounds = device_steps(free)
    for k in steady:
        found, rest, long = _idle(recorded, bounds[k])
        _, free_rest, free_long = _idle(free, free_bounds[k])
        stays = min(rest, free_rest)
        other = min(long, free_long, stays)
        found += Counter({"host_other": other, "launch": stays - other, "sync": rest - stays})
        total += found + _exposed(recorded, bounds[k], hardware)
    return total


def _busy(recorded: Recorded, window: tuple[int, int], *kinds: Kind) -> Spans:
    rows = ((o.start, o.end) for o in recorded.operations if o.kind in kinds)
    return spans.clip(spans.union(rows), *window)


def _idle(recorded: Recorded, window: tuple[int, int]) -> tuple[Counter[str], int, int]:
    """Idle ns of a step by the causes that cover them, what is left, and how much of that is long work of the host's
    own."""
    idle = spans.minus([window], _busy(recorded, window, *Kind))
    found: Counter[str] = Counter()
    # They never overlap in these programs: a thread is held up for one reason at a time.
    for reason in (Reason.INPUT, Reason.GC, Reason.ALLOCATOR, Reason.HOST_OTHER):
        covering = spans.union((h.start, h.end) for h in recorded.held if h.reason is reason)
        found[reason.value] += spans.length(spans.both(idle, covering))
        idle = spans.minus(idle, covering)
    starts: dict[int, list[Operation]] = defaultdict(list)
    for operation in recorded.operations:
        starts[operation.start].append(operation)
    rest, own = 0, spans.union((h.start, h.end) for h in recorded.held if h.reason is Reason.LONG)
    long = 0
    for start, end in idle:
        ending = starts.get(end, [])
        if any(o.visible <= o.ready for o in ending):
            found["launch"] += min(end - start, QUEUED_LAUNCH_NS)
            found["unattributed"] += max(0, end - start - QUEUED_LAUNCH_NS)
        else:
            rest += end - start
            long += spans.length(spans.both([(start, end)], own))
    return found, rest, long


def _exposed(recorded: Recorded, window: tuple[int, int], hardware: Hardware) -> Counter[str]:
    """Ns of exposed communication and copies by cause."""
    compute = _busy(recorded, window, Kind.COMPUTE)
    waiting: dict[str, list[tuple[int, int]]] = defaultdict(list)
    moving: dict[str, list[tuple[int, int]]] = defaultdict(list)
    for operation in recorded.operations:
        told = operation.collective
        if told is None or operation.end <= window[0] or operation.start >= window[1]:
            continue
        link = hardware.links.get(told.group, hardware.link)
        fixed, by_bytes = link.cost(told.op, told.bytes, len(told.ranks))
        waiting["pipeline_bubble" if told.op == "send_recv" else "straggler"].append(
            (operation.start, operation.transfer)
        )
        moving["latency" if fixed > by_bytes else "bandwidth"].append((operation.transfer, operation.end))
    found: Counter[str] = Counter()
    taken = compute
    # What moves bytes counts before what waits where two collectives are under way at once.
    for cause, rows in [*moving.items(), *waiting.items()]:
        own = spans.minus(spans.clip(spans.union(rows), *window), taken)
        found[cause] += spans.length(own)
        taken = spans.union([*taken, *own])
    copies = _busy(recorded, window, Kind.MEMORY)
    found["copy"] += spans.length(spans.minus(copies, taken))
    return found


def _caused(run: Run, steady: Iterable[int]) -> Counter[int]:
    """Waits of others, laid to the rank that came last."""
    judged = set(steady)
    members: dict[tuple[str, int], list[Operation]] = defaultdict(list)
    for recorded in run.ranks.values():
        for operation in recorded.operations:
            if operation.collective is not None and operation.step in judged:
                members[operation.collective.group, operation.collective.seq].append(operation)
    found: Counter[int] = Counter()
    for own in members.values():
        last = max(own, key=lambda o: o.start)
        found[last.rank] += sum(last.start - o.start for o in own)
    return found


def _verdict(shares: dict[str, float]) -> Verdict:
    classes: Counter[str] = Counter()
    for cause, share in shares.items():
        classes[CLASSES[cause]] += share  # type: ignore[assignment]
    stalls = {name: share for name, share in classes.items() if name != "unattributed"}
    largest = max(stalls, key=lambda name: stalls[name])
    told = {cause: share for cause, share in sorted(shares.items(), key=lambda item: -item[1]) if share}
    if stalls[largest] < VERDICT_SHARE:
        return Verdict("compute", None, 1 - sum(shares.values()), told)
    own = {cause: share for cause, share in shares.items() if CLASSES[cause] == largest}
    return Verdict(largest, max(own, key=lambda cause: own[cause]), stalls[largest], told)

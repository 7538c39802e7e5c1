"""Runs a job: hosts that launch ahead, streams in order, a link of each rank that carries a transfer at a time."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field, replace
from statistics import median

from communication_jobs.jobs import COMPUTE, Await, Begin, Collective, Instruction, Job, Kernel, ReadBack, program

LAUNCH_NS, VISIBLE_NS, GAP_NS = 4_500, 6_000, 1_200
AHEAD = 1_000
"""Launches that a host may be ahead of its device."""


@dataclass(eq=False)
class Operation:
    """On a device; `left` of its work at full speed. Times are -1 until they are known."""

    rank: int
    step: int
    what: Kernel | Collective
    launched: tuple[int, int]
    behind: list[Operation]
    left: float
    start: float = -1.0
    end: float = -1.0


@dataclass
class Rank:
    """What a rank leaves behind: its operations, its calls that wait, its steps on the host."""

    operations: list[Operation] = field(default_factory=list)
    waits: list[tuple[float, float]] = field(default_factory=list)
    steps: list[float] = field(default_factory=list)


def run(job: Job) -> list[Rank]:
    """All ranks, until nothing is left to do."""
    hosts = [_Host(job, rank) for rank in range(job.ranks)]
    arrived: dict[tuple[str, int], list[Operation]] = defaultdict(list)
    transfers: list[list[Operation]] = []
    now = 0.0
    while True:
        progressed = True
        while progressed:
            progressed = False
            for host in hosts:
                progressed |= host.advance(now)
                for operation in host.begin(now):
                    progressed = True
                    if isinstance(operation.what, Collective):
                        key = operation.what.group, host.numbered(operation.what.group)
                        arrived[key].append(operation)
                        if len(arrived[key]) == len(operation.what.members):
                            transfers.append(arrived.pop(key))
                    else:
                        host.running.append(operation)
        carried = _carried(transfers)
        busy = {operation.rank for own in carried for operation in own}
        speeds = [
            (operation, 1 / job.slowed if operation.rank in busy else 1.0)
            for host in hosts
            for operation in host.running
        ]
        ends = [now + operation.left / speed for operation, speed in speeds]
        ends += [now + own[0].left for own in carried]
        ends += [at for host in hosts for at in host.next_events(now)]
        if not ends:
            break
        then = max(now, min(ends))
        for operation, speed in speeds:
            operation.left -= (then - now) * speed
        for own in carried:
            own[0].left -= then - now
        now = then
        for host in hosts:
            for operation in [one for one in host.running if one.left <= 0.5]:
                host.running.remove(operation)
                operation.end = now
        for own in [one for one in carried if one[0].left <= 0.5]:
            transfers.remove(own)
            for operation in own:
                operation.end = now
    stuck = [host.rank for host in hosts if host.position < len(host.program)]
    if stuck or transfers or arrived:
        raise RuntimeError(f"ranks {stuck} of {job.name} hang")
    return [host.recorded for host in hosts]


def _carried(transfers: list[list[Operation]]) -> list[list[Operation]]:
    """Of transfers in the order in which their last rank arrived, those that no earlier one of a rank keeps waiting."""
    taken: set[int] = set()
    found = []
    for own in transfers:
        ranks = {operation.rank for operation in own}
        if not ranks & taken:
            found.append(own)
        taken |= ranks
    return found


class _Host:
    """A rank's thread, and the streams that it launches to."""

    def __init__(self, job: Job, rank: int) -> None:
        self.job, self.rank = job, rank
        self.program: list[Instruction] = list(program(job, rank))
        self.position = 0
        self.recorded = Rank()
        self.running: list[Operation] = []
        self._free = 0.0
        self._step = -1
        self._streams: dict[int, list[Operation]] = defaultdict(list)
        self._given: dict[int, list[Operation]] = defaultdict(list)
        self._awaited: list[Operation] = []
        self._numbers: dict[str, int] = defaultdict(int)
        self._waiting_since = -1.0

    def numbered(self, group: str) -> int:
        """The number of a group's next collective."""
        self._numbers[group] += 1
        return self._numbers[group]

    def advance(self, now: float) -> bool:
        """Carry out what the host can do now; whether it did anything."""
        did = False
        while self.position < len(self.program) and self._free <= now:
            instruction = self.program[self.position]
            if isinstance(instruction, ReadBack):
                tail = self._given[COMPUTE][-1]
                if self._waiting_since < 0:
                    self._waiting_since = now
                if tail.end < 0:
                    return did
                self.recorded.waits.append((self._waiting_since, now + 3_000))
                self._free, self._waiting_since = now + 5_000, -1.0
            elif isinstance(instruction, Begin):
                self._step = instruction.number
                self.recorded.steps.append(now)
            elif isinstance(instruction, Await):
                if not self.job.hidden:
                    given = self._given[instruction.stream]
                    self._awaited += given[: len(given) - instruction.but][-1:]
            else:
                if sum(one.end < 0 for one in self.recorded.operations[-AHEAD:]) >= AHEAD:
                    return did
                self._launch(instruction, now)
            self.position += 1
            did = True
        return did

    def _launch(self, what: Kernel | Collective, now: float) -> None:
        stream = self._given[what.stream]
        behind = stream[-1:]
        if isinstance(what, Collective):
            behind = behind + self._given[COMPUTE][-1:]
            work = 0.0 if self.job.hidden else sum(self.job.cost(what.op, what.nbytes, len(what.members)))
        else:
            behind, self._awaited = behind + self._awaited, []
            work = what.ns
        end = now + LAUNCH_NS
        operation = Operation(self.rank, self._step, what, (round(now), round(end)), behind, max(work, 1.0))
        self.recorded.operations.append(operation)
        stream.append(operation)
        self._streams[what.stream].append(operation)
        self._free = end

    def _earliest(self, operation: Operation) -> float:
        """When it may begin; -1 while that is not known."""
        if any(one.end < 0 for one in operation.behind):
            return -1.0
        return max([operation.launched[1] + VISIBLE_NS, *(one.end + GAP_NS for one in operation.behind)])

    def begin(self, now: float) -> list[Operation]:
        """Operations that begin now."""
        found = []
        for waiting in self._streams.values():
            if waiting and -1 < self._earliest(waiting[0]) <= now:
                operation = waiting.pop(0)
                operation.start = now
                found.append(operation)
        return found

    def next_events(self, now: float) -> list[float]:
        """When the host is free, or an operation may begin."""
        found = [self._free] if self._free > now and self.position < len(self.program) else []
        earliest = (self._earliest(waiting[0]) for waiting in self._streams.values() if waiting)
        return found + [at for at in earliest if at > now]


def step_ns(job: Job, ranks: list[Rank] | None = None) -> float:
    """«The step»: the median over the whole steps but the first two, of each the longest over the ranks."""
    ranks = run(job) if ranks is None else ranks
    begins = [[min(o.start for o in rank.operations if o.step == step) for step in range(job.steps)] for rank in ranks]
    steps = [max(own[k + 1] - own[k] for own in begins) for k in range(1, job.steps - 1)]
    return median(steps)


def at_best(job: Job) -> dict[str, float]:
    """«The step» without the fixed cost, with half the bytes, at twice the rate, and with all of it hidden."""
    one = [own for own in program(replace(job, steps=1), 0) if isinstance(own, Collective)]
    link = sum(sum(job.cost(own.op, own.nbytes, len(own.members))) for own in one)
    twice = step_ns(replace(job, rate=2 * job.rate))
    return {
        "no_fixed_cost_ns": step_ns(replace(job, fixed_ns=0)),
        "half_bytes_ns": twice,
        "double_bandwidth_ns": twice,
        "hidden_ns": max(step_ns(replace(job, hidden=True)), link),
    }

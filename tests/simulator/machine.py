"""Runs programs: each thread goes through its instructions, and the devices do what was launched."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from typing import Any

from simulator.device import Clock, Fabric, Hardware, Live
from simulator.instructions import (
    Allocate,
    Batch,
    Begin,
    Collective,
    End,
    Graph,
    Host,
    Instruction,
    Kind,
    Launch,
    Program,
    Reason,
    Record,
    Step,
    StreamWait,
    Synchronize,
    Turn,
    Work,
)
from simulator.recorded import UNSET, Call, Held, Operation, Range, Recorded, Run

Programs = Mapping[str, Program]
"""The programs of one rank by name; `main` holds the steps."""
MAIN = "main"
FIRST_CORRELATION, CORRELATION_STRIDE = 1_000, 5


def execute(programs: Mapping[int, Programs], hardware: Hardware | None = None) -> Run:
    """Run every rank's programs to their end."""
    clock = Clock()
    hardware = hardware or Hardware()
    fabric = Fabric(hardware, clock, programs)
    hosts: list[_Thread] = []
    ranks: dict[int, Recorded] = {}
    for rank, own in programs.items():
        process = _Process(rank, fabric, clock)
        ranks[rank] = process.recorded
        hosts += [_Thread(process, name, program) for name, program in own.items()]
    for host in hosts:
        clock.at(0, host.advance)
    clock.run()
    stuck = [f"rank {h.process.recorded.rank} {h.name}" for h in hosts if not h.done]
    lost = [f"{o.name} on rank {r}" for r, record in ranks.items() for o in record.operations if o.end == UNSET]
    if stuck or lost:
        raise RuntimeError(f"the job hangs: {', '.join(stuck + lost[:5])}")
    return Run(ranks)


class _Process:
    """What the threads of a rank share."""

    def __init__(self, rank: int, fabric: Fabric, clock: Clock) -> None:
        self.recorded = Recorded(rank)
        self.fabric = fabric
        self.device = fabric.devices[rank]
        self.clock = clock
        self.loader = _Loader()
        self._correlation = FIRST_CORRELATION
        self._external = 0
        self._graphs = 0

    def correlation(self) -> int:
        self._correlation += CORRELATION_STRIDE
        return self._correlation

    def external(self) -> int:
        self._external += 1
        return self._external

    def graph(self) -> int:
        self._graphs += 1
        return self._graphs


class _Loader:
    """Loader processes: batch k is made by worker k mod n, after its batch before and after it was asked for."""

    def __init__(self) -> None:
        self.taken = 0
        self.asked: list[int] = []
        self.ready: list[int] = []

    def take(self, batch: Batch, now: int) -> int:
        """When the next batch is there; the one that takes its place is asked for then."""
        ahead = batch.workers * batch.prefetch
        if not self.asked:
            # The job has run before the recording begins: each worker is just done with a batch, or will be in turn.
            turn = batch.load // batch.workers if batch.apart else 0
            self.asked = [min(k, batch.workers - 1) * turn - batch.load for k in range(ahead)]
        k, self.taken = self.taken, self.taken + 1
        last = self.ready[k - batch.workers] if k >= batch.workers else UNSET
        self.ready.append(max(self.asked[k], last) + batch.load if last != UNSET else self.asked[k] + batch.load)
        there = max(now, self.ready[k])
        self.asked.append(there)
        return there


class _Thread:
    """A program in progress."""

    def __init__(self, process: _Process, name: str, program: Program) -> None:
        self.process, self.name, self.program = process, name, program
        self.done = False
        self._position = 0
        self._tid = 0
        self._step = -1
        self._open: dict[int, list[Range]] = defaultdict(list)
        self._step_range: Range | None = None
        self._began = 0
        self.durations: list[int] = []
        process.recorded.durations[name] = self.durations
        self._produced: list[Operation] = []
        process.recorded.produced[name] = self._produced

    @property
    def _now(self) -> int:
        return self.process.clock.now

    def advance(self) -> None:
        """Carry out instructions until one takes time."""
        while self._position < len(self.program):
            instruction = self.program[self._position]
            self._position += 1
            self._began = self._now
            if not self._at_once(instruction):
                self._carry_out(instruction)
                return
            self.durations.append(0)
        self._close_step()
        self.done = True

    def _resume(self, end: int, waited: int = 0) -> None:
        """The instruction under way ends at `end`; `waited` of it was for the queue."""
        self.durations.append(end - self._began - waited)
        self.process.clock.at(end, self.advance)

    def _at_once(self, instruction: Instruction) -> bool:
        match instruction:
            case Step(number):
                self._close_step()
                self._step = number
                self._step_range = self._range(f"ProfilerStep#{number}", "user_annotation", {})
            case Turn(tid):
                self._tid = tid
            case Begin(name, category, args):
                self._open[self._tid].append(self._range(name, category, args))
            case End():
                self._open[self._tid].pop().end = self._now
            case _:
                return False
        return True

    def _carry_out(self, instruction: Instruction) -> None:
        match instruction:
            case Host(dur, reason):
                self._hold(self._now, self._now + dur, reason)
                self._resume(self._now + dur)
            case Batch():
                there = self.process.loader.take(instruction, self._now)
                self._hold(self._now, there, Reason.INPUT)
                self._resume(there + instruction.own)
            case Launch() | Graph() | Collective():
                self._launch(instruction)
            case Record(event, stream, dur):
                call = self._call("cudaEventRecord", self._now, self._now + dur)
                call.event = (stream, call.correlation)
                self.process.fabric.record(self.process.device, event, stream, call.correlation)
                self._resume(call.end)
            case StreamWait(event, stream, dur):
                call = self._call("cudaStreamWaitEvent", self._now, self._now + dur)
                call.sync = self._stream_wait(event, stream)
                call.sync_start = self._now + dur // 2
                self.process.fabric.wait(self.process.device, event, stream)
                self._resume(call.end)
            case Synchronize():
                self._synchronize(instruction)
            case Allocate(name, dur, drains):
                self._allocate(name, dur, drains)
            case _:
                raise TypeError(instruction)

    def _launch(self, instruction: Launch | Graph | Collective) -> None:
        began = self._now

        def go() -> None:
            place = self._now
            load = instruction.load if isinstance(instruction, Launch) else 0
            name = {Graph: "cudaGraphLaunch", Collective: "cudaLaunchKernelExC"}.get(type(instruction), "")
            end = place + load + instruction.dur
            call = self._call(name or getattr(instruction, "call", ""), began, end)
            call.waited = place - began
            if load >= 1_000_000:
                self._hold(place, end, Reason.HOST_OTHER)
            live = self._submit(instruction, place + load + instruction.latency, call)
            if not getattr(instruction, "blocks", False):
                self._resume(end, call.waited)
                return

            def returned() -> None:
                call.end = max(end, self._now + self.process.fabric.hardware.sync_return)
                call.waited, call.blocking = call.waited + call.end - end, True
                self._resume(call.end, call.waited)

            self.process.fabric.when_done([live], returned)

        self.process.fabric.acquire(self.process.device, go)

    def _submit(self, instruction: Launch | Graph | Collective, visible: int, call: Call) -> Live:
        fabric = self.process.fabric
        if isinstance(instruction, Launch):
            return fabric.submit(self._operation(instruction.work, visible, call))
        if isinstance(instruction, Collective):
            work = Work(instruction.op, 0, instruction.stream, Kind.COMMUNICATION, args=instruction.args)
            operation = self._operation(work, visible, call)
            operation.collective = instruction
            return fabric.submit(operation)
        graph = self.process.graph()
        for number, node in enumerate(instruction.nodes):
            operation = self._operation(node, visible, call)
            operation.graph = graph
            operation.slots = int(number == len(instruction.nodes) - 1)
            live = fabric.submit(operation, gap=fabric.hardware.node_gap if number else None)
        return live

    def _operation(self, work: Work, visible: int, call: Call) -> Operation:
        operation = Operation(
            self.process.recorded.rank,
            work.name,
            work.stream,
            work.kind,
            work.category,
            work.dur,
            work.args,
            self._step,
            call.correlation,
            call.external,
            visible,
        )
        self.process.recorded.operations.append(operation)
        self._produced.append(operation)
        return operation

    def _synchronize(self, instruction: Synchronize) -> None:
        fabric, device, began = self.process.fabric, self.process.device, self._now
        target = instruction.target
        name = "Device" if target is None else "Stream" if isinstance(target, int) else "Event"
        call = self._call(f"cuda{name}Synchronize", began, UNSET)
        call.blocking = True
        kind = "Context Sync" if target is None else f"{name} Sync"
        call.sync = {"cuda_sync_kind": kind, "stream": target if isinstance(target, int) else -1}
        call.sync_start = began + 500
        lives = fabric.pending_on(device, target)
        own = instruction.own

        def returned() -> None:
            call.end = max(began + own, self._now + fabric.hardware.sync_return if lives else 0)
            call.waited = call.end - began - own
            self._resume(call.end, call.waited)

        fabric.when_done(lives, returned)

    def _allocate(self, name: str, dur: int, drains: bool) -> None:
        fabric, began = self.process.fabric, self._now

        def returned() -> None:
            call = self._call(name, began, self._now + dur)
            self._hold(began, call.end, Reason.ALLOCATOR)
            self._resume(call.end)

        fabric.when_done(fabric.pending_on(self.process.device, None) if drains else [], returned)

    def _stream_wait(self, event: str, stream: int) -> dict[str, Any]:
        recorded_on, correlation = self.process.device.recorded_by.get(event, (-1, -1))
        return {
            "cuda_sync_kind": "Stream Wait Event",
            "wait_on_stream": recorded_on,
            "wait_on_cuda_event_record_corr_id": correlation,
            "wait_on_cuda_event_id": correlation,
            "stream": stream,
        }

    def _hold(self, start: int, end: int, reason: Reason) -> None:
        if reason is not Reason.OWN and end > start:
            self.process.recorded.held.append(Held(start, end, reason, self._step))

    def _call(self, name: str, start: int, end: int) -> Call:
        covering = self._open[self._tid]
        external = next((r.external for r in reversed(covering) if r.category == "cpu_op"), 0)
        call = Call(
            self.process.recorded.rank, self._tid, name, start, end, self.process.correlation(), external, self._step
        )
        self.process.recorded.calls.append(call)
        return call

    def _range(self, name: str, category: str, args: Mapping[str, Any]) -> Range:
        external = 0 if category == "python_function" else self.process.external()
        made = Range(
            self.process.recorded.rank, self._tid, category, name, self._now, UNSET, external, args, self._step
        )
        self.process.recorded.ranges.append(made)
        return made

    def _close_step(self) -> None:
        if self._step_range is not None:
            self._step_range.end = self._now
            self.process.recorded.steps[self._step] = (self._step_range.start, self._now)
            self._step_range = None

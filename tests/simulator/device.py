"""Devices and links as discrete events: streams, events, collectives that wait for each other, contention."""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from simulator.instructions import Kind
from simulator.recorded import UNSET, Operation

Action = Callable[[], None]

BUS_FACTORS: Mapping[str, Callable[[int], float]] = {
    "all_reduce": lambda n: 2 * (n - 1) / n,
    "all_gather": lambda n: (n - 1) / n,
    "reduce_scatter": lambda n: (n - 1) / n,
    "all_to_all": lambda n: (n - 1) / n,
    "broadcast": lambda _: 1.0,
    "send_recv": lambda _: 1.0,
}


@dataclass(frozen=True)
class Link:
    """A collective of S bytes lasts alpha + S · factor / rate from the last arrival on."""

    alpha: int = 15_000
    rate: float = 100.0
    """Bytes per ns."""

    def cost(self, op: str, size: int, ranks: int) -> tuple[int, int]:
        """The fixed part and the bytes' part, ns."""
        return self.alpha, round(size * BUS_FACTORS[op](ranks) / self.rate)


@dataclass(frozen=True)
class Hardware:
    """What all ranks share."""

    link: Link = field(default_factory=Link)
    links: Mapping[str, Link] = field(default_factory=dict)
    """Groups that have a link of their own, which no other group shares."""
    queue: int | None = 1_024
    """Operations of a context that may be pending before a launch blocks."""
    queue_gap: int = 1_000
    """From the end of an operation to the start of the next one of its stream that was waiting."""
    wait_gap: int = 2_000
    """The same across streams."""
    node_gap: int = 700
    """The same between nodes of a graph."""
    sync_return: int = 5_000
    """From the end of what a call waits for to its return."""
    compute_slow: float = 1.0
    """How many times longer a kernel takes beside a collective."""
    transfer_slow: float = 1.0
    """How many times longer a collective transfers beside kernels."""
    share_link: bool = True
    crowd_cost: float = 1.0
    """What each further transfer at once on a link costs, by the time that one takes alone: 1 is a fair share."""


@dataclass(eq=False)
class Live:
    """Something that is or will be under way on a device or link, with what is left of it."""

    operations: list[Operation]
    earliest: int = 0
    unfinished: int = 0
    left: float = 0.0
    slow: float = 1.0
    since: int = 0
    version: int = 0
    next: list[tuple[Live, int]] = field(default_factory=list)
    """What waits for this, and the gap it then makes."""
    watchers: list[Action] = field(default_factory=list)

    @property
    def one(self) -> Operation:
        return self.operations[0]


class Clock:
    """Actions in the order of their times; those of one time in the order they were asked for."""

    def __init__(self) -> None:
        self.now = 0
        self._heap: list[tuple[int, int, Action]] = []
        self._asked = 0

    def at(self, time: int, action: Action) -> None:
        self._asked += 1
        heapq.heappush(self._heap, (max(time, self.now), self._asked, action))

    def run(self) -> None:
        while self._heap:
            self.now, _, action = heapq.heappop(self._heap)
            action()


class Device:
    """One rank's device: what its streams hold, and who waits for it."""

    def __init__(self, rank: int) -> None:
        self.rank = rank
        self.tails: dict[int, list[Live]] = defaultdict(list)
        self.events: dict[str, list[Live]] = {}
        self.recorded_by: dict[str, tuple[int, int]] = {}
        """Event: stream and correlation of its last record."""
        self.running: set[Live] = set()
        self.collectives: set[Live] = set()
        self.pending = 0
        self.waiting: list[Action] = []


class Fabric:
    """All devices and the links between them."""

    def __init__(self, hardware: Hardware, clock: Clock, ranks: Iterable[int]) -> None:
        self.hardware = hardware
        self.clock = clock
        self.devices = {rank: Device(rank) for rank in ranks}
        self._arrived: dict[tuple[str, int], list[Live]] = defaultdict(list)
        self._transfers: set[Live] = set()
        self._contended = hardware.compute_slow != 1.0 or hardware.transfer_slow != 1.0 or hardware.share_link

    def acquire(self, device: Device, go: Action) -> None:
        """Call `go` as soon as the launch queue has a place, which it takes."""
        limit = self.hardware.queue
        if limit is not None and device.pending >= limit:
            device.waiting.append(go)
        else:
            device.pending += 1
            go()

    def submit(self, operation: Operation, gap: int | None = None) -> Live:
        """Put work on its stream."""
        device = self.devices[operation.rank]
        live = Live([operation], earliest=operation.visible)
        tail = device.tails[operation.stream]
        for before in tail:
            same = before.one.stream == operation.stream
            pause = gap if gap is not None and same else self.hardware.queue_gap if same else self.hardware.wait_gap
            if before.one.end == UNSET:
                live.unfinished += 1
                before.next.append((live, pause))
            else:
                live.earliest = max(live.earliest, before.one.end + pause)
                operation.ready = max(operation.ready, before.one.end)
        device.tails[operation.stream] = [live]
        if not live.unfinished:
            self.clock.at(live.earliest, lambda: self._begin(live))
        return live

    def record(self, device: Device, event: str, stream: int, correlation: int) -> None:
        device.events[event] = list(device.tails[stream])
        device.recorded_by[event] = (stream, correlation)

    def wait(self, device: Device, event: str, stream: int) -> None:
        tail = device.tails[stream]
        tail += [live for live in device.events.get(event, []) if live not in tail]

    def pending_on(self, device: Device, target: int | str | None) -> list[Live]:
        """What a synchronisation waits for."""
        if target is None:
            held = [live for tail in device.tails.values() for live in tail]
        elif isinstance(target, int):
            held = device.tails[target]
        else:
            held = device.events.get(target, [])
        return [live for live in dict.fromkeys(held) if live.one.end == UNSET]

    def when_done(self, lives: list[Live], action: Action) -> None:
        """Call `action` when all of these have ended."""
        left = len(lives)

        def ended() -> None:
            nonlocal left
            left -= 1
            if not left:
                action()

        if not lives:
            action()
        for live in lives:
            live.watchers.append(ended)

    def _begin(self, live: Live) -> None:
        operation, now = live.one, self.clock.now
        operation.start = now
        device = self.devices[operation.rank]
        if operation.collective is None:
            live.left = operation.work
            device.running.add(live)
            self._resume(live, 1.0)
        else:
            device.collectives.add(live)
            members = self._arrived[operation.collective.group, operation.collective.seq]
            members.append(live)
            if len(members) == len(operation.collective.ranks):
                self._transfer(members)
        self._refresh()

    def _transfer(self, members: list[Live]) -> None:
        collective = members[0].one.collective
        assert collective is not None
        for live in members:
            live.one.transfer = self.clock.now
        link = self.hardware.links.get(collective.group, self.hardware.link)
        transfer = Live([live.one for live in members])
        transfer.left = sum(link.cost(collective.op, collective.bytes, len(collective.ranks)))
        transfer.watchers = [lambda live=live: self._ended(live) for live in members]  # type: ignore[misc]
        self._transfers.add(transfer)
        self._resume(transfer, 1.0)

    def _resume(self, live: Live, slow: float) -> None:
        """Go on at another speed."""
        live.slow, live.since, live.version = slow, self.clock.now, live.version + 1
        version = live.version
        end = self.clock.now + round(live.left * slow)
        self.clock.at(end, lambda: self._finish(live, version))

    def _refresh(self) -> None:
        """The speed of everything under way, after something began or ended."""
        if not self._contended:
            return
        for device in self.devices.values():
            slow = self.hardware.compute_slow if device.collectives else 1.0
            for live in device.running:
                self._change(live, slow if live.one.kind is Kind.COMPUTE else 1.0)
        for transfer in self._transfers:
            beside = any(
                live.one.kind is Kind.COMPUTE
                for operation in transfer.operations
                for live in self.devices[operation.rank].running
            )
            slow = self.hardware.transfer_slow if beside else 1.0
            if self.hardware.share_link:
                slow *= 1 + self._others(transfer) * self.hardware.crowd_cost
            self._change(transfer, slow)

    def _others(self, transfer: Live) -> int:
        """How many share a device's links with it, at the device where these are most."""
        others = [other for other in self._transfers if other is not transfer and self._shares(transfer, other)]
        ranks = {operation.rank for operation in transfer.operations}
        return max(sum(operation.rank == rank for other in others for operation in other.operations) for rank in ranks)

    def _shares(self, one: Live, other: Live) -> bool:
        told = [live.one.collective for live in (one, other) if live.one.collective]
        return told[0].group == told[1].group or not any(each.group in self.hardware.links for each in told)

    def _change(self, live: Live, slow: float) -> None:
        if slow != live.slow:
            live.left = max(0.0, live.left - (self.clock.now - live.since) / live.slow)
            self._resume(live, slow)

    def _finish(self, live: Live, version: int) -> None:
        if version != live.version:
            return
        live.version += 1
        if live in self._transfers:
            self._transfers.discard(live)
            for ended in live.watchers:
                ended()
        else:
            self._ended(live)
        self._refresh()

    def _ended(self, live: Live) -> None:
        operation, now = live.one, self.clock.now
        operation.end = now
        device = self.devices[operation.rank]
        device.running.discard(live)
        device.collectives.discard(live)
        for after, pause in live.next:
            after.earliest = max(after.earliest, now + pause)
            after.one.ready = max(after.one.ready, now)
            after.unfinished -= 1
            if not after.unfinished:
                self.clock.at(after.earliest, lambda after=after: self._begin(after))  # type: ignore[misc]
        for watcher in live.watchers:
            watcher()
        device.pending -= operation.slots
        while device.waiting and device.pending < (self.hardware.queue or 0):
            device.pending += 1
            self.clock.at(now, device.waiting.pop(0))

"""Log of this process's collectives: what was called, when, and whether it completed."""

from __future__ import annotations

import threading
import time
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from gpuscope.instrumented_runtime.record.gloo import end_stamp
from gpuscope.trace.naming.dtypes import dtype_name

MOST_KINDS = 1000
"""Kinds of calls that are remembered."""
HELD_BYTES, HELD_RESULTS = 256 << 10, 64
"""Results that futures may hold before the next call looks which have ended. Looked at together small ones cost a
fraction of one by one, when other work has driven all that this needs out of the caches; a large one's memory the job
wants back at once, else it has to take new pages."""
# Operations that every rank calls with as many elements.
_SAME_SIZES = ("all_reduce", "all_gather", "reduce_scatter", "broadcast", "reduce")

_Kind = tuple[int, int, str, int, tuple[tuple[int, ...], ...], tuple[tuple[int, ...], ...]]
"""What is alike in calls of one kind: of a `Collective` from `elements_in` to `sizes_out`."""


@dataclass(slots=True)
class Group:
    """A process group: its name, description, and global ranks."""

    name: str
    description: str
    ranks: tuple[int, ...]

    @property
    def title(self) -> str:
        """The description, or the name where the script gave none."""
        return self.description if self.description != "undefined" else self.name


@dataclass(slots=True)
class Collective:
    """One collective, or one send or receive, of this rank.

    `seq` counts the group's collectives from 1, `p2p_seq` its messages from `src` to `dst`; the other is
    0. Elements are those of this rank's input and output; `item_bytes` of one element. Times are ns since
    the epoch; `completed_ns` is None while it runs, `started_ns` (on the device) where it is not recorded. `src`, `dst`
    are global ranks.
    """

    op: str
    group: Group
    seq: int
    p2p_seq: int
    elements_in: int
    elements_out: int
    dtype: str
    item_bytes: int
    sizes_in: Sequence[Sequence[int]]
    sizes_out: Sequence[Sequence[int]]
    src: int | None
    dst: int | None
    issued_ns: int
    started_ns: int | None = None
    completed_ns: int | None = None
    error: str | None = None

    @property
    def identity(self) -> tuple[Any, ...]:
        """The same of one operation whenever it is looked at."""
        return self.group.name, self.op, self.seq, self.issued_ns

    @property
    def is_p2p(self) -> bool:
        """Whether this is a send or a receive."""
        return self.op in ("send", "recv")

    @property
    def bytes(self) -> int:
        """Of the whole array, as nccl-tests counts: the larger of input and output.

        A rank that is not the root of a gather or scatter holds one piece of as many as there are ranks.
        """
        pieces = {"gather": self.elements_in, "scatter": self.elements_out}.get(self.op, 0) * len(self.group.ranks)
        return max(self.elements_in, self.elements_out, pieces) * self.item_bytes

    @property
    def called(self) -> str:
        """What must agree on all ranks of the group."""
        elements = self.elements_in or self.elements_out
        if self.op not in _SAME_SIZES or not elements:
            return self.op
        return f"{self.op} of {elements:,} {dtype_name(self.dtype)}"

    def __str__(self) -> str:
        if self.is_p2p:
            return f"{self.op} #{self.p2p_seq} from rank {self.src} to rank {self.dst} in group {self.group.title}"
        return f"{self.op} #{self.seq} of group {self.group.title}"


@dataclass
class CollectiveLog:
    """The collectives of this process: all since the last `drain`, those pending, and the latest."""

    capacity: int = 2000
    groups: dict[str, Group] = field(default_factory=dict)
    latest: deque[Collective] = field(default_factory=deque)
    on_issue: Callable[[Collective], None] | None = None
    """Called with each collective before it is made."""
    _new: list[Collective] = field(default_factory=list)
    _futures: list[tuple[Collective, end_stamp.Note, Any]] = field(default_factory=list)
    """Running ones, with where their end will be noted. A future goes as it is seen to be done, at a step, a look of
    the hang watch, or a call when they hold much: until then it holds its result."""
    _held_bytes: int = 0
    _notes: list[end_stamp.Note] = field(default_factory=list)
    """Those of futures that are gone, for the next ones."""
    _sequence: defaultdict[tuple[Any, ...], int] = field(default_factory=lambda: defaultdict(int))
    _kinds: dict[tuple[Any, ...], _Kind] = field(default_factory=dict)
    """By operation, group, type and shapes."""
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def add_group(self, group: Group) -> None:
        """A group has been made. One of the same name may have been destroyed before: counting restarts."""
        with self._lock:
            self.groups[group.name] = group
            self._kinds.clear()
            for key in [key for key in self._sequence if key[0] == group.name]:
                del self._sequence[key]

    def issue(self, op: str, group: Group, inputs: Any, outputs: Any, peer: int | None) -> Collective:
        """Log a call that is about to be made; `peer` is the other rank of a send or receive."""
        tensors_in = tensors(inputs)
        tensors_out = tensors_in if outputs is inputs else tensors(outputs)
        first = (tensors_in or tensors_out or [None])[0]
        key = (op, group.name, None if first is None else first.dtype,
               tuple([one.shape for one in tensors_in]), tuple([one.shape for one in tensors_out]))  # fmt: skip
        src = dst = None
        if p2p := op in ("send", "recv"):
            src, dst = (self.rank, peer) if op == "send" else (peer, self.rank)
        with self._lock:
            if self._holds_much() and self._futures[0][1].stamp[0]:  # the oldest has ended
                self._settle()
            kind = self._kinds.get(key)
            if kind is None:
                if len(self._kinds) >= MOST_KINDS:
                    self._kinds.clear()
                kind = self._kinds[key] = _kind(tensors_in, tensors_out, first)
            seq = 0 if p2p else self._next(group.name)
            # A receive from any source is counted once its sender is known.
            p2p_seq = self._next(group.name, src, dst) if p2p and src is not None else 0
            entry = Collective(op, group, seq, p2p_seq, *kind, src, dst, time.time_ns())
            self._new.append(entry)
            self.latest.append(entry)
            while len(self.latest) > self.capacity:
                self.latest.popleft()
        if self.on_issue is not None:
            self.on_issue(entry)
        return entry

    def completes_with(self, entry: Collective, future: Any) -> None:
        """Its end is that of a future."""
        with self._lock:
            note = self._notes.pop() if self._notes else end_stamp.Note()
            self._futures.append((entry, note, future))
            self._held_bytes += entry.elements_out * entry.item_bytes
        future.add_done_callback(note.write)

    def _holds_much(self) -> bool:
        return self._held_bytes > HELD_BYTES or len(self._futures) >= HELD_RESULTS

    def _settle(self) -> None:
        """Take the ends that futures have noted, and whether they failed."""
        if not self._futures:
            return
        running, ended = [], []
        for one in self._futures:
            entry, note, future = one
            seconds, ns = note.stamp
            if not seconds:
                running.append(one)
                continue
            if entry.completed_ns is None:
                entry.completed_ns = seconds * 1_000_000_000 + ns
                entry.error = _failure(future)
            self._held_bytes -= entry.elements_out * entry.item_bytes
            note.stamp[0] = 0
            self._notes.append(note)
            ended.append(future)
        self._futures = running
        del one, future
        self._let_go(ended)

    def _let_go(self, futures: list[Any]) -> None:
        """Free results that nobody else holds by now. It takes longer than all else of an end, but whoever holds a
        result last does it: without us, the job."""
        futures.clear()

    def name_source(self, entry: Collective, src: int) -> None:
        """A receive from any source turned out to be from `src`."""
        with self._lock:
            entry.src, entry.p2p_seq = src, self._next(entry.group.name, src, entry.dst)

    def _next(self, *key: object) -> int:
        self._sequence[key] += 1
        return self._sequence[key]

    def complete(self, entry: Collective, error: str | None = None) -> None:
        """Mark it completed, or failed with `error`; a second call is ignored."""
        now = time.time_ns()
        with self._lock:
            if entry.completed_ns is None:
                entry.completed_ns, entry.error = now, error

    def pending(self) -> list[Collective]:
        """Those issued and not completed, oldest first."""
        with self._lock:
            self._settle()
            return [entry for entry in self._new if entry.completed_ns is None]

    def recent(self) -> list[Collective]:
        """The latest, oldest first."""
        with self._lock:
            self._settle()
            return list(self.latest)

    def last(self) -> Collective | None:
        """The latest."""
        with self._lock:
            self._settle()
            return self.latest[-1] if self.latest else None

    def drain(self) -> list[Collective]:
        """Remove and return the completed ones in order, up to the first still running."""
        with self._lock:
            self._settle()
            done = 0
            while done < len(self._new) and self._new[done].completed_ns is not None:
                done += 1
            drained, self._new = self._new[:done], self._new[done:]
            return drained

    def undrained(self) -> list[Collective]:
        """What `drain` has not returned yet, in order of issue, running ones included."""
        with self._lock:
            self._settle()
            return list(self._new)

    def running(self) -> bool:
        """Whether a collective, not a send or receive, has not completed."""
        return any(not entry.is_p2p for entry in self.pending())

    @property
    def rank(self) -> int:
        """This process's rank in the world."""
        import torch.distributed as dist

        return dist.get_rank() if dist.is_initialized() else 0


def _kind(tensors_in: Sequence[Any], tensors_out: Sequence[Any], first: Any) -> _Kind:
    return (
        sum(one.numel() for one in tensors_in),
        sum(one.numel() for one in tensors_out),
        str(first.dtype).removeprefix("torch.") if first is not None else "",
        first.element_size() if first is not None else 0,
        tuple(tuple(one.shape) for one in tensors_in),
        tuple(tuple(one.shape) for one in tensors_out),
    )


def _failure(future: Any) -> str | None:
    try:
        future.value()
    except Exception as error:
        return first_line(error)
    return None


def first_line(error: BaseException) -> str:
    """What it says, in a line."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


def tensors(values: Any) -> list[Any]:
    """The tensors in an argument: one, a list of them, or a list of lists."""
    if type(values) is list and len(values) == 1 and hasattr(values[0], "numel"):  # as nearly all calls have it
        return values
    if hasattr(values, "numel"):
        return [values]
    if isinstance(values, Iterable) and not isinstance(values, str | bytes):
        return [tensor for value in values for tensor in tensors(value)]
    return []


LOG = CollectiveLog()

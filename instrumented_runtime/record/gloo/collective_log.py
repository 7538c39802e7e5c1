"""Log of this process's collectives: what was called, when, and whether it completed."""

from __future__ import annotations

import time
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import count, takewhile
from operator import attrgetter
from typing import Any

from gpuscope.native import note_end
from gpuscope.trace.naming.dtypes import dtype_name

MOST_KINDS = 1000
"""Kinds of calls that are remembered."""
# Operations that every rank calls with as many elements.
_SAME_SIZES = ("all_reduce", "all_gather", "reduce_scatter", "broadcast", "reduce")

_shape, _dtype, _completed = attrgetter("shape"), attrgetter("dtype"), attrgetter("completed_ns")


@dataclass(slots=True)
class Kind:
    """What is alike in calls of one kind, made once."""

    fields: tuple[int, int, str, int, tuple[tuple[int, ...], ...], tuple[tuple[int, ...], ...]]
    """Of a `Collective` from `elements_in` to `sizes_out`."""
    told: bytes = b""
    """As `last_calls` writes it."""


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
        elements = max(self.elements_in, self.elements_out)
        if self.op in ("gather", "scatter"):
            pieces = self.elements_in if self.op == "gather" else self.elements_out
            elements = max(elements, pieces * len(self.group.ranks))
        return elements * self.item_bytes

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
    """The collectives of this process: all since the last `drain`, those pending, and the latest.

    Called from any thread, without a lock: what changes does so in one step of the interpreter. Only one may `drain`.
    """

    capacity: int = 2000
    groups: dict[str, Group] = field(default_factory=dict)
    latest: deque[Collective] = field(default_factory=deque)
    on_issue: Callable[[Collective, Kind], None] | None = None
    """Called with each collective before it is made."""
    _new: list[Collective] = field(default_factory=list)
    _sequence: defaultdict[str | tuple[Any, ...], count[int]] = field(
        default_factory=lambda: defaultdict(partial(count, 1))
    )
    """By group; of messages by group, sender and receiver."""
    _kinds: dict[tuple[Any, ...], Kind] = field(default_factory=dict)
    """By operation, group, type and shapes."""

    def add_group(self, group: Group) -> None:
        """A group has been made. One of the same name may have been destroyed before: counting restarts."""
        self.groups[group.name] = group
        self._kinds.clear()
        for key in list(self._sequence):  # another thread may add to it meanwhile
            if group.name == (key if isinstance(key, str) else key[0]):
                self._sequence.pop(key, None)

    def issue(self, op: str, group: Group, inputs: Any, outputs: Any, peer: int | None) -> Collective:
        """Log a call that is about to be made; `peer` is the other rank of a send or receive.

        Other work has driven all that this touches out of the caches: the less, the better.
        """
        key = _key(op, group.name, inputs, outputs)
        kind = self._kinds.get(key)
        if kind is None:
            if len(self._kinds) >= MOST_KINDS:
                self._kinds.clear()
            kind = self._kinds[key] = _kind(tensors(inputs), tensors(outputs))
        seq = p2p_seq = 0
        src = dst = None
        if op in ("send", "recv"):
            src, dst = (self.rank, peer) if op == "send" else (peer, self.rank)
            if src is not None:  # a receive from any source is counted once its sender is known
                p2p_seq = next(self._sequence[group.name, src, dst])
        else:
            seq = next(self._sequence[group.name])
        entry = Collective(op, group, seq, p2p_seq, *kind.fields, src, dst, time.time_ns())
        self._new.append(entry)
        self.latest.append(entry)
        if len(self.latest) > self.capacity:
            self.latest.popleft()
        if self.on_issue is not None:
            self.on_issue(entry, kind)
        return entry

    def completes_with(self, entry: Collective, future: Any) -> None:
        """Its end is that of a future, held no longer: the job may want the result's memory back. Held until then, it
        spares gloo's thread another object."""
        future.add_done_callback(partial(note_end, entry, _failed, future))

    def name_source(self, entry: Collective, src: int) -> None:
        """A receive from any source turned out to be from `src`."""
        entry.src, entry.p2p_seq = src, next(self._sequence[entry.group.name, src, entry.dst])

    def complete(self, entry: Collective, error: str | None = None) -> None:
        """Mark it completed, or failed with `error`; a second call is ignored."""
        if entry.completed_ns is None:
            entry.completed_ns, entry.error = time.time_ns(), error

    def pending(self) -> list[Collective]:
        """Those issued and not completed, oldest first."""
        return [entry for entry in self.undrained() if entry.completed_ns is None]

    def recent(self) -> list[Collective]:
        """The latest, oldest first."""
        return list(self.latest)

    def last(self) -> Collective | None:
        """The latest."""
        return self.latest[-1] if self.latest else None

    def drain(self) -> list[Collective]:
        """Remove and return the completed ones in order, up to the first still running."""
        drained = list(takewhile(_completed, self._new))
        del self._new[: len(drained)]
        return drained

    def undrained(self) -> list[Collective]:
        """What `drain` has not returned yet, in order of issue, running ones included."""
        return list(self._new)

    def running(self) -> bool:
        """Whether a collective, not a send or receive, has not completed."""
        return any(not entry.is_p2p for entry in self.pending())

    @property
    def rank(self) -> int:
        """This process's rank in the world."""
        import torch.distributed as dist

        return dist.get_rank() if dist.is_initialized() else 0


def _key(op: str, group: str, inputs: Any, outputs: Any) -> tuple[Any, ...]:
    """What calls of one kind have alike."""
    # First as most calls have it: a list of one, or two tensors.
    if inputs is outputs and _is_one(inputs):
        return op, group, inputs[0].dtype, inputs[0].shape
    if hasattr(inputs, "shape") and hasattr(outputs, "shape"):
        return op, group, inputs.dtype, inputs.shape, outputs.shape
    given, made = tensors(inputs), tensors(outputs)
    return op, group, *map(_dtype, given[:1] or made[:1]), tuple(map(_shape, given)), tuple(map(_shape, made))


def _kind(given: Sequence[Any], made: Sequence[Any]) -> Kind:
    first = (*given, *made, None)[0]
    return Kind((
        sum(one.numel() for one in given),
        sum(one.numel() for one in made),
        str(first.dtype).removeprefix("torch.") if first is not None else "",
        first.element_size() if first is not None else 0,
        tuple(tuple(one.shape) for one in given),
        tuple(tuple(one.shape) for one in made),
    ))  # fmt: skip


def _failed(entry: Collective, error: BaseException) -> None:
    entry.error = first_line(error)


def first_line(error: BaseException) -> str:
    """What it says, in a line."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


def tensors(values: Any) -> list[Any]:
    """The tensors in an argument: one, a list of them, or a list of lists."""
    if _is_one(values):
        return values  # type: ignore[no-any-return]
    if hasattr(values, "numel"):
        return [values]
    if isinstance(values, Iterable) and not isinstance(values, str | bytes):
        return [tensor for value in values for tensor in tensors(value)]
    return []


def _is_one(values: Any) -> bool:
    """Whether this is a list of one tensor."""
    return type(values) is list and len(values) == 1 and hasattr(values[0], "numel")


LOG = CollectiveLog()

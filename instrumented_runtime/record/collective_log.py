"""Log of this process's collectives: what was called, when, and whether it completed."""

from __future__ import annotations

import json
import threading
import time
from collections import defaultdict, deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import count, takewhile
from mmap import mmap
from operator import attrgetter
from struct import Struct
from typing import Any, NamedTuple

from gpuscope.native import note_issue
from gpuscope.trace.name_pool import dtype_name

MOST_KINDS = 1000
"""Kinds of calls that are remembered."""
# Operations that every rank calls with as many elements.
_SAME_SIZES = ("all_reduce", "all_gather", "reduce_scatter", "broadcast", "reduce")

_shape, _dtype, _completed = attrgetter("shape"), attrgetter("dtype"), attrgetter("completed_ns")


PAGE = 1 << 16
"""Bytes of what `last_calls` keeps: `LAST`, and the kinds of calls as they were first made, each ending in a zero."""
LAST = Struct("=qqq")
"""Of the last call: where its kind is, and what is its own…"""
OWN = ("seq", "issued_ns")
"""… namely these."""


Issue = tuple[int, int, int]
"""When a thread called: wall clock, its CPU time, and its number."""


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
    """The collectives of this process: all since the last `drain`, and the latest before it.

    Called from any thread, without a lock: what changes does so in one step of the interpreter. Only one may `drain`.
    """

    groups: dict[str, Group] = field(default_factory=dict)
    latest: deque[Collective] = field(default_factory=lambda: deque(maxlen=2000))
    page: mmap | None = None
    """Where the last call is written, if anywhere, before it is made (`last_calls`)."""
    issues: list[Issue] | None = None
    """Each call is added here, if anywhere."""
    _new: list[Collective] = field(default_factory=list)
    _sequence: defaultdict[str | tuple[Any, ...], count[int]] = field(
        default_factory=lambda: defaultdict(partial(count, 1))
    )
    """By group; of messages by group, sender and receiver."""
    _kinds: dict[tuple[Any, ...], _Kind] = field(default_factory=dict)
    """By operation, group, type and shapes."""

    def __post_init__(self) -> None:
        self.keep(self.page, self.issues)

    def keep_latest(self, many: int) -> None:
        """So many instead."""
        self.latest = deque(self.latest, maxlen=many)

    def keep(self, page: mmap | None, issues: list[Issue] | None) -> None:
        """Write and add each further call there."""
        self.page, self.issues, self._free = page, issues, LAST.size
        self._kinds.clear()
        self._core = self._kinds, self._new, Collective, page, issues

    def add_group(self, group: Group) -> None:
        """A group has been made. One of the same name may have been destroyed before: counting restarts."""
        self.groups[group.name] = group
        self._kinds.clear()
        for key in list(self._sequence):  # another thread may add to it meanwhile
            if group.name == (key if isinstance(key, str) else key[0]):
                self._sequence.pop(key, None)

    def issue(self, op: str, group: Group, inputs: Any, outputs: Any, peer: int | None) -> Collective:
        """Log a call that is about to be made; `peer` is the other rank of a send or receive.

        Other work has driven all that this touches out of the caches: the less, the better. So the core does it for the
        usual calls, from their second on.
        """
        logged: Collective | None = note_issue(self._core, op, group, inputs, outputs)
        if logged is not None:
            return logged
        key = _key(op, group.name, inputs, outputs)
        kind = self._kinds.get(key)
        given = kind.fields if kind is not None else _fields(tensors(inputs), tensors(outputs))
        seq = p2p_seq = 0
        src = dst = None
        numbers = None
        if op in ("send", "recv"):
            src, dst = (self.rank, peer) if op == "send" else (peer, self.rank)
            if src is not None:  # a receive from any source is counted once its sender is known
                p2p_seq = next(self._sequence[group.name, src, dst])
        else:
            numbers = self._sequence[group.name]
            seq = next(numbers)
        entry = Collective(op, group, seq, p2p_seq, *given, src, dst, time.time_ns())
        if kind is None:
            if len(self._kinds) >= MOST_KINDS:
                self._kinds.clear()
            place = self._written(entry)
            kind = self._kinds[key] = _Kind(given, numbers, place)
        self._new.append(entry)
        if self.issues is not None:
            self.issues.append((entry.issued_ns, time.thread_time_ns(), threading.get_ident()))
        if self.page is not None and not entry.is_p2p:
            LAST.pack_into(self.page, 0, kind.place, seq, entry.issued_ns)
        return entry

    def _written(self, entry: Collective) -> int:
        """Where the call's kind is in the page now. A full one is begun anew."""
        if self.page is None or entry.is_p2p:
            return 0
        told = encoded(entry)
        if self._free + len(told) > PAGE:
            self._kinds.clear()
            self._free = LAST.size
        place, self._free = self._free, self._free + len(told)
        self.page[place : self._free] = told
        return place

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
        return [*self.latest, *self._new][-(self.latest.maxlen or 0) :]

    def last(self) -> Collective | None:
        """The latest."""
        found = self._new[-1:] or self.latest
        return found[-1] if found else None

    def drain(self) -> list[Collective]:
        """Remove and return the completed ones in order, up to the first still running."""
        drained = list(takewhile(_completed, self._new))
        self.latest += drained
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


_Fields = tuple[int, int, str, int, tuple[tuple[int, ...], ...], tuple[tuple[int, ...], ...]]
"""Of a `Collective` from `elements_in` to `sizes_out`."""


class _Kind(NamedTuple):
    """What is alike in calls of one kind, made once."""

    fields: _Fields
    numbers: count[int] | None
    """Of the group's collectives; messages have others."""
    place: int
    """Where it is in the page."""


def _fields(given: Sequence[Any], made: Sequence[Any]) -> _Fields:
    first = (*given, *made, None)[0]
    return (
        sum(one.numel() for one in given),
        sum(one.numel() for one in made),
        str(first.dtype).removeprefix("torch.") if first is not None else "",
        first.element_size() if first is not None else 0,
        tuple(tuple(one.shape) for one in given),
        tuple(tuple(one.shape) for one in made),
    )


def encoded(entry: Collective) -> bytes:
    """The call but for what is its own; of many ranks or tensors less."""
    told = _encoded(entry, entry.group.ranks, entry.sizes_in, entry.sizes_out)
    if len(told) > PAGE // 16:
        told = _encoded(entry, (), [[entry.elements_in]], [[entry.elements_out]])
    return told


def _encoded(
    entry: Collective, ranks: tuple[int, ...], sizes_in: Sequence[Sequence[int]], sizes_out: Sequence[Sequence[int]]
) -> bytes:
    alike = {name: getattr(entry, name) for name in Collective.__slots__ if name not in ("group", *OWN)}
    fields = alike | {"sizes_in": sizes_in, "sizes_out": sizes_out}
    return json.dumps([[entry.group.name, entry.group.description, ranks], fields]).encode() + b"\0"


def failed(entry: Collective, error: BaseException) -> None:
    """Keep what its error says."""
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

"""Who waited in what until its time was up, by torch's watchdogs and gloo, and which ranks all of these waited for.

A watchdog names its own rank, the operation and how far it had got, never the rank that is missing. That follows from
who does not report, from the size of the group, and from who waits in another group's operation meanwhile.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import field
from math import gcd

from gpuscope import when_used
from gpuscope.analyzers.hangs.evidence import Evidence, Waited
from gpuscope.analyzers.hangs.rank_states import Job
from gpuscope.analyzers.hangs.wait_graph import SAME_SIZES
from gpuscope.catalogue import hang_sentences as words
from gpuscope.catalogue.findings.hangs import rank_list
from gpuscope.schema.memory_section import HangCause, HangOperation, HangSign
from gpuscope.trace.kinds import collective_op
from gpuscope.when_used import dataclass

# What torch's message on a lack of device memory says: a real shortage, fragments, or another process's memory.

_AMOUNT = r"(\d+(?:\.\d+)?) (bytes|[KMGT]iB)"
_ASKED = when_used.pattern(rf"Tried to allocate {_AMOUNT}")
_TOTAL = when_used.pattern(rf"total capacity of {_AMOUNT}|{_AMOUNT} total capacity")
_FREE = when_used.pattern(rf"of which {_AMOUNT} is free|{_AMOUNT} free;")
_ALLOCATED = when_used.pattern(rf"{_AMOUNT} is allocated by PyTorch|{_AMOUNT} already allocated")
_UNUSED = when_used.pattern(rf"{_AMOUNT} is reserved by PyTorch but unallocated")
_RESERVED = when_used.pattern(rf"{_AMOUNT} reserved in total by PyTorch")
_OTHERS = when_used.pattern(rf"(?<!this )[Pp]rocess (?:\d+ )?has {_AMOUNT} memory in use")
_OWN = when_used.pattern(rf"this process has {_AMOUNT} memory in use")
_VARIABLE = when_used.pattern(r"PYTORCH_(?:\w+_)?ALLOC_CONF")
_BYTES = {"bytes": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40}
FRAGMENTS = 1 / 50
"""Share of the device from which memory that is reserved and not allocated is worth having: less is the rounding of
blocks, and the next request fails though this one would fit."""
MUCH = 1 / 20
"""Share of the device from which another process's memory is the first thing to look at."""


@dataclass(frozen=True)
class Shortage:
    """Bytes, as the message has them; `unused` is reserved by torch's allocator and not allocated."""

    asked: int
    unused: int | None
    allocated: int | None
    free: int | None
    total: int | None
    others: int
    """What other processes hold of the device."""
    variable: str
    old: bool
    """Whether the message is of a torch before 2.1."""

    @property
    def fragmented(self) -> bool:
        """Whether what is reserved and not allocated would have been enough, had it been in one piece."""
        if self.unused is None or self.unused < self.asked:
            return False
        return self.unused >= FRAGMENTS * (self.total or (self.allocated or 0) + self.unused)

    @property
    def shared(self) -> bool:
        """Whether other processes hold as much as was lacking, and a good part of the device."""
        return self.others >= max(self.asked - (self.free or 0), MUCH * (self.total or 0), 1)

    def why(self) -> str:
        """What the figures say."""
        asked = _shown(self.asked)
        if self.fragmented and self.unused is not None:
            return f"{asked} were asked for, and {_shown(self.unused)} are reserved by PyTorch but not allocated"
        if self.total and self.asked > self.total:
            return f"{asked} were asked for, more than the device has ({_shown(self.total)})"
        if self.shared:
            return f"{asked} were asked for, and other processes hold {_shown(self.others)} of the device"
        held = "" if self.allocated is None else f", and PyTorch has {_shown(self.allocated)} allocated"
        of = f" of {_shown(self.total)}" if self.total and held else ""
        spare = "" if self.unused is None else f"; only {_shown(self.unused)} more are reserved and not allocated"
        return f"{asked} were asked for{held}{of}{spare}"

    def remedy(self) -> str:
        """What to do first."""
        if self.fragmented:
            since = " (from torch 2.1 on; before, max_split_size_mb:512)" if self.old else ""
            return (
                f"{self.variable}=expandable_segments:True{since}: the memory is there, in fragments; if that does not "
                "help, gpuscope record --memory shows what lies between them"
            )
        if self.shared and not (self.total and self.asked > self.total):
            return "nvidia-smi (rocm-smi) shows the processes on that device; end them, or give each rank its own"
        return (
            "a real shortage, no fragments: a smaller micro-batch, activation checkpointing, sharded states; gpuscope "
            "record --memory shows what holds the memory"
        )


def read(text: str) -> Shortage | None:
    """The figures of a message; None where it has none."""
    asked = _first(_ASKED, text)
    if asked is None:
        return None
    allocated, reserved, unused = (_first(pattern, text) for pattern in (_ALLOCATED, _RESERVED, _UNUSED))
    if unused is None and reserved is not None and allocated is not None:
        unused = max(reserved - allocated, 0)
    others = sum(_bytes(match) for match in _OTHERS.finditer(text)) if _OWN.search(text) else 0
    named = _VARIABLE.search(text)
    variable = named[0] if named else "PYTORCH_HIP_ALLOC_CONF" if "HIP out of" in text else "PYTORCH_CUDA_ALLOC_CONF"
    return Shortage(
        asked, unused, allocated, _first(_FREE, text), _first(_TOTAL, text), others, variable, reserved is not None
    )


def _shown(nbytes: int) -> str:
    """As torch prints it, so that the figure is found again in the message."""
    unit = next((unit for unit in ("GiB", "MiB", "KiB") if nbytes >= _BYTES[unit]), "bytes")
    return f"{nbytes} bytes" if unit == "bytes" else f"{nbytes / _BYTES[unit]:.2f} {unit}"


def _first(pattern: re.Pattern[str], text: str) -> int | None:
    match = pattern.search(text)
    return None if match is None else _bytes(match)


def _bytes(match: re.Match[str]) -> int:
    number, unit = [group for group in match.groups() if group is not None][:2]
    return round(float(number) * _BYTES[unit])


_GATHERS, _SCATTERS = ("all_gather",), ("reduce_scatter",)
"""Operations whose output, or input, is as many times the other as the group has ranks."""
_DEFAULT = ("0", "default_pg")
LARGEST_GROUP = 1 << 17


@dataclass(frozen=True)
class Stalled:
    """An operation that ranks waited in until their time was up. `size` is the number of its group's members, None
    where nothing tells it."""

    group: str
    seq: int | None
    op: str
    waiting: frozenset[int]
    size: int | None = None
    behind: frozenset[int] = frozenset()
    """Members that had enqueued fewer operations of the group."""
    passed: frozenset[int] = frozenset()
    """Members that had completed it."""
    calls: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    """What the ranks called, where that differs."""

    @property
    def title(self) -> str:
        """`all_reduce 57 of group 0 (default_pg)`."""
        number = "" if self.seq is None else f" {self.seq}"
        return f"{self.op}{number}" + (f" of group {self.group}" if self.group else "")

    @property
    def of_all(self) -> bool:
        """Whether its group is that of the whole job, as far as lines tell."""
        name, _, described = self.group.partition(" ")
        return not self.group or name == _DEFAULT[0] or described.strip("()") == _DEFAULT[1]


@dataclass(frozen=True)
class Awaited:
    """Ranks that the waiting ones waited for, or may have."""

    stalled: Sequence[Stalled]
    causes: Sequence[HangCause]
    absent: frozenset[int] = frozenset()
    """Ranks that left no log here, or none that tells, and are not named."""

    @property
    def waiting(self) -> set[int]:
        """Every rank that waited."""
        return {rank for one in self.stalled for rank in one.waiting}


def stalled(evidence: Evidence) -> list[Stalled]:
    """Each operation in which ranks waited, that of most ranks first."""
    own = [one for one in evidence.waited if one.told_by != "signal"]
    reported = {one.rank for one in own}
    named = {(one.seq, one.op): one.group for one in own if one.group}
    groups: dict[tuple[str, int | None, str], list[Waited]] = defaultdict(list)
    for one in own:
        group = one.group or named.get((one.seq, one.op), "")
        # Of one number the ranks may have called different things; without numbers an operation's name must do.
        groups[group, one.seq, one.op if one.seq is None else ""].append(one)
    found = [_stalled(evidence, group, seq, members) for (group, seq, _), members in groups.items()]
    others = {one.rank for one in evidence.waited} - reported
    if others:  # ranks that another rank's log names
        found.append(Stalled("", None, "a collective", frozenset(others)))
    return sorted(found, key=lambda one: (-len(one.waiting), one.group, one.seq or 0))


def _stalled(evidence: Evidence, group: str, seq: int | None, own: Sequence[Waited]) -> Stalled:
    progress = [one for one in evidence.progress if one.told_by == "watchdog" and one.group in ("", group)]
    waiting = {one.rank for one in own}
    behind: set[int] = set()
    passed: set[int] = set()
    for one in progress if seq is not None else ():
        if one.rank is None or one.launched is None or (not one.group and group and one.rank not in waiting):
            continue
        if one.launched < (seq or 0):
            behind.add(one.rank)
        elif one.completed is not None:
            # A rank that has enqueued the operation waits, however far others have enqueued.
            (waiting if one.completed < (seq or 0) else passed).add(one.rank)
    ops = Counter(_op(one.op) for one in own)
    calls: dict[str, list[int]] = defaultdict(list)
    for call in own:
        sizes = f" of {call.numel_in} elements" if _op(call.op) in SAME_SIZES and call.numel_in is not None else ""
        calls[_op(call.op) + (sizes if len(ops) == 1 else "")].append(call.rank)
    op, size = ops.most_common(1)[0][0], _size(own)
    different = {call: tuple(sorted(set(ranks))) for call, ranks in calls.items()} if len(calls) > 1 else {}
    sets = frozenset(waiting), size, frozenset(behind - waiting), frozenset(passed - waiting)
    return Stalled(group, seq, op, *sets, different)


def _op(name: str) -> str:
    return collective_op(name) or name.lower().strip("_")


def _size(own: Iterable[Waited]) -> int | None:
    """Members of the group, by what a gather or scatter makes of its input on every rank alike."""
    sizes: set[int] = set()
    for one in own:
        into, out = one.numel_in, one.numel_out
        if _op(one.op) in _SCATTERS:
            into, out = out, into
        elif _op(one.op) not in _GATHERS:
            return None
        if not into or not out or out % into or not 1 < out // into <= LARGEST_GROUP:
            return None
        sizes.add(out // into)
    return sizes.pop() if len(sizes) == 1 else None


def awaited(job: Job, evidence: Evidence) -> Awaited:
    """The ranks waited for, the likeliest kind alone: one that enqueued less, one whose watchdog stands still, one that
    reports nothing, one that waits in another group's operation."""
    found = stalled(evidence)
    waiting = {rank for one in found for rank in one.waiting}
    stuck = evidence.stuck()
    absent: frozenset[int] = frozenset()
    behind = {rank: one for one in found for rank in one.behind if rank not in waiting}
    causes: list[HangCause] = list(_mismatched(found))
    if not causes:
        causes = [_behind(rank, one, evidence) for rank, one in sorted(behind.items()) if rank not in stuck]
        causes += [_stuck(rank, sign, found) for rank, sign in sorted(stuck.items())]
    if not causes and found:
        missing = _missing(job, evidence, found)
        silent = {rank: one for rank, one in missing.items() if rank not in waiting}
        with_log = {rank: one for rank, one in silent.items() if rank in evidence.last_lines}
        if with_log or len(silent) <= len(waiting):  # else the logs of most ranks are missing
            causes = [_silent(rank, one, evidence) for rank, one in sorted((with_log or silent).items())]
        absent = frozenset(silent)
    if not causes and found:
        causes = list(_elsewhere(found, evidence))
    return Awaited(found, causes, absent - {cause["rank"] for cause in causes})


def _mismatched(found: Sequence[Stalled]) -> Iterator[HangCause]:
    """Ranks that waited in another operation, or one of another size, under the same number."""
    for one in found:
        most = max(one.calls.values(), key=len, default=())
        majority = 2 * len(most) > sum(map(len, one.calls.values()))
        for called, ranks in one.calls.items():
            if ranks is most and majority:
                continue
            others = "; ".join(f"{rank_list(own)}: {other}" for other, own in one.calls.items() if other != called)
            number = (
                "" if one.seq is None else f" as number {one.seq}" + (f" of group {one.group}" if one.group else "")
            )
            for rank in ranks:
                why = words.called_elsewhere(called, number, others)
                yield {"rank": rank, "kind": "mismatch", "certain": majority, "why": why, "remedy": words.MISMATCH}


def _behind(rank: int, one: Stalled, evidence: Evidence) -> HangCause:
    own = [
        p.launched
        for p in evidence.progress
        if p.rank == rank and p.group in ("", one.group) and p.launched is not None
    ]
    why = words.enqueued_less(max(own, default=0), one.title, one.waiting)
    return {"rank": rank, "kind": "behind", "certain": True, "why": why + _last_line(rank, evidence)}


def _stuck(rank: int, sign: HangSign, found: Sequence[Stalled]) -> HangCause:
    waits = max(found, key=lambda one: len(one.waiting), default=None)
    why = words.watchdog_stuck(sign["text"], None if waits is None else (waits.waiting, waits.title))
    return {
        "rank": rank,
        "kind": "watchdog_stuck",
        "certain": False,
        "why": why,
        "reason": "blocked_call",
        "reason_certain": False,
        "place": None,
        "remedy": words.REMEDIES["blocked_call"],
    }


def _silent(rank: int, one: Stalled, evidence: Evidence) -> HangCause:
    why = words.silent(one.waiting, one.title, one.op) + _last_line(rank, evidence)
    return {"rank": rank, "kind": "silent", "certain": False, "why": why, "remedy": words.SILENT}


def _last_line(rank: int, evidence: Evidence) -> str:
    sign = evidence.last_lines.get(rank)
    return "" if sign is None else words.last_line(sign["text"], sign["file"], sign["line"])


def _elsewhere(found: Sequence[Stalled], evidence: Evidence) -> Iterator[HangCause]:
    """Ranks in another group's operation while their peers wait in one that they never came to. Where as many wait
    there as here, none of them is the one at fault rather than the others."""
    everyone = frozenset(rank for one in found for rank in one.waiting)
    for one in found:
        others = everyone - one.waiting
        both = len(found) == 2 and evidence.ranks == everyone  # nothing else is known of the job
        members = everyone if both else next(_blocks(one, others), None)
        missing = others if members is None else members - one.waiting
        if members is None or not missing:
            continue
        ring = len(missing) >= len(one.waiting)
        for rank in sorted(missing | (one.waiting if ring else frozenset())):
            own = one if ring and rank in one.waiting else _of(rank, found)
            other = next(stall for stall in found if rank not in stall.waiting) if ring else one
            why = words.other_group(own.title, other.waiting, other.title) + _last_line(rank, evidence)
            yield {
                "rank": rank,
                "kind": "circular" if ring else "other_group",
                "certain": False,
                "why": why,
                "remedy": words.CIRCULAR,
            }
        return


def _of(rank: int, found: Sequence[Stalled]) -> Stalled:
    return next(one for one in found if rank in one.waiting)


def _missing(job: Job, evidence: Evidence, found: Sequence[Stalled]) -> dict[int, Stalled]:
    """Members that did not come to an operation, as far as they are known; of several operations, that of most."""
    reporting = evidence.ranks | set(job.ranks)
    size = max(job.world_size or 0, evidence.job_size)
    missing: dict[int, Stalled] = {}
    for one in found:
        for rank in sorted(_members(job, one, reporting, size) - one.waiting - one.passed):
            missing.setdefault(rank, one)
    return missing


def _members(job: Job, one: Stalled, known: Collection[int], size: int) -> set[int]:
    """Members of an operation's group: as dumps list them; of the whole job all ranks; else by the group's size."""
    listed = job.members.get(one.group.partition(" ")[0])
    if listed and one.group.partition(" ")[0] not in job.members_unknown:
        return set(listed)
    top = min(max([*known, *one.waiting]) + 1, LARGEST_GROUP)
    size = min(size, LARGEST_GROUP)
    if one.of_all and (one.size is None or one.size >= top):
        return set(range(max(one.size or size, top)))
    if one.size is not None:
        if len(one.waiting) >= one.size:
            return set(one.waiting)
        silent = frozenset(known) - one.waiting
        block = next(_blocks(one, silent), None) or next(_blocks(one, frozenset(range(top + one.size))), None)
        if block is not None:
            return set(block)
        return set(one.waiting) | (silent if len(silent) + len(one.waiting) == one.size else set())
    # Nothing tells the members: a rank that has a log and does not report may be one.
    return set(one.waiting) | set(known)


def _blocks(one: Stalled, others: frozenset[int]) -> Iterator[frozenset[int]]:
    """Groups as frameworks lay them out (every d-th rank, beginning where a group of that size can) that hold all who
    wait and else only some of `others`: powers of two first, then the smallest."""
    ranks = sorted(one.waiting)
    steps = gcd(*(rank - ranks[0] for rank in ranks[1:])) if len(ranks) > 1 else 1
    most = one.size or len(ranks) + len(others)
    sizes = range(one.size or len(ranks) + 1, most + 1)
    for size in sorted(sizes, key=lambda size: (size & (size - 1) != 0, size)):
        for step in sorted({step for step in (steps, 1) if step and steps % step == 0}, reverse=True):
            first = ranks[0] // (step * size) * (step * size) + ranks[0] % step
            block = frozenset(range(first, first + step * size, step))
            if one.waiting <= block and block - one.waiting <= others:
                yield block


def operations(found: Awaited, first: Collection[int]) -> list[HangOperation]:
    """The operations waited in, as the report lists them, by whom and for which of the first causes."""
    return [
        {
            "op": one.op,
            "group": one.group,
            "description": None,
            "seq": one.seq or 0,
            "waiting": sorted(one.waiting - set(first)),
            "awaited": sorted(set(one.behind or first) - one.waiting),
            "reason": "absent" if one.behind else "unknown",
        }
        for one in found.stalled
        if one.waiting - set(first)
    ]

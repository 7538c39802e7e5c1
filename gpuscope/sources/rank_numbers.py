"""Files of one run that each hold some of its processes, without a word on their ranks: one report per node, say.

Their ranks are numbered node by node: by host name, then in the order of the files (definitions: «Ranks of an nsys
file»). Natural order, so that node10 follows node9.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from itertools import combinations
from pathlib import Path
from types import ModuleType
from typing import Protocol, runtime_checkable

from gpuscope.errors import InputError, SeveralRoles, UsageError, install_hint
from gpuscope.sources.source import ReadOptions
from gpuscope.when_used import dataclass

# Folders of jobs of their own, a role each, as trainers for reinforcement learning and disaggregated servers leave
# them (verl: `actor_update/`, `rollout/`, `ref_compute_log_prob/`). Definitions: «Ranks of a file and of a folder».

_WORDS = frozenset(
    {
        "actor",
        "critic",
        "ref",
        "reference",
        "policy",
        "rollout",
        "generator",
        "sampler",
        "reward",
        "rm",
        "trainer",
        "learner",
        "prefill",
        "decode",
    }
)
"""Of roles in verl, OpenRLHF, TRL, NeMo-RL and slime, and of servers that prefill and decode apart."""


@dataclass(frozen=True)
class Chosen:
    """The files of one role."""

    role: str
    gone: frozenset[Path]
    """The timelines of the other roles."""
    others: tuple[str, ...]


def by_role(folder: Path, timelines: Sequence[Path]) -> dict[str, list[Path]]:
    """The timelines below a folder by role; empty unless each lies in a role's folder and there are several roles."""
    found: dict[str, list[Path]] = {}
    for path in timelines:
        role = next((name for name in path.relative_to(folder).parts[:-1] if _is_role(name)), None)
        if role is None:
            return {}
        found.setdefault(role, []).append(path)
    return found if len(found) > 1 else {}


def chosen(folder: Path, timelines: Sequence[Path], role: str | None) -> Chosen | None:
    """The files of the role asked for; None where the folder has no roles and none is asked for.

    Raises `SeveralRoles` where none is asked for, `UsageError` where there is no such role.
    """
    found = by_role(folder, timelines)
    if not found:
        if role is None:
            return None
        raise UsageError(f"{folder}: holds no jobs of several roles", hint="leave --role out")
    if role is None:
        raise SeveralRoles(str(folder), sorted(found))
    if role not in found:
        raise UsageError(f"{folder}: has no role {role!r}", hint=f"its roles: {', '.join(sorted(found))}")
    others = tuple(sorted(set(found) - {role}))
    return Chosen(role, frozenset(path for other in others for path in found[other]), others)


def _is_role(name: str) -> bool:
    return not _WORDS.isdisjoint(re.split(r"[^a-z]+", name.lower()))


# pyarrow, for the sources that need it: imported late, and named with its extra where it is missing.


def require_pyarrow(path: Path, what: str) -> ModuleType:
    """The module. Raises `InputError` naming the extra where it is not installed; `what` is being read."""
    try:
        import pyarrow
    except ImportError as error:
        raise InputError(f"{path}: reading {what} needs pyarrow", hint=install_hint("arrow")) from error
    module: ModuleType = pyarrow
    return module


@dataclass(frozen=True)
class Processes:
    """The processes in a file that did work, as far as can be seen without reading it."""

    pids: frozenset[int]
    ranks: int
    """How many ranks they are where nothing records them: one for each device of each process."""
    rank: int | None = None
    """The rank of the only process, where its environment or the like records it."""
    named: int | None = None
    """The number in the file's name; a local rank where it is not the job's."""
    recorded: bool = False
    """Whether the file will give the ranks of its processes itself once it is read."""
    host: str | None = None
    devices: frozenset[str] = frozenset()
    """UUIDs or PCI addresses of the devices they used."""
    span: tuple[int, int] | None = None
    """First start and last end of the work on devices, ns."""
    dated: bool = False
    """Whether `span` is in UTC, and not since the recording began."""
    events: int = 0
    """Rows of work on devices."""

    def same(self, other: Processes) -> bool:
        """Whether both are of the same processes: of one host or device, and with a process id in common."""
        if not self.pids & other.pids or (None not in (self.rank, other.rank) and self.rank != other.rank):
            return False
        if self.devices and other.devices:
            return bool(self.devices & other.devices)
        if self.host is not None and other.host is not None:
            return self.host == other.host
        return (self.span, self.events) == (other.span, other.events)

    def apart(self, other: Processes) -> bool:
        """Whether one was recorded after the other, by the clock of their host."""
        if not (self.dated and other.dated and self.host is not None and self.host == other.host):
            return False
        one, two = sorted((self.span or (0, 0), other.span or (0, 0)))
        return self.span is not None and other.span is not None and one[1] < two[0]


@runtime_checkable
class HoldsProcesses(Protocol):
    """A source whose files can hold several processes, and need not record their ranks."""

    def processes(self, path: Path, options: ReadOptions) -> Processes | None:
        """The processes in a file; None where it can't be read (reading it will say why)."""
        ...


@dataclass(frozen=True)
class Numbered:
    """What is known of a file's ranks before it is read."""

    rank: int | None
    """Its only rank, where that is recorded."""
    first: int
    """The number of its first rank where none is recorded."""


def number(files: Mapping[Path, Processes]) -> dict[Path, Numbered]:
    """Ranks of the files of one run. Raises `UsageError` where two hold the same processes, or where files without
    ranks were recorded on one host one after the other."""
    for (first, one), (second, other) in combinations(files.items(), 2):
        if one.same(other):
            where = f"of {one.host}" if one.host and one.host == other.host else "of the same devices"
            raise UsageError(
                f"{first} and {second} both hold process {min(one.pids & other.pids)} "
                f"{where if one.host or one.devices else 'and the same work'}",
                hint="name each recording once: a report and its own export, or two captures of one process, can't "
                "be analysed together",
            )
        if not _has_ranks(one) and not _has_ranks(other) and one.apart(other):
            raise UsageError(
                f"{first} and {second} were recorded on {one.host} one after the other, and neither records its ranks",
                hint="name the traces of one run only; `gpuscope diff` compares two runs",
            )
    ranks = {path: own.rank for path, own in files.items()}
    ranks |= _by_name({path: own for path, own in files.items() if own.rank is None and not own.recorded})
    following = max((rank for rank in ranks.values() if rank is not None), default=-1) + 1
    found: dict[Path, Numbered] = {}
    for path in sorted(files, key=lambda path: _place(path, files[path])):
        found[path] = Numbered(ranks[path], following)
        if ranks[path] is None:
            following += files[path].ranks
    return found


def _has_ranks(own: Processes) -> bool:
    return own.recorded or own.rank is not None or own.named is not None


def _by_name(files: Mapping[Path, Processes]) -> dict[Path, int | None]:
    """Ranks by the numbers in the files' names; where two have one number, these are local ranks, and no file's rank
    is known."""
    named = {path: own.named for path, own in files.items()}
    numbers = [number for number in named.values() if number is not None]
    return named if len(set(numbers)) == len(numbers) else dict.fromkeys(files)


def _place(path: Path, own: Processes) -> tuple[object, ...]:
    local = own.named if own.named is not None and own.ranks == 1 else -1
    return _natural(own.host or ""), local, _natural(str(path))


def _natural(text: str) -> tuple[tuple[str, int], ...]:
    """A key by which 9 comes before 10."""
    return tuple((word, int(digits or 0)) for word, digits in re.findall(r"(\D*)(\d*)", text))


def peeked(items: Iterable[tuple[Path, object]], options: ReadOptions) -> dict[Path, Processes]:
    """The processes in each file whose source can give them."""
    found: dict[Path, Processes] = {}
    for path, source in items:
        if isinstance(source, HoldsProcesses) and (own := source.processes(path, options)) is not None:
            found[path] = own
    return found


MOST_RANK = 1 << 20


def rank_spans(text: str) -> list[range]:
    """The ranks of `0-7,64`. Raises `ValueError` where it says none."""
    spans: list[range] = []
    for part in text.split(","):
        low, _, high = part.partition("-")
        first, last = int(low), int(high or low)
        if not 0 <= first <= last < MOST_RANK:
            raise ValueError(part)
        spans.append(range(first, last + 1))
    return spans

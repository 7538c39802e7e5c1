"""Ranks that are late alike and share a host, a stage of a pipeline or a reason: one group, blamed and mended so."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import Literal

from gpuscope.analyzers.collectives.lateness import Late
from gpuscope.when_used import dataclass

ALIKE = 0.5
"""Lateness of at least this share of the largest is like it."""


@dataclass(frozen=True)
class LateGroup:
    """Several ranks, ascending, and what they share. `name` is the host's or the reason's."""

    ranks: tuple[int, ...]
    by: Literal["host", "stage", "reason"]
    name: str


@dataclass(frozen=True)
class Places:
    """What ranks may share: host and stage of all that are present, as far as they are known, and why some are late."""

    hosts: Mapping[int, str]
    stages: Mapping[int, int]
    reasons: Mapping[int, str]


def late_groups(late: Mapping[int, Late], places: Places) -> dict[int, LateGroup]:
    """The groups of the ranks that are `late`, by rank; without those that are late alone."""
    found: dict[int, LateGroup] = {}
    for alike in _alike(late):
        left = set(alike)
        for group in (*_of_hosts(alike, places.hosts), *_of_stages(alike, places.stages)):
            if left.issuperset(group.ranks):
                found |= dict.fromkeys(group.ranks, group)
                left -= set(group.ranks)
        for reason, ranks in _by(left, places.reasons.get).items():
            if reason and len(ranks) > 1:
                found |= dict.fromkeys(ranks, LateGroup(ranks, "reason", str(reason)))
    return found


def _alike(late: Mapping[int, Late]) -> list[list[int]]:
    """Ranks of one period, each late by at least `ALIKE` of the first."""
    found: list[list[int]] = []
    for rank in sorted(late, key=lambda one: (late[one].period, -late[one].usual)):
        first = late[found[-1][0]] if found else None
        if first and first.period == late[rank].period and late[rank].usual >= ALIKE * first.usual:
            found[-1].append(rank)
        else:
            found.append([rank])
    return found


def _of_hosts(alike: Sequence[int], hosts: Mapping[int, str]) -> list[LateGroup]:
    """Hosts of which all ranks are late, or one that all that are late share; where there are others."""
    present = _by(hosts, hosts.get)
    groups = _by(alike, hosts.get)
    return [
        LateGroup(ranks, "host", str(host))
        for host, ranks in groups.items()
        if host and len(ranks) > 1 and len(present) > 1 and (len(groups) == 1 or ranks == present[host])
    ]


def _of_stages(alike: Sequence[int], stages: Mapping[int, int]) -> list[LateGroup]:
    """The stage that all that are late share, where there are others."""
    groups = _by(alike, stages.get)
    if len(set(stages.values())) < 2 or len(groups) > 1 or len(alike) < 2:
        return []
    return [LateGroup(ranks, "stage", str(stage)) for stage, ranks in groups.items() if stage is not None]


def _by(ranks: Iterable[int], of: Callable[[int], Hashable]) -> dict[Hashable, tuple[int, ...]]:
    found: dict[Hashable, list[int]] = defaultdict(list)
    for rank in sorted(ranks):
        found[of(rank)].append(rank)
    return {key: tuple(own) for key, own in found.items()}

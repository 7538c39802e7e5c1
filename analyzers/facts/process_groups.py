"""Process groups of a run and their members, from the tables `collectives` and `groups`."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import field
from pathlib import Path
from typing import Any

import numpy as np

from gpuscope import when_used
from gpuscope.analyzers.facts.call_order import all_at_hand, clock_of
from gpuscope.problems import job
from gpuscope.recorded_environment import NAMES
from gpuscope.schema.document import SetupEntry
from gpuscope.sources.run_manifest import environments, settings_in_effect
from gpuscope.trace.kinds import POINT_TO_POINT
from gpuscope.trace.name_pool import NO_NAME
from gpuscope.trace.schema import NA
from gpuscope.trace.table import Mask, Table, Times, distinct, distinct_values
from gpuscope.trace.trace import Trace, recorded_world
from gpuscope.when_used import dataclass


@dataclass(frozen=True)
class Groups:
    """The groups of a run, numbered from 0."""

    of_row: Times
    """Per row of `collectives`, its group."""
    members: Times
    """Per group, how many ranks are in it; NA where that is unknown."""
    ranks: list[Times | None]
    """Per group, its ranks, ascending; None where they are not recorded."""
    present: Times
    """Per group, how many of its ranks are in the files."""
    numbered: Mask
    """Per group, whether all its collectives carry sequence numbers."""
    places: Mapping[int, Mapping[int, int]] = field(default_factory=dict)
    """Rank by its place in a group, for groups whose members' places are recorded, over all files; in order of rank for
    those whose members are assumed."""
    assumed: frozenset[int] = frozenset()
    """Groups whose size is recorded nowhere: their members are taken to be the ranks that communicate in them."""

    def absent(self, group: Times) -> Mask:
        """Per group asked for, whether a member is in none of the files."""
        return np.asarray(self.present[group] < self.members[group])

    def at_place(self, rows: Times, place: Times) -> Times:
        """The rank at a place of each row's group, or NA; shape as `rows`."""
        found = np.full(len(rows), NA, np.int64)
        for index in np.flatnonzero(place != NA).tolist():
            found[index] = self.places.get(int(self.of_row[rows[index]]), {}).get(int(place[index]), NA)
        return found

    def other_of_two(self, rows: Times, rank: Times) -> Times:
        """The other rank in a group of two for each row, or NA."""
        sums = np.array([int(ranks.sum()) if ranks is not None and len(ranks) == 2 else NA for ranks in self.ranks])
        total = sums[self.of_row[rows]] if len(self.ranks) else np.full(len(rows), NA)
        return np.asarray(np.where(total == NA, NA, total - rank), np.int64)


def groups_of(trace: Trace, open_groups: Collection[int] = ()) -> Groups:
    """The groups of a trace's collectives.

    Names are unique only among a rank's groups, member lists only within a layout: both together identify a group.
    Of a communicator without a size the members are the ranks that share it, where nothing says that others are
    missing and it is none of `open_groups`.
    """
    table = trace["collectives"]
    listed = _members_listed(trace, table)
    keys, of_row = distinct((table["group"].astype(np.int64) + 1) * (len(trace.names) + 2) + listed + 1)
    count = len(keys)
    size, used = (np.full(count, value, np.int64) for value in (NA, 0))
    np.maximum.at(size, of_row, table["group_size"])
    messages = trace.names.matching(lambda name: name in ("send", "recv", "send_recv"))[table["op"]]
    unnumbered = of_row[(table["seq"] == NA) & ~messages]
    np.add.at(used, unnumbered, 1)
    first = np.full(count, len(table), np.int64)
    np.minimum.at(first, of_row, np.arange(len(table)))
    there = set(trace.ranks)
    ranks: list[Times | None] = []
    present = np.zeros(count, np.int64)
    active = _active(of_row, table["rank"], count)
    communicators = _places(trace)
    places: dict[int, dict[int, int]] = {}
    assumed: set[int] = set()
    unsized = (size == NA) & (table["group"][np.minimum(first, len(table) - 1)] != NO_NAME) if count else size == NA
    whole = bool(unsized.any()) and all_at_hand(trace)
    for group, row in enumerate(first.tolist()):
        members = _parsed(trace.names[int(listed[row])])
        named = int(table["group"][row]) != NO_NAME
        if members is None and size[group] == NA and not named and _all_there(trace):
            size[group] = len(there)  # no group lists its members, and no rank is missing that could be in one
        own = communicators.get(int(table["group"][row]), {})
        if members is None and unsized[group] and whole and group not in open_groups and len(active[group]) > 1:
            size[group] = len(active[group])
            own = own or dict(enumerate(active[group].tolist()))
            assumed.add(group)
        if own:
            places[group] = own
        if members is None and own and len(own) == size[group]:
            members = np.array(sorted(own.values()), np.int64)
        if members is not None:
            size[group] = len(members)
        elif size[group] == len(active[group]):
            members = active[group]
        ranks.append(members)
        present[group] = len(there.intersection(members.tolist())) if members is not None else len(active[group])
    return Groups(of_row, size, ranks, present, used == 0, places, frozenset(assumed))


def _places(trace: Trace) -> dict[int, dict[int, int]]:
    """Rank by place in each communicator (code of its name), as its members' own records in all files have it."""
    table = trace["groups"]
    known = (table["place"] != NA) & (table["group"] != NO_NAME)
    found: dict[int, dict[int, int]] = {}
    columns = (table[name][known].tolist() for name in ("group", "place", "rank"))
    for group, place, rank in zip(*columns, strict=True):
        found.setdefault(group, {})[place] = rank
    return found


def _members_listed(trace: Trace, table: Table) -> Times:
    """Per row, the code of its group's list of ranks; where that is elided, from `groups`; else `NO_NAME`."""
    listed = table["group_ranks"].astype(np.int64)
    groups = trace["groups"]
    known = {
        (rank, group): ranks
        for rank, group, ranks in zip(*(groups[name].tolist() for name in ("rank", "group", "ranks")), strict=True)
        if ranks != NO_NAME
    }
    unlisted = np.flatnonzero((listed == NO_NAME) & (table["group"] != NO_NAME))
    if known and len(unlisted):
        width = len(trace.names) + 1
        keys, which = distinct(table["rank"][unlisted] * width + table["group"][unlisted])
        found = [known.get((key // width, key % width), NO_NAME) for key in keys.tolist()]
        listed[unlisted] = np.array(found, np.int64)[which]
    return listed


def _parsed(listed: str) -> Times | None:
    numbers = [part for part in listed.split(",") if part.strip().isdecimal()]
    return distinct_values(np.array(numbers, np.int64)) if numbers and len(numbers) == listed.count(",") + 1 else None


def _active(of_row: Times, rank: Times, count: int) -> list[Times]:
    """Per group, the ranks that took part in it."""
    width = int(rank.max()) + 1 if len(rank) else 1
    pairs, _ = distinct(of_row * width + rank)
    bounds = np.searchsorted(pairs // width, np.arange(count + 1))
    return [pairs[low:high] % width for low, high in zip(bounds[:-1].tolist(), bounds[1:].tolist(), strict=True)]


def _all_there(trace: Trace) -> bool:
    """Whether no rank of the job is known to be missing."""
    return recorded_world(trace).size in (None, len(trace.ranks))


# Communicators whose number of ranks is recorded nowhere: one id for all their ranks, and whole arrays' sizes.
#
# A capture that began after `ncclCommInitRank` holds a communicator's id and each call's size, as NCCL logs it: of one
# rank's share where the operation gathers or scatters. The id is common to the ranks from NCCL 2.25 on; before, each
# rank has its own, and those are one communicator that carry out the same operations of the same sizes and end them
# together.

END_TOGETHER_NS = 50_000
"""Ends of one operation on ranks of one host lie no farther apart, in the median (definitions: «World size»)."""


def with_members(trace: Trace) -> Trace:
    """`trace` with one name per communicator and the sizes that follow from its members; itself where all is told."""
    table = trace["collectives"]
    unsized = (table["group_size"] == NA) & (table["group_ranks"] == NO_NAME) & (table["group"] != NO_NAME)
    if not bool(unsized.any()) or not all_at_hand(trace):
        return trace
    named = trace.with_table(Table(table.schema, {**table.columns, "group": _common_names(trace, unsized)}))
    return _with_sizes(named)


def _common_names(trace: Trace, unsized: Mask) -> Times:
    """Per row, its group, with the ids that ranks have of one communicator replaced by that of the lowest rank."""
    table, group = trace["collectives"], trace["collectives"]["group"].copy()
    rows_of = _by_communicator(table, np.flatnonzero(unsized))
    used: dict[int, set[int]] = defaultdict(set)
    for rank, code in rows_of:
        used[code].add(rank)
    alike: dict[bytes, list[Times]] = defaultdict(list)
    point_to_point = trace.names.matching(POINT_TO_POINT.__contains__)[table["op"]]
    for (_, code), rows in rows_of.items():
        if len(used[code]) == 1 and not bool(point_to_point[rows].any()):
            told = np.stack([table[name][rows].astype(np.int64) for name in ("op", "bytes", "share")])
            alike[told.tobytes()].append(rows)
    clock = clock_of(trace)
    for candidates in alike.values():
        for together in _ending_together(table, candidates, clock):
            for rows in together[1:]:
                group[rows] = group[together[0][0]]
    return group


def _by_communicator(table: Table, rows: Times) -> dict[tuple[int, int], Times]:
    """Rows by (rank, code of the communicator), each in order of time."""
    order = rows[np.lexsort((table["start"][rows], table["group"][rows], table["rank"][rows]))]
    changes = (np.diff(table["rank"][order]) != 0) | (np.diff(table["group"][order]) != 0)
    parts = np.split(order, np.flatnonzero(changes) + 1)
    return {(int(table["rank"][own[0]]), int(table["group"][own[0]])): own for own in parts if len(own)}


def _ending_together(table: Table, candidates: list[Times], clock: dict[int, int]) -> list[list[Times]]:
    """Candidates of different ranks of one host whose operations end together, the lowest rank's first."""
    found: list[list[Times]] = []
    for rows in candidates:
        rank = int(table["rank"][rows[0]])
        for own in found:
            ranks = {int(table["rank"][one[0]]) for one in own}
            apart = np.median(np.abs(table["end"][rows] - table["end"][own[0]]))
            if rank not in ranks and clock[rank] == clock[min(ranks)] and apart <= END_TOGETHER_NS:
                own.append(rows)
                break
        else:
            found.append([rows])
    return found


def _with_sizes(trace: Trace) -> Trace:
    """Shares times members, for groups whose members are the ranks that share them."""
    table, groups = trace["collectives"], groups_of(trace)
    known = (table["share"] != NA) & (table["bytes"] == NA) & (groups.members[groups.of_row] != NA)
    if not bool(known.any()):
        return trace
    nbytes = np.where(known, table["share"] * groups.members[groups.of_row], table["bytes"])
    sized = trace.with_table(Table(table.schema, {**table.columns, "bytes": nbytes}))
    left = int(((table["share"] != NA) & (nbytes == NA)).sum())
    kept = [problem for problem in trace.problems if problem.code != job.GROUP_SIZE_UNKNOWN.code]
    sized.problems = kept + ([job.GROUP_SIZE_UNKNOWN.of(left)] if left else [])
    return sized


# What is recorded of a job's software and hosts: versions, variables, cores. Advice must fit them.


def setup(trace: Trace, folders: Sequence[Path]) -> SetupEntry:
    """From the environments that the run folders hold, and from what the files say of themselves."""
    told = {rank: one for folder in folders for rank, one in environments(folder).items()}
    versions: dict[str, str] = {}
    variables: dict[str, str] = {}
    for source in trace.sources:
        if source.format == "compile-log" and source.format_version:
            versions["torch"] = source.format_version
        header = source.facts.get("header")
        versions |= _of_header(header) if isinstance(header, Mapping) else {}
    for one in told.values():
        versions |= {name: value for name, value in one["versions"].items() if isinstance(value, str)}
        variables |= {name: value for name, value in one["variables"].items() if name not in NAMES}
    counted = [*_by_affinity(told), *_by_file(trace)]
    return {
        "versions": versions,
        "variables": variables,
        "cores_per_rank": max(min(counted), 1) if counted else None,
        "stacks": stacks_recorded(trace),
        "settings": _settings(folders),
    }


def _settings(folders: Sequence[Path]) -> dict[str, list[str]]:
    """The values of settings that the recorder saw, by its own names."""
    found: dict[str, list[str]] = {}
    for folder in folders:
        for name, values in settings_in_effect(folder).items():
            found[name] = list(dict.fromkeys((*found.get(name, ()), *values)))
    return found


def _of_header(header: Mapping[str, Any]) -> dict[str, str]:
    """Versions that Kineto writes: CUDA's as 12040 for 12.4, HIP's as 60443483 for 6.4.43483."""
    found: dict[str, str] = {}
    for name, unit in (("cuda", 1_000), ("hip", 10_000_000)):
        for part in ("runtime", "driver"):
            number = str(header.get(f"{name}_{part}_version", ""))
            if number.isdecimal() and int(number):
                major, rest = divmod(int(number), unit)
                least = rest // 10 if name == "cuda" else f"{rest // 100_000}.{rest % 100_000}"
                found[f"{name} {part}"] = f"{major}.{least}"
    return found


_FRAME = when_used.pattern(r"\.py\(\d+\): \S|^<built-in \w+ ")
"""How torch's profiler names a Python function."""


def stacks_recorded(trace: Trace) -> bool:
    """Whether a profiler recorded Python's stacks."""
    headers = (source.facts.get("header") for source in trace.sources)
    asked = any(isinstance(header, Mapping) and header.get("with_stack") for header in headers)
    return asked or any(_FRAME.search(name) for name in trace.names.names)


def _by_affinity(told: Mapping[int, Mapping[str, Mapping[str, Any]]]) -> Iterator[int]:
    """The cores a rank may use, by how many ranks of its host may use the same ones."""
    allowed = {rank: one["platform"].get("affinity") for rank, one in told.items()}
    sets = {rank: frozenset(map(str, cores)) for rank, cores in allowed.items() if isinstance(cores, list) and cores}
    alike = Counter(sets.values())
    for rank, cores in sets.items():
        local = told[rank]["variables"].get("LOCAL_WORLD_SIZE", "")
        sharing = min(alike[cores], int(local)) if local.isdecimal() and int(local) else alike[cores]
        yield len(cores) // sharing


def cores_counted(trace: Trace) -> int | None:
    """The fewest cores that a rank has, as its files tell; None where none does."""
    counted = list(_by_file(trace))
    return max(min(counted), 1) if counted else None


def _by_file(trace: Trace) -> Iterator[int]:
    """The cores that a recorder counted in its process, or nsys on its host, by the ranks of that host: those at hand,
    of a larger job as many as it has devices."""
    ranks, names = trace["ranks"], trace.names
    of_rank = dict(zip(ranks["rank"].tolist(), ranks["host"].tolist(), strict=True))
    on_host = Counter(of_rank.values())
    columns = (ranks[name].tolist() for name in ("source", "rank", "host_devices", "world_size"))
    for source, rank, listed, world in sorted(set(zip(*columns, strict=True))):
        facts = trace.sources[source].facts
        header = facts.get("header")
        counted = header.get("gpuscope_cores") if isinstance(header, Mapping) else None
        cores = counted.get("cores") if isinstance(counted, Mapping) else facts.get("cpu_cores")
        if str(cores).isdecimal() and int(str(cores)):
            devices = len(names[listed].split(",")) if listed != NO_NAME else 1
            # Ranks of no known host are taken to be together: then each has the fewest.
            here = on_host[of_rank[rank]] if of_rank[rank] != NO_NAME else len(of_rank)
            yield int(str(cores)) // max(here, min(devices, world))

"""Process groups of a run and their members, from the tables `collectives` and `groups`."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import field

import numpy as np

from gpuscope.analyzers.facts.whole_job import all_at_hand
from gpuscope.trace.columns.distinct import distinct, distinct_values
from gpuscope.trace.columns.name_pool import NO_NAME
from gpuscope.trace.columns.table import Mask, Table, Times
from gpuscope.trace.schema import NA
from gpuscope.trace.trace import Trace
from gpuscope.trace.world import recorded_world
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

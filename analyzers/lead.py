"""What each rank communicated before each of its collectives."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gpuscope.trace.schema import NA
from gpuscope.trace.table import Mask, Table, Times


@dataclass(frozen=True)
class Lead:
    """Per row of `collectives`: the last instant before its start at which its rank began or ended another."""

    since: Times
    """That instant, on the rank's own clock; NA for a rank's first collective."""
    row: Times
    """The other collective, or NA."""
    ended: Mask
    """Whether it ended there; else it began there."""


def lead(table: Table) -> Lead:
    """The lead of every row of `collectives`, which are ordered by rank and start."""
    count = len(table)
    start, end, rank = table["start"], table["end"], table["rank"]
    begun = np.arange(count) - 1
    begun[np.concatenate((np.ones(min(count, 1), np.bool_), rank[1:] != rank[:-1]))] = NA
    done = _last_ended(rank, start, end)
    begun_at = np.where(begun == NA, NA, start[np.maximum(begun, 0)])
    done_at = np.where(done == NA, NA, end[np.maximum(done, 0)])
    ended = (done != NA) & (done_at >= begun_at)
    return Lead(np.where(ended, done_at, begun_at), np.where(ended, done, begun), ended)


def _last_ended(rank: Times, start: Times, end: Times) -> Times:
    """For each row the row of its rank that ended last among those that ended before it began, or NA."""
    found = np.full(len(rank), NA, np.int64)
    bounds = np.concatenate(([0], np.flatnonzero(np.diff(rank)) + 1, [len(rank)]))
    for low, high in zip(bounds[:-1].tolist(), bounds[1:].tolist(), strict=True):
        order = np.argsort(end[low:high], kind="stable")
        place = np.searchsorted(end[low:high][order], start[low:high], "right") - 1
        own = low + order[np.maximum(place, 0)]
        # One that took no time ends where it began: it is not its own predecessor.
        found[low:high] = np.where((place >= 0) & (own < np.arange(low, high)), own, NA)
    return found

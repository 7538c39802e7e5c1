"""Begin and end of slices, paired as torch.profiler's encoder writes them.

It writes groups: a run of begins followed by an equal run of ends, of which the i-th closes the i-th begin. Here they
are paired so track by track, which gives the same for a whole file and confines a lost packet to its own track.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from gpuscope.trace.columns.distinct import distinct_values, mapped
from gpuscope.trace.columns.table import Array, compact, concatenated, constant, is_constant, picked

Columns = dict[str, npt.NDArray[Any]]


@dataclass
class Paired:
    """Slices in order of their begins."""

    columns: Columns
    """Those of the begins, with `end`."""
    unpaired: int


@dataclass
class SliceGroups:
    """Collects begins and ends until their groups are whole."""

    _begins: list[Columns] = field(default_factory=list)
    _ends: list[Columns] = field(default_factory=list)
    _group: int = 0
    _ending: bool = False
    """Whether the next begin belongs to another group."""

    def take(self, ends: npt.NDArray[np.bool_], begin: Columns, end: Columns) -> Paired | None:
        """Take in begins and ends, in the order of `ends` (which of them are ends); `begin` and `end` have `track` and
        what else is known of each. Gives the slices of the groups that are whole now, None where no group ended."""
        before = np.concatenate(([self._ending], ends[:-1]))
        group = self._group + np.cumsum(before & ~ends)
        self._begins.append(_compact({**begin, "group": group[~ends]}))
        self._ends.append(_compact({**end, "group": group[ends]}))
        if not len(ends) or group[-1] == self._group:
            self._ending = bool(ends[-1]) if len(ends) else self._ending
            return None
        self._group, self._ending = int(group[-1]), bool(ends[-1])
        begun, ended = _joined(self._begins), _joined(self._ends)
        self._begins, self._ends = ([_from(part, self._group)] for part in (begun, ended))
        return _paired(begun, ended, cut_off=False)

    @property
    def has_more(self) -> bool:
        """Whether a group has begun."""
        return any(len(part["track"]) for part in self._begins)

    def rest(self, cut_off: bool) -> Paired | None:
        """The slices of the last group, after which nothing is left; `cut_off` where the file ends early."""
        begins, ends, self._begins, self._ends = self._begins, self._ends, [], []
        return _paired(_joined(begins), _joined(ends), cut_off) if begins else None


def _from(columns: Columns, group: int) -> Columns:
    """A copy of what is of this group, the last, or of later ones; what is before it stays in `columns`."""
    first = int(np.searchsorted(columns["group"], group))
    rest = {name: picked(column, np.arange(first, len(column))) for name, column in columns.items()}
    columns |= {name: column[:first] for name, column in columns.items()}
    return rest


def _compact(columns: Columns) -> Columns:
    return {name: compact(column) for name, column in columns.items()}


def _joined(parts: list[Columns]) -> Columns:
    """The parts are used up column by column, so that only one is ever held twice."""
    return {name: concatenated([part.pop(name) for part in parts]) for name in list(parts[0])}


def _paired(begins: Columns, ends: Columns, cut_off: bool) -> Paired:
    """Pair what has the same group and track; both sides are used up.

    Where their numbers differ nothing is paired, since any pair may be wrong; only where the file was cut off ends are
    missing behind all others, and those that are there are right.
    """
    keys = _codes(begins["track"], ends["track"])
    groups = _codes(begins["group"], ends["group"])
    if max(int(group.max(initial=0)) for group in groups):
        tracks = 1 + max(int(key.max(initial=0)) for key in keys)
        keys = _codes(*(np.int64(tracks) * group + key for group, key in zip(groups, keys, strict=True)))
    del groups
    begin_key, end_key = keys
    count = 1 + max(int(key.max(initial=-1)) for key in keys)
    begun, ended = np.bincount(begin_key, minlength=count), np.bincount(end_key, minlength=count)
    usable = (begun == ended) | (cut_off & (ended < begun))
    by_begin, by_end = (np.argsort(key, kind="stable").astype(np.int32) for key in keys)
    own = begin_key[by_begin]
    place = np.arange(len(by_begin)) - (np.cumsum(begun) - begun)[own]
    by_begin = by_begin[usable[own] & (place < ended[own])]
    del own, place
    by_end = by_end[usable[end_key[by_end]]]
    order = np.argsort(by_begin)
    end = ends.pop("end")[by_end[order]]
    rows = by_begin[order]
    unpaired = len(begin_key) - len(rows) if cut_off else int(np.maximum(begun, ended)[~usable].sum())
    del begin_key, end_key, keys, order, by_begin, by_end
    return Paired({**{name: picked(begins.pop(name), rows) for name in list(begins)}, "end": end}, unpaired)


def _codes(*columns: Array) -> list[Array]:
    """Of each value its place among the distinct values of all the columns."""
    known = distinct_values(np.concatenate([distinct_values(column) for column in columns]))
    codes = np.arange(len(known), dtype=np.int32)
    return [
        constant(np.searchsorted(known, column[0]), len(column), np.int32)
        if is_constant(column)
        else mapped(column, known, codes)
        for column in columns
    ]

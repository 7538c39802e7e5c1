"""Begin and end of slices, paired as torch.profiler's encoder writes them.

It writes groups: a run of begins followed by an equal run of ends, of which the i-th closes the i-th begin. Here they
are paired so track by track, which gives the same for a whole file and confines a lost packet to its own track.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass

import msgspec


@dataclass(slots=True)
class Slice:
    """One slice; times in ns."""

    start: int
    track: int
    name: int
    """Its code in the pool of names."""
    category: str
    told: msgspec.Raw | None
    """Its arguments as JSON, where they are wanted later: a message takes several times their room."""
    number: int
    """Of a CUDA call its correlation id, of an operator its External id; `NA` where there is none."""
    end: int = 0


class SliceGroup:
    """Collects one group."""

    def __init__(self) -> None:
        self._begun: list[Slice] = []
        self._ended: list[tuple[int, int]] = []

    def begin(self, one: Slice) -> None:
        """Take in a begin."""
        self._begun.append(one)

    def end(self, time: int, track: int) -> None:
        """Take in an end."""
        self._ended.append((time, track))

    @property
    def is_ending(self) -> bool:
        """Whether the next begin belongs to another group."""
        return bool(self._ended)

    def paired(self, cut_off: bool = False) -> tuple[list[Slice], int]:
        """The slices in order of their begins, and how many could not be paired; the group is empty afterwards.

        Of a track with unequal numbers nothing is paired, since any pair may be wrong; only where the file was cut off
        (`cut_off`) ends are missing behind all others, and those that are there are right.
        """
        begun, ended = self._begun, self._ended
        self._begun, self._ended = [], []
        begins = defaultdict[int, int](int)
        for one in begun:
            begins[one.track] += 1
        ends: dict[int, list[int]] = defaultdict(list)
        for time, track in ended:
            ends[track].append(time)
        usable = {
            track: iter(times)
            for track, times in ends.items()
            if len(times) == begins[track] or (cut_off and len(times) < begins[track])
        }
        lost = sum(max(count, len(ends[track])) for track, count in begins.items() if track not in usable)
        lost += sum(len(times) for track, times in ends.items() if track not in begins)
        found = list(_closed(begun, usable))
        if cut_off:
            lost = len(begun) - len(found)
        return found, lost


def _closed(begun: list[Slice], ends: dict[int, Iterator[int]]) -> Iterator[Slice]:
    for one in begun:
        end = next(ends[one.track], None) if one.track in ends else None
        if end is not None:
            one.end = end
            yield one

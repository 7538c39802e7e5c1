"""What ran on the host, and the profiler's own rows of waits: slices of tracks, as blocks of Kineto's rows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec
import numpy as np
from numpy import typing as npt

from gpuscope import native
from gpuscope.sources.kineto.event_arguments import RANGE
from gpuscope.sources.kineto.event_block import CATEGORIES, Block, Rows, Shapes, Work, text_codes
from gpuscope.sources.perfetto.packet_rows import (
    BY_MESSAGE,
    CATEGORY,
    CONCRETE,
    CORRELATION,
    DIMS,
    EXTERNAL,
    FLAGS,
    KIND,
    MISSING,
    STRIDES,
    SYNC,
    TRACK,
    TYPES,
    DebugAnnotation,
    Integers,
    PacketKind,
    PacketRows,
    Reading,
    arguments,
    as_json,
    text,
    value_of,
)
from gpuscope.trace.name_pool import PerName, is_shaped
from gpuscope.trace.schema import NA, Category
from gpuscope.trace.table import Array, compact, concatenated, constant, distinct_values, is_constant, mapped, picked

# Begin and end of slices, paired as torch.profiler's encoder writes them.
#
# It writes groups: a run of begins followed by an equal run of ends, of which the i-th closes the i-th begin. Here they
# are paired so track by track, which gives the same for a whole file and confines a lost packet to its own track.

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


_INPUTS = {
    "dims": (DIMS, "Input Dims"),
    "types": (TYPES, "Input type"),
    "concrete": (CONCRETE, "Concrete Inputs"),
    "strides": (STRIDES, "Input Strides"),
}
_SYNC, _OVERHEAD, _OPERATOR = "cuda_sync", "overhead", "cpu_op"
_NOTHING = msgspec.Raw(b"{}")


class HostSlices:
    """Sorts slices into columns, group by group."""

    def __init__(self, reading: Reading) -> None:
        self.unpaired = 0
        self._reading = reading
        self._groups = SliceGroups()
        self._categories: dict[str, int] = {}
        self._told: list[msgspec.Raw] = []
        """Arguments as JSON, where they are wanted later: a message takes several times their room."""
        self._codes = native.core.Codes() if native.COMPILED else None
        self._has_arguments = PerName(reading.builder.names, lambda name: name.startswith("gloo:") or name == RANGE)
        self._is_shaped = PerName(reading.builder.names, is_shaped)

    def take(self, packets: PacketRows, rows: Integers) -> None:
        """Take in the begins and ends at some rows of a block."""
        if not len(rows):
            return
        ends = packets.rows[rows, KIND] == PacketKind.END
        begun, ended = rows[~ends], rows[ends]
        end = {"track": packets.rows[ended, TRACK], "end": self._reading.times(packets, ended)}
        self._hand_over(self._groups.take(ends, self._begins(packets, begun), end))

    def finish(self, cut_off: bool) -> None:
        """Hand over what is left; `cut_off` where the file ends early."""
        self._hand_over(self._groups.rest(cut_off))

    def _begins(self, packets: PacketRows, rows: Integers) -> Columns:
        own, reading = packets.rows[rows], self._reading
        by_message = own[:, FLAGS] & BY_MESSAGE != 0
        name = reading.names(packets, rows, lambda row: text(packets.message(row).track_event.name))
        category = reading.looked_up(
            packets,
            rows,
            CATEGORY,
            lambda interned: {number: self._category(told) for number, told in interned.categories.items()},
        )
        for place in np.flatnonzero(by_message & (category == MISSING)).tolist():
            event = packets.message(int(rows[place])).track_event
            if event.categories and not event.category_iids:
                category[place] = self._category(text(event.categories[0]))
        plain = (category == MISSING) | (category == self._category(""))  # the encoder gives neither of these one
        sync = plain & (own[:, FLAGS] & SYNC != 0)
        overhead = np.isin(own[:, TRACK].view(np.uint64), list(reading.tracks.overhead))
        category[plain] = self._category("")
        category[plain & overhead] = self._category(_OVERHEAD)
        category[sync] = self._category(_SYNC)
        route = self._routes()[category]
        number = np.where(route == Category.RUNTIME, own[:, CORRELATION], NA)
        number = np.where(category == self._category(_OPERATOR), own[:, EXTERNAL], number)
        number[plain] = NA
        told = np.full(len(rows), MISSING, np.int32)
        for place in np.flatnonzero(sync | (~plain & (self._has_arguments(name) != 0))).tolist():
            told[place] = len(self._told)
            self._told.append(as_json(arguments(packets.message(int(rows[place])).track_event.debug_annotations)))
        shaped = ~plain & (self._is_shaped(name) != 0)
        # A copy: a view would keep all columns of the block.
        return {
            "track": own[:, TRACK].copy(),
            "start": reading.times(packets, rows),
            "name": name,
            "category": category.astype(np.int16),
            "number": number,
            "told": told,
            **self._inputs(packets, rows, shaped, by_message),
        }

    def _category(self, name: str) -> int:
        return self._categories.setdefault(name, len(self._categories))

    def _routes(self) -> npt.NDArray[np.int8]:
        """By category, where its slices go."""
        routes = [CATEGORIES.get(name.lower(), Work.OTHER) for name in self._categories]
        return np.array([Work.OTHER if Work.KERNEL <= route < Work.SYNC else route for route in routes], np.int8)

    def _inputs(
        self, packets: PacketRows, rows: Integers, wanted: npt.NDArray[np.bool_], by_message: npt.NDArray[np.bool_]
    ) -> Columns:
        """Codes of recorded inputs; `MISSING` where there are none, or no one asks."""
        found = {name: np.full(len(rows), MISSING, np.int32) for name in _INPUTS}
        for place in np.flatnonzero(wanted & by_message).tolist():
            told = arguments(packets.message(int(rows[place])).track_event.debug_annotations)
            for name, (_, key) in _INPUTS.items():
                if key in told:
                    found[name][place] = self._reading.columns.texts[bytes(as_json(told[key]))]
        scanned = np.flatnonzero(wanted & ~by_message)
        for name, (column, _) in _INPUTS.items():
            spans = packets.rows[rows[scanned], column]
            there = scanned[spans != 0]
            spans = np.stack([spans[spans != 0] >> 32, spans[spans != 0] & 0xFFFFFFFF], axis=1).astype(np.uint32)
            if len(there):
                found[name][there] = text_codes(self._codes, packets.text, spans, self._input)
        return found

    def _input(self, annotation: bytes) -> int:
        return self._reading.columns.texts[bytes(as_json(value_of(DebugAnnotation.FromString(annotation))))]

    def _hand_over(self, paired: Paired | None) -> None:
        if paired is None:
            return
        self.unpaired += paired.unpaired
        own = paired.columns
        good = (own["start"] != NA) & (own["end"] != NA)
        route = self._routes()[own["category"]]
        other = np.bincount(own["category"][good & (route == Work.OTHER)], minlength=len(self._categories))
        named: Counter[str] = Counter()
        for name, count in zip(self._categories, other.tolist(), strict=True):
            named[name.lower()] += count
        block = Block(bad_times=int(np.count_nonzero(~good)), other=+named)
        sync, host = (np.flatnonzero(good & wanted) for wanted in (route == Work.SYNC, route < Work.KERNEL))
        if len(sync):
            columns = {name: own[name][sync] for name in ("start", "end", "name")}
            block.sync = Rows(route[sync], columns, self._texts(own["told"][sync]), lambda rows: Shapes())  # noqa: ARG005
        if len(host):
            route = route[host]
            # Column by column, so that only one is ever held twice: a group may be nearly all of a file.
            own = {name: picked(own.pop(name), host) for name in list(own)}
            block.host = self._host(own, route)
            ids = own["number"][route == Category.OP]
            block.operator_ids = ids[ids != NA]
        self._reading.work += len(sync) + len(host)
        self._reading.columns.take(block)
        self._told = [] if not self._groups.has_more else self._told

    def _host(self, own: Mapping[str, Any], route: npt.NDArray[np.int8]) -> Rows:
        columns = {name: own[name] for name in ("start", "end", "name")}
        columns["correlation"] = np.where(route == Category.RUNTIME, own["number"], NA)
        tracks = distinct_values(own["track"])
        numbers, thread = tracks.view(np.uint64).tolist(), self._reading.tracks.thread
        threads = {track: self._reading.columns.threads[thread(track)] for track in sorted(numbers)}
        columns["thread"] = mapped(own["track"], tracks, np.array([threads[track] for track in numbers], np.int32))
        texts = self._texts(own["told"])
        code = self._reading.builder.names.find(RANGE)
        if len(self._reading.world) < 2:
            for told in texts(np.flatnonzero((own["name"] == code) & (own["told"] != MISSING)).tolist()):
                self._reading.learn_world(msgspec.json.decode(told))

        def shapes(asked: Integers) -> Shapes:
            asked = asked[own["dims"][asked] != MISSING]
            nothing = self._reading.columns.texts[b"null"]
            inputs = (np.where(own[name][asked] == MISSING, nothing, own[name][asked]) for name in _INPUTS)
            return Shapes(asked, *inputs)

        return Rows(route, columns, texts, shapes)

    def _texts(self, told: npt.NDArray[np.int32]) -> Any:
        def texts(rows: Sequence[int]) -> list[Any]:
            return [_NOTHING if told[row] == MISSING else self._told[told[row]] for row in rows]

        return texts

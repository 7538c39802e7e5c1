"""Some rows of one kind damaged, in every format: what no recorder writes, so that silence about it is a defect.

The other mutations change one value anywhere, which may be another valid recording. Here every fifth row of a kind
(a category of Kineto, a table of nsys, a process of Ascend, a type of operation) loses or turns round its times.
"""

from __future__ import annotations

import copy
from collections import defaultdict
from collections.abc import Callable, Iterator
from typing import Any

from fuzzing.packets import packets_of
from fuzzing.seeds import Seed
from gpuscope.sources.perfetto.packet_rows import TracePacket
from gpuscope.sources.perfetto.packets import framed

TURNED = "turned round"
EVERY = 5
BEGIN, END = 1, 2
"""TrackEvent.Type of a slice's two packets."""

Row = dict[str, Any]


def damaged(seed: Seed, data: Any) -> Iterator[tuple[str, str, Any]]:
    """(kind of row, damage, the damaged data) for every kind of row that has times."""
    if isinstance(data, bytes):
        yield "slices", TURNED, _packets_turned(data)
        return
    damages = _DAMAGES[_form(seed)]
    for kind, rows in _by_kind(seed, data).items():
        for damage, spoil in damages.items():
            changed = copy.deepcopy(data)
            own = _by_kind(seed, changed)[kind]
            for row in own[:: min(EVERY, len(own))]:
                spoil(row)
            assert len(rows) == len(own)
            yield kind, damage, changed


def _form(seed: Seed) -> str:
    return "operations" if seed.name == "operations" else "tables" if seed.tabular else "events"


def _by_kind(seed: Seed, data: Any) -> dict[str, list[Row]]:
    """The rows that have a start and an end (or a duration), by kind."""
    found: dict[str, list[Row]] = defaultdict(list)
    form = _form(seed)
    if form == "operations":
        for row in data["rows"]:
            found[row["optype"]].append(row)
    elif form == "tables":
        for table, rows in data.items():
            found[table] += [row for row in rows if row.get("start") is not None and row.get("end") is not None]
    else:
        events = data if isinstance(data, list) else data["traceEvents"]
        for event in events:
            if event.get("ph") == "X":
                found[str(event.get("cat", event["pid"]))].append(event)
    return {kind: rows for kind, rows in found.items() if rows}


def _turn(row: Row) -> None:
    row["start"], row["end"] = row["end"], row["start"]


def _put(column: str, value: Any) -> Callable[[Row], None]:
    return lambda row: row.update({column: value})


def _negate(column: str) -> Callable[[Row], None]:
    return lambda row: row.update({column: -row[column]})


_DAMAGES: dict[str, dict[str, Callable[[Row], None]]] = {
    "events": {
        TURNED: _negate("dur"),
        "no duration": lambda row: row.pop("dur"),
        "duration of text": _put("dur", "x"),
        "no start": lambda row: row.pop("ts"),
        "start of text": _put("ts", "x"),
    },
    "tables": {TURNED: _turn, "no end": _put("end", None), "no start": _put("start", None)},
    "operations": {
        TURNED: _negate("duration"),
        "no duration": _put("duration", float("nan")),
        "no start": _put("start_ts", float("nan")),
    },
}


def _packets_turned(data: bytes) -> bytes:
    """The times of the begin and the end of every fifth slice exchanged."""
    messages = [TracePacket.FromString(packet) for packet in packets_of(data)]
    begun: dict[int, list[Any]] = defaultdict(list)
    count = 0
    for message in messages:
        event = message.track_event
        if event.type == BEGIN:
            begun[event.track_uuid].append(message)
        elif event.type == END and begun[event.track_uuid]:
            first = begun[event.track_uuid].pop(0)
            if count % EVERY == 0:
                first.timestamp, message.timestamp = message.timestamp, first.timestamp
            count += 1
    assert count
    return b"".join(framed(message.SerializeToString()) for message in messages)

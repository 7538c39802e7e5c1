"""Chrome-trace JSON read as a stream: an object with `traceEvents`, or a bare array of events.

Blocks are cut at the last `},{` and the cut is checked by decoding: a cut inside an event or a string
does not decode, and an earlier one is tried. What does not decode at all is taken apart event by event,
and what is still broken is counted and left out.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import field
from pathlib import Path
from typing import Any, Protocol

import msgspec

from gpuscope import when_used
from gpuscope.errors import InputError
from gpuscope.sources import stream
from gpuscope.sources.kineto.decimal_time import Scanners, read_ahead
from gpuscope.when_used import dataclass

_BETWEEN = when_used.pattern(rb"\}\s*,\s*(?=\{)")
_NO_SPACE = when_used.pattern(rb"\S")
_NO_EVENTS = b'"traceEvents":[]}'
_BROKEN_TEXT = when_used.pattern(rb'\s*"[^"\\]+"\s*:\s*"[^"]*"[^,\s].*"\s*,?\s*')
"""A line of the header, `"key": "text",`, with a quote inside the text."""
_MAX_HEADER = 1 << 20
_ARRAY_OPENS = when_used.pattern(rb'"traceEvents"\s*:\s*\[')
_ARRAY_CLOSES = when_used.pattern(rb'(?:^|(?<=[},]))\s*\](?=\s*(?:,\s*"|\}|$))')
_BARE_NUMBERS = when_used.pattern(rb"(?<=[:\s,\[])-?(?:nan|inf(?:inity)?)(?=[\s,\]}])", re.IGNORECASE)
_CUTS_TRIED = 12
_CUT_WITHIN = 8 << 20
_PIECES_JOINED = 6
_HEADER_ARRAYS = 64
"""Arrays that may stand behind the events (deviceProperties, pg_config)."""
_CLOSES_TRIED = 4096
_MAX_SPACE = 256
_MAX_EVENT = 64 << 20
"""A single event larger than this is no event: the file is not what it seems."""

Scalar = int | str | float | None


class Complete(msgspec.Struct, tag_field="ph", tag="X", gc=False):
    """A span. Times and arguments stay text until it is known who needs them."""

    name: str = ""
    cat: str = ""
    ts: msgspec.Raw = msgspec.Raw(b"")
    dur: msgspec.Raw = msgspec.Raw(b"")
    pid: Scalar = None
    tid: Scalar = None
    args: msgspec.Raw = msgspec.Raw(b"{}")


class Metadata(msgspec.Struct, tag_field="ph", tag="M", gc=False):
    """The name of a process or thread."""

    name: str = ""
    pid: Scalar = None
    tid: Scalar = None
    args: dict[str, Any] | None = None


class Instant(msgspec.Struct, tag_field="ph", tag="i", gc=False):
    """A moment; nothing of it is decoded until it is known who needs it."""

    name: msgspec.Raw = msgspec.Raw(b"")
    ts: msgspec.Raw = msgspec.Raw(b"")
    args: msgspec.Raw = msgspec.Raw(b"{}")


class Counted(msgspec.Struct, tag_field="ph", tag="C", gc=False):
    """A sample of counters; nothing of it is decoded until it is known who needs it."""

    name: msgspec.Raw = msgspec.Raw(b"")
    cat: msgspec.Raw = msgspec.Raw(b"")
    ts: msgspec.Raw = msgspec.Raw(b"")
    pid: msgspec.Raw = msgspec.Raw(b"")
    args: msgspec.Raw = msgspec.Raw(b"{}")


class FlowStart(msgspec.Struct, tag_field="ph", tag="s", gc=False):
    """The tail of an arrow between two events; read only by sources that link through it."""

    id: Scalar = None
    cat: str = ""
    ts: msgspec.Raw = msgspec.Raw(b"")
    pid: Scalar = None
    tid: Scalar = None


class FlowEnd(msgspec.Struct, tag_field="ph", tag="f", gc=False):
    """The head of an arrow."""

    id: Scalar = None
    cat: str = ""
    ts: msgspec.Raw = msgspec.Raw(b"")
    pid: Scalar = None
    tid: Scalar = None


_PASSED_OVER = tuple(
    msgspec.defstruct(f"Phase{ord(phase)}", [], tag_field="ph", tag=phase, gc=False)
    for phase in "tebnIPpNODSTFRcvV()BE"
)
_PHASES = frozenset("XMiCsftebnIPpNODSTFRcvV()BE")
_SkippedStart = msgspec.defstruct("SkippedStart", [], tag_field="ph", tag="s", gc=False)
_SkippedEnd = msgspec.defstruct("SkippedEnd", [], tag_field="ph", tag="f", gc=False)
"""Phases that hold nothing an analysis uses; naming them lets the decoder skip them quickly."""

_EventUnion: Any = Complete | Metadata | Instant | Counted
for _phase in _PASSED_OVER:
    _EventUnion = _EventUnion | _phase
_skipping: Any = _EventUnion | _SkippedStart | _SkippedEnd
_taking: Any = _EventUnion | FlowStart | FlowEnd
_without_flows = msgspec.json.Decoder(list[_skipping])
_with_flows = msgspec.json.Decoder(list[_taking])
_lenient = msgspec.json.Decoder(dict[str, msgspec.Raw])

Event = Complete | Metadata | Instant | Counted | FlowStart | FlowEnd
_EVENTS = (Complete, Metadata, Instant, Counted, FlowStart, FlowEnd)


class Scanner(Protocol):
    """A quicker reader of whole blocks of usual events, such as the native core."""

    def scan(self, text: bytes | memoryview) -> Any:
        """What stands in `{…},{…}`, or None where it is unusual; called in any thread."""
        ...

    def block(self, found: Any, text: bytes | memoryview) -> tuple[int, Any] | None:
        """How many events of any phase were found, and what to pass on; None where it is unusual after all."""
        ...


@dataclass
class Losses:
    """What could not be read."""

    truncated: str = ""
    """Why the document ends early; empty where it does not."""
    undecodable: int = 0
    broken_metadata: int = 0
    """Lines of the header that are no valid JSON."""
    invalid_utf8: int = 0
    events: int = 0
    """Events in the file, of every phase, that were decoded."""


@dataclass
class Document:
    """A trace being read: iterate `events()` to the end, then look at `header` and `losses`."""

    path: Path
    advance: Callable[[int], None] | None = None
    flows: bool = False
    """Whether arrows are wanted too."""
    scanner: Scanner | None = None
    """Who reads usual blocks; what it makes of them is then passed on in place of lists of events."""
    header: dict[str, Any] = field(default_factory=dict)
    losses: Losses = field(default_factory=Losses)
    _closed: bool = False

    @property
    def _decoder(self) -> Any:
        return _with_flows if self.flows else _without_flows

    def events(self) -> Iterator[list[Event]]:
        """Lists of decoded events, a few thousand each.

        Raises `InputError` where the file holds no trace events at all.
        """
        source = self._until_cut(stream.blocks(self.path, self.advance))
        if self.scanner is not None:
            yield from self._scanned(read_ahead(source), self.scanner)
            return
        buffer = self._open(source)
        for block in source:
            buffer += block
            while len(buffer) >= stream.BLOCK and not self._closed and (cut := self._cut(buffer)) is not None:
                events, buffer = cut
                yield events
            self._check_size(buffer)
        yield self._close(buffer)

    def _scanned(self, source: Iterator[bytes], scanner: Scanner) -> Iterator[Any]:
        """As `events`, with the next blocks being scanned: cut where most likely an event ends, and if that proves
        wrong, or a block unusual, read again from there."""
        buffer = self._open(source)
        again: deque[bytes] = deque()
        with Scanners(scanner.scan) as scanners:
            while True:
                block = again.popleft() if again else next(source, None)
                if block is not None:
                    scanners.read(block)
                    buffer += block
                    buffer = self._submit(scanners, buffer)
                while scanners.waiting and (block is None or scanners.busy):
                    guess, found = scanners.next()
                    made = None if found is None else scanner.block(found, guess.text)
                    if made is not None:
                        self.losses.events += made[0]
                        yield made[1]
                        continue
                    cut = self._cut(guess.buffer)
                    assert cut is not None  # it was cut before
                    yield cut[0]
                    if self._closed or len(cut[1]) != len(guess.buffer) - guess.following:
                        scanners.waiting.clear()
                        again.extendleft(reversed(guess.later))
                        buffer = cut[1]
                if block is None and not again:
                    break
        yield self._close(buffer)

    def _submit(self, scanners: Scanners, buffer: bytes) -> bytes:
        """Hand whole blocks to the scanners; what is left."""
        while len(buffer) >= stream.BLOCK and not self._closed:
            cuts = _last_cuts(buffer, min(len(buffer), _CUT_WITHIN))
            if not cuts:
                break
            scanners.submit(buffer, *cuts[0])
            buffer = buffer[cuts[0][1] :]
        self._check_size(buffer)
        return buffer

    def _check_size(self, buffer: bytes) -> None:
        if len(buffer) > _MAX_EVENT:
            raise InputError(f"{self.path}: no event ends within {_MAX_EVENT >> 20} MiB: not a trace")

    def _until_cut(self, source: Iterator[bytes]) -> Iterator[bytes]:
        try:
            yield from source
        except stream.TruncatedError as error:
            self.losses.truncated = str(error)

    def _open(self, source: Iterator[bytes]) -> bytes:
        """Read up to the first event; keeps what stands before it as the header."""
        buffer = b""
        for block in source:
            buffer += block
            begins = _NO_SPACE.search(buffer)  # without a copy: torch's files begin with a blank
            start = begins.start() if begins else len(buffer)
            if buffer.startswith(b"[", start):
                return buffer[start + 1 :]
            for opens in _ARRAY_OPENS.finditer(buffer):
                head = buffer[: opens.start()]
                header = _decoded(head + _NO_EVENTS)
                if header is None and len(head) <= _MAX_HEADER:
                    header = self._without_broken_lines(head)
                if isinstance(header, dict):
                    header.pop("traceEvents")
                    self.header.update(header)
                    return buffer[opens.end() :]
            if start < len(buffer) and not buffer.startswith(b"{", start):
                break
            if len(buffer) > _MAX_EVENT:
                break
        if self.losses.truncated:
            raise InputError(self.losses.truncated, hint="copy the file again: it is truncated before the first event")
        if not buffer.strip():
            raise InputError(f"{self.path}: is empty")
        raise InputError(f"{self.path}: holds no traceEvents: not a Chrome trace as torch.profiler writes it")

    def _without_broken_lines(self, head: bytes) -> Any:
        """The header less the lines whose text has a quote of its own: torch's exporter loses the backslash before it
        (`"command": "train.py --name /"base/""`)."""
        lines = head.split(b"\n")
        kept = [line for line in lines if not _BROKEN_TEXT.fullmatch(line)]
        header = _decoded(b"\n".join(kept) + _NO_EVENTS)
        if isinstance(header, dict):
            self.losses.broken_metadata += len(lines) - len(kept)
        return header

    def _cut(self, buffer: bytes) -> tuple[list[Event], bytes] | None:
        """Decode up to the last boundary between events; None where the buffer holds none yet."""
        limit = min(len(buffer), _CUT_WITHIN)
        cuts = _last_cuts(buffer, limit)
        for end, following in cuts:
            events = self._decode(buffer[:end])
            if events is not None:
                return events, buffer[following:]
        if not cuts:
            return None
        if (closed := self._close_within(buffer)) is not None:
            self._closed = True
            return closed
        end, following = cuts[0]
        return self._salvage(buffer[:end]), buffer[following:]

    def _close_within(self, buffer: bytes) -> tuple[list[Event], bytes] | None:
        """Where the array ends inside the buffer, its last events and nothing more to come."""
        for closes in _ARRAY_CLOSES.finditer(buffer):
            if _decoded(b"{" + buffer[closes.end() :].lstrip().removeprefix(b",")) is None:
                continue
            events = self._decode(buffer[: closes.start()])
            if events is not None:
                return events, buffer[closes.start() :]
        return None

    def _close(self, buffer: bytes) -> list[Event]:
        """The last events, and the header's part that stands behind them."""
        found: tuple[dict[str, Any], memoryview] | None = None
        closes_found = 0
        for start, end in _last_closes(buffer):
            rest = buffer[end:].strip()
            tail = {} if rest in (b"", b"}") else _decoded(b"{" + rest.removeprefix(b","))
            if not isinstance(tail, dict):
                continue
            # An array of the header may end here rather than that of the events: then what precedes it is no event.
            found = tail, memoryview(buffer)[:start]
            decoded = self._decode(found[1])
            if decoded is not None:
                self.header.update(tail)
                return decoded
            closes_found += 1
            if closes_found == _HEADER_ARRAYS:
                break
        if found is not None:
            self.header.update(found[0])
            return self._salvage(bytes(found[1]))
        self.losses.truncated = self.losses.truncated or f"{self.path}: the JSON ends early"
        complete = buffer.rstrip().rstrip(b",")
        decoded = self._decode(complete)
        return self._salvage(buffer, cut_off=True) if decoded is None else decoded

    def _decode(self, body: bytes | memoryview) -> list[Event] | None:
        """Events of `body`, which is `{…},{…}`; None where it is not well formed."""
        if self.scanner is not None and (found := self.scanner.scan(body)) is not None:
            made = self.scanner.block(found, body)
            if made is not None:
                self.losses.events += made[0]
                return made[1]  # type: ignore[no-any-return]
        text = b"[" + bytes(body).strip().rstrip(b",") + b"]"
        try:
            decoded = self._decoder.decode(text)
        except msgspec.ValidationError:
            return self._loosely(text)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return None
        self.losses.events += len(decoded)
        return [event for event in decoded if type(event) in _EVENTS]

    def _loosely(self, text: bytes) -> list[Event] | None:
        """Well-formed JSON in which some event has unusual types: decode them one by one."""
        try:
            raws = msgspec.json.decode(text, type=list[msgspec.Raw])
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return None
        events: list[Event] = []
        for raw in raws:
            events += self._single(bytes(raw))
        return events

    def _single(self, text: bytes) -> list[Event]:
        try:
            decoded = self._decoder.decode(b"[" + text + b"]")
            self.losses.events += 1
            return [event for event in decoded if type(event) in _EVENTS]
        except UnicodeDecodeError:
            self.losses.invalid_utf8 += 1
            return self._single(text.decode("utf-8", "replace").encode())
        except msgspec.ValidationError:
            return self._forced(text)
        except (msgspec.DecodeError, RecursionError):
            repaired = _BARE_NUMBERS.sub(b"null", text)
            if repaired != text:
                return self._single(repaired)
            self.losses.undecodable += 1
            return []

    def _forced(self, text: bytes) -> list[Event]:
        """An event whose fields have unusual types (a name that is a number): its text is taken."""
        try:
            fields = _lenient.decode(text)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            self.losses.undecodable += 1
            return []
        if not fields:  # `{}` closes the array where a recorder has written a comma behind each event
            return []
        phase = _decoded(bytes(fields.get("ph", b"null")))
        label = {key: _decoded(bytes(fields[key])) for key in ("name", "cat", "pid", "tid") if key in fields}
        drawn = (label.get("pid"), label.get("tid"))
        if not isinstance(phase, str) or phase not in _PHASES or any(isinstance(one, dict | list) for one in drawn):
            self.losses.undecodable += 1
            return []
        self.losses.events += 1
        if phase != "X":
            return []
        return [
            Complete(
                name=str(label.get("name", "")),
                cat=str(label.get("cat") or ""),
                ts=fields.get("ts", msgspec.Raw(b"")),
                dur=fields.get("dur", msgspec.Raw(b"")),
                pid=label.get("pid"),
                tid=label.get("tid"),
                args=fields.get("args", msgspec.Raw(b"{}")),
            )
        ]

    def _salvage(self, body: bytes, cut_off: bool = False) -> list[Event]:
        """Decode event by event; one that is broken is counted, its neighbours are kept."""
        bounds = [0, *(match.end() for match in _BETWEEN.finditer(body)), len(body)]
        events: list[Event] = []
        index = 0
        while index < len(bounds) - 1:
            # A boundary can lie inside an event: then a few pieces together are well formed.
            for end in bounds[index + 1 : index + 1 + _PIECES_JOINED]:
                piece = body[bounds[index] : end].strip(b" \t\r\n,")
                if _well_formed(piece):
                    events += self._single(piece)
                    index = bounds.index(end, index)
                    break
            else:
                index += 1
                self.losses.undecodable += not (cut_off and index == len(bounds) - 1)
        return events


def _last_cuts(buffer: bytes, limit: int) -> list[tuple[int, int]]:
    """The last few (end of an event, start of the next) before `limit`, the last first."""
    window = 1 << 13
    while True:
        base = max(0, limit - window)
        found = list(_BETWEEN.finditer(buffer, base, limit))
        if len(found) >= _CUTS_TRIED or base == 0:
            return [(match.start() + 1, match.end()) for match in reversed(found[-_CUTS_TRIED:])]
        window *= 8


def _last_closes(buffer: bytes) -> Iterator[tuple[int, int]]:
    """Where an array of events may end, the last first: as `_ARRAY_CLOSES`, but read backwards."""
    tried, bracket = 0, len(buffer)
    while tried < _CLOSES_TRIED and (bracket := buffer.rfind(b"]", 0, bracket)) >= 0:
        base = max(0, bracket - _MAX_SPACE)
        start = base + len(buffer[base:bracket].rstrip())
        if match := _ARRAY_CLOSES.match(buffer, start):
            tried += 1
            yield match.span()


def _decoded(text: bytes) -> Any:
    """JSON, or None where it is malformed."""
    try:
        return msgspec.json.decode(_BARE_NUMBERS.sub(b"null", text))
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None


def _well_formed(text: bytes) -> bool:
    return text.startswith(b"{") and _decoded(text.decode("utf-8", "replace").encode()) is not None

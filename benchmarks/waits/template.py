"""A real Kineto trace as a template, so that it can be written with other numbers."""

from __future__ import annotations

import gzip
import re
from dataclasses import dataclass
from pathlib import Path

import msgspec

_IDS = rb"correlation|External id|id"
_COUNTERS = rb"Ev Idx|Profiler Event Index|Record function id|Sequence number|Seq|Python id"
NUMBERS = re.compile(rb'"(ts|%b|%b)"\s*:\s*"?(\d+)' % (_IDS, _COUNTERS))
"""Only the digits before the point: a shift by whole microseconds leaves the rest as it is."""
_STEP_EVENT = re.compile(rb'"name"\s*:\s*"ProfilerStep#(\d+)"')


class _Event(msgspec.Struct):
    ph: str = ""
    cat: str = ""
    ts: float | str = 0
    dur: float | str = 0


@dataclass(frozen=True)
class Template:
    """A real trace as a template: the text before and after its events, and the events as text to fill in."""

    before: bytes
    """The document up to its first event."""
    once: list[bytes]
    """Events written once: names of threads, the profiler's own span."""
    after: bytes
    """The document from the end of its events."""
    text: list[bytes]
    """The text around the numbers of one copy; one piece more than numbers."""
    kinds: list[str]
    """Per number: what it is."""
    values: list[int]
    """Per number: its value in the real trace."""
    strides: dict[str, int]
    """Per kind of number: what one copy adds to it."""
    steps: list[bytes]
    """The step annotations, by number."""
    events: int
    """Events of one copy, its steps not counted."""

    @property
    def size(self) -> int:
        """Bytes of one copy, roughly."""
        return sum(map(len, self.text)) + 12 * len(self.values) + sum(map(len, self.steps))


def read_template(source: Path) -> Template:
    """Parse a Kineto trace into a template. Raises `ValueError` for one without `ProfilerStep` annotations."""
    raw = source.read_bytes()
    plain = gzip.decompress(raw) if raw[:2] == b"\x1f\x8b" else raw
    document = msgspec.json.decode(plain, type=dict[str, msgspec.Raw])
    repeated: list[bytes] = []
    once: list[bytes] = []
    steps: dict[int, bytes] = {}
    low, high = float("inf"), float("-inf")
    for event in msgspec.json.decode(document["traceEvents"], type=list[msgspec.Raw]):
        text, known = bytes(event), msgspec.json.decode(event, type=_Event)
        if known.ph not in "Xsf" or known.cat == "Trace":
            once.append(text)
            continue
        low, high = min(low, float(known.ts)), max(high, float(known.ts) + float(known.dur or 0))
        if known.cat == "user_annotation" and (step := _STEP_EVENT.search(text)):
            steps[int(step[1])] = text
        else:
            repeated.append(text)
    if not steps:
        raise ValueError(f"{source}: has no ProfilerStep annotations to repeat")
    pieces, kinds, values = _numbers(b",\n  ".join(repeated))
    keys = list(document)
    fields = {key: b'  "%b": %b' % (key.encode(), bytes(document[key])) for key in keys}
    before = [fields[key] + b",\n" for key in keys[: keys.index("traceEvents")]]
    after = [b",\n" + fields[key] for key in keys[keys.index("traceEvents") + 1 :]]
    return Template(
        before=b"{\n" + b"".join(before) + b'  "traceEvents": [\n  ',
        once=once,
        after=b"\n  ]" + b"".join(after) + b"\n}\n",
        text=pieces,
        kinds=kinds,
        values=values,
        strides=_strides(kinds, values, int(high - low) + 2),
        steps=[steps[number] for number in sorted(steps)],
        events=len(repeated),
    )


def _numbers(body: bytes) -> tuple[list[bytes], list[str], list[int]]:
    """The text around the numbers, and the numbers with what they are."""
    text: list[bytes] = []
    kinds: list[str] = []
    values: list[int] = []
    position = 0
    for match in NUMBERS.finditer(body):
        text.append(body[position : match.start(2)])
        kinds.append(match[1].decode())
        values.append(int(match[2]))
        position = match.end()
    return [*text, body[position:]], kinds, values


def _strides(kinds: list[str], values: list[int], period_us: int) -> dict[str, int]:
    highest: dict[str, int] = {}
    for kind, value in zip(kinds, values, strict=True):
        highest[kind] = max(highest.get(kind, 0), value)
    # A flow and the events it joins carry the same number: these kinds move together.
    ids = {kind for kind in highest if kind.encode() in _IDS.split(b"|")}
    strides = {kind: value + 1 for kind, value in highest.items()}
    strides.update(dict.fromkeys(ids, max((strides[kind] for kind in ids), default=1)))
    return strides | {"ts": period_us}

"""Snapshots of PyTorch's caching allocator: `torch.cuda.memory._snapshot()` or `_dump_snapshot()`, as a pickle.

Read are the layout of today (segments, device_traces, allocator_settings), that before PyTorch 2.1 (blocks with
`history` for `frames`, addresses to be counted up), a bare list of segments as `torch.cuda.memory_snapshot()`
gives it, and Ascend's, whose events carry no time.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from gpuscope.errors import InputError
from gpuscope.problems import job
from gpuscope.sources.source import Files, ReadOptions, Role, rank_in_name
from gpuscope.trace.builder import TraceBuilder
from gpuscope.trace.frameworks import FRAME_TEXT, frame_text, informative
from gpuscope.trace.name_pool import NO_NAME
from gpuscope.trace.schema import NA, NS_PER_US, AllocatorAction, BlockState

MAX_BYTES = 2 << 30
"""Some 200 bytes an event with its stack: ten million events, of which 200,000 are kept by default."""
_PICKLE = b"\x80"
_LIMIT = 1 << 57
"""Addresses have at most 57 bits, and no device has as many bytes."""
_TIME_LIMIT = 1 << 52
"""µs: the year 2112."""
_ACTIONS = {action.name.lower(): action for action in AllocatorAction}
_NO_ACTIONS = frozenset({"snapshot", "user_defined", "workspace_snapshot"})
"""Marks in the history that are no work of the allocator."""
_STATES = {
    "active_allocated": BlockState.ALLOCATED,
    "active_pending_free": BlockState.AWAITING_FREE,
    "active_awaiting_free": BlockState.AWAITING_FREE,
    "inactive": BlockState.INACTIVE,
}


class AllocatorSnapshotSource:
    """Reads a snapshot into `segments`, `blocks` and `allocator_events`."""

    name = "allocator-snapshot"
    files = Files(
        Role.RECORD,
        (".pickle", ".pkl"),
        one_per_rank=False,
        alone="allocator snapshots show how memory is used, not where time goes: add a trace of the ranks",
    )

    def sniff(self, path: Path, head: bytes) -> bool:
        """A pickle that speaks of segments of memory."""
        if path.is_dir() or not head.startswith(_PICKLE):
            return False
        return (b"segments" in head and b"device_traces" in head) or (
            b"total_size" in head and (b"segment_type" in head or b"blocks" in head)
        )

    def peek_rank(self, path: Path, head: bytes) -> int | None:  # noqa: ARG002 - a protocol's signature
        """The rank in the file's name: `rank3_oom.pickle`."""
        return rank_in_name(path)

    def read(self, path: Path, builder: TraceBuilder, options: ReadOptions) -> None:
        """Read a snapshot. Raises `InputError` for one that is damaged, cut off, hostile, or none."""
        snapshot = _load(path)
        if options.advance:
            options.advance(path.stat().st_size)
        _Reader(builder, rank_in_name(path) or 0, path, snapshot).read()


def _load(path: Path) -> Mapping[str, Any]:
    try:
        size = path.stat().st_size
        if size > MAX_BYTES:
            raise InputError(
                f"{path}: is too large for an allocator snapshot ({size} bytes)",
                hint="record fewer events: torch.cuda.memory._record_memory_history(max_entries=200000, …)",
            )
        from gpuscope.sources.pytorch import log_signs

        snapshot = log_signs.loads(path.read_bytes())
    except OSError as error:
        raise InputError(f"{path}: can't be read: {error.strerror or error}") from error
    except InputError as error:
        raise (
            error if str(path) in error.message else InputError(f"{path}: {error.message}", hint=error.hint)
        ) from error
    if isinstance(snapshot, list):
        snapshot = {"segments": snapshot}
    if not isinstance(snapshot, dict) or not isinstance(snapshot.get("segments"), list):
        raise InputError(f"{path}: not an allocator snapshot", hint="write one with torch.cuda.memory._dump_snapshot()")
    return snapshot


class _Reader:
    """One snapshot on its way into the builder."""

    def __init__(self, builder: TraceBuilder, rank: int, path: Path, snapshot: Mapping[str, Any]) -> None:
        self.builder, self.rank, self.path, self.snapshot = builder, rank, path, snapshot
        self._stacks: dict[tuple[int, ...], int] = {}
        self._lost = self._cut = 0

    def read(self) -> None:
        builder, name = self.builder, self.path.name
        traces = [trace for trace in _list(self.snapshot.get("device_traces")) if isinstance(trace, list)]
        settings = self.snapshot.get("allocator_settings")
        events = sum(map(len, traces))
        facts = {
            "allocator_settings": settings if isinstance(settings, dict) else None,
            "rank_told": rank_in_name(self.path) is not None,
        }
        source = builder.source(self.path, AllocatorSnapshotSource.name, "", events, facts)
        builder.add("ranks", 1, {"rank": self.rank, "source": source})
        self._segments(source)
        for device, trace in enumerate(traces):
            self._events(source, device, trace)
        builder.problem(job.ENTRY_UNREADABLE, self._lost, file=name)
        builder.problem(job.FRAME_NAME_CUT, self._cut, file=name, characters=FRAME_TEXT)
        builder.problem(job.NO_HISTORY, int(not events), file=name)

    def _segments(self, source: int) -> None:
        segments: list[dict[str, Any]] = []
        blocks: list[dict[str, Any]] = []
        for segment in self.snapshot["segments"]:
            row = self._segment(segment)
            if row is None:
                self._lost += 1
                continue
            blocks += self._blocks(segment, len(segments))
            segments.append(row)
        first = self._add("segments", segments, {"rank": self.rank, "source": source})
        for block in blocks:
            block["segment"] += first
        self._add("blocks", blocks, {"rank": self.rank})

    def _segment(self, segment: Any) -> dict[str, Any] | None:
        if not isinstance(segment, dict) or not isinstance(segment.get("blocks"), list):
            return None
        device, address, size = (_number(segment.get(key)) for key in ("device", "address", "total_size"))
        if NA in (device, address, size):
            return None
        pool = segment.get("segment_pool_id")
        private = isinstance(pool, tuple | list) and any(pool)
        return {
            "device": device,
            "address": address,
            "bytes": size,
            "stream": _or_0(segment.get("stream")),
            "small": int(segment.get("segment_type") == "small"),
            "expandable": int(bool(segment.get("is_expandable"))),
            "private_pool": self.builder.names.code(str(tuple(pool))) if private and pool is not None else NO_NAME,
            "frames": self._frames(segment.get("frames")),
        }

    def _blocks(self, segment: Mapping[str, Any], row: int) -> list[dict[str, Any]]:
        rows: list[dict[str, Any]] = []
        address = int(segment["address"])
        for block in segment["blocks"]:
            size = _number(block.get("size")) if isinstance(block, dict) else NA
            state = _STATES.get(str(block.get("state"))) if size != NA else None
            if state is None:
                self._lost += 1
                continue
            recorded = _number(block.get("address"))
            history = [entry for entry in _list(block.get("history")) if isinstance(entry, dict)]
            requested = _number(block.get("requested_size", history[0].get("real_size") if history else None))
            frames = block.get("frames") or (history[0].get("frames") if history else None)
            rows.append(
                {
                    "segment": row,
                    "address": address if recorded == NA else recorded,
                    "bytes": size,
                    "requested": requested if state != BlockState.INACTIVE else NA,
                    "state": int(state),
                    "frames": self._frames(frames),
                }
            )
            address = min(address + size, _LIMIT)
        return rows

    def _events(self, source: int, device: int, trace: Sequence[Any]) -> None:
        rows: list[dict[str, Any]] = []
        for entry in trace:
            name = entry.get("action") if isinstance(entry, dict) else None
            action, size = _ACTIONS.get(str(name)), _number(entry.get("size")) if name is not None else NA
            if str(name) in _NO_ACTIONS:
                continue
            address = _number(entry.get("addr")) if action is not None else NA
            if action is None or size == NA or (address == NA) != (action == AllocatorAction.OOM):
                self._lost += 1
                continue
            time = _number(entry.get("time_us"))
            time = time * NS_PER_US if 0 <= time < _TIME_LIMIT else NA
            rows.append(
                {
                    "action": int(action),
                    "address": address,
                    "bytes": size,
                    "stream": _or_0(entry.get("stream")),
                    "time": time,
                    "device_free": _number(entry.get("device_free")),
                    "frames": self._frames(entry.get("frames")),
                }
            )
        self._add("allocator_events", rows, {"rank": self.rank, "source": source, "device": device})

    def _add(self, table: str, rows: Sequence[Mapping[str, Any]], common: Mapping[str, int]) -> int:
        columns = {key: [row[key] for row in rows] for key in rows[0]} if rows else {}
        return self.builder.add(table, len(rows), {**common, **columns})

    def _frames(self, frames: Any) -> int:
        """The code of a stack; stacks share frames, so each is put into words once."""
        own = [frame for frame in _list(frames) if isinstance(frame, dict)]
        if not own:
            return NO_NAME
        key = tuple(map(id, own))  # the snapshot outlives the reader, so ids stay distinct
        if key not in self._stacks:
            kept = informative((str(frame.get("name")), str(frame.get("filename")), frame.get("line")) for frame in own)
            texts = [frame_text(*frame) for frame in kept]
            self._cut += sum(cut for _, cut in texts)
            self._stacks[key] = self.builder.names.code("\n".join(text for text, _ in texts))
        return self._stacks[key]


def _number(value: Any) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < _LIMIT else NA


def _or_0(value: Any) -> int:
    number = _number(value)
    return 0 if number == NA else number


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


SOURCE = AllocatorSnapshotSource()

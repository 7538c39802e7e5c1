"""What packets of a sequence refer to by number: interned names, and the tracks that slices are drawn on."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from gpuscope.sources.perfetto.annotation_values import text
from gpuscope.trace.columns.name_pool import NamePool

_MASKED = 0x7FFFFFFF
"""The encoder masks negative ids with it: −1."""
OVERHEAD = b"Overhead"


@dataclass
class Interned:
    """The names of one sequence, until it says that they are void."""

    names: dict[int, int] = field(default_factory=dict)
    """Event names: number → code in the pool."""
    categories: dict[int, str] = field(default_factory=dict)
    specifications: dict[int, bytes] = field(default_factory=dict)
    """Render stages and hardware queues."""
    counters: dict[int, tuple[int, dict[int, str]]] = field(default_factory=dict)
    """Descriptors: (GPU, counters by number)."""

    def take(self, data: Any, pool: NamePool) -> int:
        """Take in interned data; returns how many names are not UTF-8."""
        bad = 0
        for one in data.event_names:
            name = text(one.name)
            bad += "\ufffd" in name
            self.names[one.iid] = pool.code(name)
        for one in data.event_categories:
            self.categories[one.iid] = text(one.name)
        for one in data.gpu_specifications:
            self.specifications[one.iid] = one.name
        for one in data.gpu_counter_descriptors:
            self.counters[one.iid] = (one.gpu_id, counter_names(one.descriptor))
        return bad


def counter_names(descriptor: Any) -> dict[int, str]:
    """Names of counters by number."""
    return {spec.counter_id: text(spec.name) for spec in descriptor.specs}


@dataclass
class Tracks:
    """Threads by the uuid of their track."""

    threads: dict[int, tuple[int | None, int | None]] = field(default_factory=dict)
    names: dict[tuple[int, int], str] = field(default_factory=dict)
    overhead: set[int] = field(default_factory=set)
    """Tracks of the profiler's own work."""

    def take(self, track: Any) -> None:
        """Take in a track descriptor."""
        if track.HasField("thread"):
            pid, tid = _signed(track.thread.pid), _signed(track.thread.tid)
            self.threads[track.uuid] = pid, tid
            if track.thread.thread_name:
                self.names[pid, tid] = text(track.thread.thread_name)
            if track.parent_uuid in self.overhead:
                self.overhead.add(track.uuid)
        elif track.HasField("process"):
            self.threads[track.uuid] = _signed(track.process.pid), 0
            if track.process.process_name == OVERHEAD:
                self.overhead.add(track.uuid)
        else:
            self.threads[track.uuid] = None, track.uuid % _MASKED

    def thread(self, uuid: int) -> tuple[int | None, int | None]:
        """(pid, tid) of a track; of one that was never described its own number stands for the thread."""
        return self.threads.get(uuid, (None, uuid % _MASKED))


def _signed(number: int) -> int:
    return -1 if number == _MASKED else number

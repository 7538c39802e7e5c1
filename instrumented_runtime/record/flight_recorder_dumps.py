"""Flight Recorder dumps: the last collectives of a rank, for `torchfrtrace` and `gpuscope analyze`.

NCCL's watchdog dumps by itself on a timeout; this writes a dump on demand, on a hang, and at the end. What
torch's recorder leaves open on gloo (state, times, sends and receives, the groups' members) is filled in
from `collective_log.LOG`.
"""

from __future__ import annotations

import ast
import math
import os
import pickle
import re
import shutil
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from gpuscope.instrumented_runtime.record.collective_log import LOG, Collective, Group
from gpuscope.instrumented_runtime.record.run_folder import RankFolder, rank_parts
from gpuscope.sources.pytorch.flight_recorder import messages_done
from gpuscope.trace.name_pool import item_bytes

# torch's own Flight Recorder in this process: one for NCCL and one for every other backend, read as one.

# The first one is there only in a torch that was built with NCCL.
READERS = ("_dump_nccl_trace", "_dump_fr_trace")


def has_nccl() -> bool:
    """Whether a group of this process may use NCCL. Of gloo alone the recorder tells nothing worth its cost: every
    entry stays `scheduled`, and thousands take a hundredth of a second and the GIL."""
    from torch.distributed import distributed_c10d as c10d

    configs = getattr(getattr(c10d, "_world", None), "pg_backend_config", {}).values()
    return any("nccl" in str(config) for config in configs)


class GraphCaptures:
    """Keeps dumps out of captures of CUDA graphs: a dump asks CUDA for the state of events, which another thread must
    not do while a graph is captured in the default mode: the capture would be invalid."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._capturing = 0
        self._watched: Any = None

    def watch(self, graphs: Any) -> None:
        """Have the captures of `graphs` (torch.cuda.CUDAGraph) wait for a dump under way, and be known."""
        if self._watched is graphs:
            return
        self._watched = graphs
        begin, end = graphs.capture_begin, graphs.capture_end

        def capture_begin(own: Any, *args: Any, **kwargs: Any) -> Any:
            with self._lock:
                self._capturing += 1
            try:
                return begin(own, *args, **kwargs)
            except BaseException:
                self._ended()
                raise

        def capture_end(own: Any, *args: Any, **kwargs: Any) -> Any:
            try:
                return end(own, *args, **kwargs)
            finally:
                self._ended()

        graphs.capture_begin, graphs.capture_end = capture_begin, capture_end

    def _ended(self) -> None:
        with self._lock:
            self._capturing = max(self._capturing - 1, 0)

    def between(self, dump: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        """A dump, or none where a graph is being captured."""
        with self._lock:
            return {} if self._capturing else dump()


CAPTURES = GraphCaptures()


def recorded(*, stacks: bool = True, only_active: bool = False) -> dict[str, Any]:
    """A dump in the recorder's format; empty on a torch that has none, and while a CUDA graph is captured. Callable
    while a rank hangs."""
    return CAPTURES.between(lambda: _recorded(stacks, only_active))


def _recorded(stacks: bool, only_active: bool) -> dict[str, Any]:
    try:
        from torch._C import _distributed_c10d as c10d
    except ImportError:
        return {}
    readers = [getattr(c10d, name) for name in READERS if hasattr(c10d, name)]
    return merged([_read(reader, stacks, only_active) for reader in readers])


def _read(reader: Callable[..., bytes], stacks: bool, only_active: bool) -> dict[str, Any]:
    dump: dict[str, Any] = pickle.loads(reader(includeStackTraces=stacks, onlyActive=only_active))
    return dump


def merged(dumps: list[dict[str, Any]]) -> dict[str, Any]:
    """Merges several dumps: entries in order of creation, each once; the first of equal keys wins."""
    whole: dict[str, Any] = {}
    for dump in dumps:
        for key, value in dump.items():
            if isinstance(value, dict):
                whole[key] = value | whole.get(key, {})
            elif key != "entries":
                whole.setdefault(key, value)
    entries = {_identity(entry): entry for dump in dumps for entry in dump.get("entries", [])}
    if entries:
        whole["entries"] = sorted(entries.values(), key=lambda entry: entry["time_created_ns"])
    return whole


def _identity(entry: dict[str, Any]) -> tuple[Any, ...]:
    return tuple(entry[key] for key in ("time_created_ns", "profiling_name", "pg_id", "record_id"))


# NCCL's collectives as torch's Flight Recorder has them, in the form of `collective_log`.

_PEERS = re.compile(r"(send|recv) (\d+)(->|<-)(\d+)")


def collectives_in(dump: Mapping[str, Any]) -> tuple[list[Group], list[Collective]]:
    """The groups and collectives of a dump; gloo's entries hold too little and are skipped. Messages of which nothing
    tells whether they are done count as done: a watch must not take them for what waits."""
    groups = {
        name: Group(name, config.get("desc", ""), tuple(ast.literal_eval(config.get("ranks") or "[]")))
        for name, config in dump.get("pg_config", {}).items()
        if name
    }
    collectives = []
    messages = messages_done(dump.get("entries", []))
    for place, entry in enumerate(dump.get("entries", [])):
        if entry["profiling_name"].startswith("gloo:"):
            continue
        name, description = entry["process_group"]
        group = groups.setdefault(name, Group(name, description, ()))
        collectives.append(_collective(entry, group, done=messages.get(place, False) is not False))
    return [groups[name] for name in groups], collectives


def _collective(entry: Mapping[str, Any], group: Group, *, done: bool) -> Collective:
    op = entry["profiling_name"].partition(":")[2]
    src = dst = None
    peers = _PEERS.match(op)
    if peers is not None:
        op, first, _, second = peers.groups()
        src, dst = (int(first), int(second)) if op == "send" else (int(second), int(first))
        if group.ranks:
            src, dst = group.ranks[src], group.ranks[dst]
    done = done or entry["state"] == "completed" or bool(entry.get("retired"))
    dtype = (entry.get("input_dtypes") or [""])[0]
    return Collective(
        op=op,
        group=group,
        seq=0 if peers else entry["collective_seq_id"],
        p2p_seq=entry["p2p_seq_id"] if peers else 0,
        elements_in=sum(math.prod(size) for size in entry["input_sizes"]),
        elements_out=sum(math.prod(size) for size in entry["output_sizes"]),
        dtype=dtype,
        item_bytes=max(item_bytes(dtype), 0),
        sizes_in=entry["input_sizes"],
        sizes_out=entry["output_sizes"],
        src=src,
        dst=dst,
        issued_ns=entry["time_created_ns"],
        started_ns=entry.get("time_discovered_started_ns"),
        completed_ns=(entry.get("time_discovered_completed_ns") or entry["time_created_ns"]) if done else None,
    )


FOLDER = "flight_recorder"
PREFIX = "nccl_trace_rank_"
PREFIXES = ("TORCH_FR_DUMP_TEMP_FILE", "TORCH_NCCL_DEBUG_INFO_TEMP_FILE")
"""Variables with the path of NCCL's own dumps, without the rank; the first that is set counts."""
ELSEWHERE = "flight_recorder_prefix"
VERSION = "2.10"
OURS = "instrumented_runtime/record/"


class FlightRecorder:
    """Dumps at the end, unless a hang or an error was dumped before: that dump is worth more."""

    name = "flight_recorder"

    def __init__(self, entries: int) -> None:
        self._entries = entries
        self._dumped = False

    def start(self, folder: RankFolder) -> None:
        """Turn torch's recorder on, if no group exists yet."""
        self._folder = folder
        LOG.keep_latest(self._entries)
        self._note_elsewhere()
        if folder.part.restart:  # NCCL's own dumps of this restart must not overwrite those of the one before
            for name in PREFIXES:
                if os.environ.get(name, "").startswith(str(folder.path)):
                    os.environ[name] = str(folder.file(f"{FOLDER}/{PREFIX}"))
        # torch aborts on an empty variable.
        if not os.environ.get("TORCH_FR_BUFFER_SIZE"):
            os.environ["TORCH_FR_BUFFER_SIZE"] = str(self._entries)

    def step(self, step: int) -> None:
        """A framework may set its own variables at any time before it makes its groups."""
        if step == 0:
            self._note_elsewhere()

    def _note_elsewhere(self) -> None:
        """Note where NCCL's watchdog writes, if a framework (torchtitan, say) chose that: for `collected`."""
        prefix = next((os.environ[name] for name in PREFIXES if os.environ.get(name)), "")
        if prefix and not prefix.startswith(str(self._folder.path)):
            self._folder.note(**{ELSEWHERE: os.path.abspath(prefix)})

    def stop(self) -> None:
        """The dump at the end."""
        if not self._dumped:
            self.dump(note="at the end", final=False)

    def may_dump_again(self) -> None:
        """What was dumped was no hang: `stop` writes its own."""
        self._dumped = False

    def dump(self, *, note: str, subfolder: str = FOLDER, final: bool = True) -> Path | None:
        """Write this rank's dump; None if there was no collective. After a `final` dump, `stop` writes none.

        Callable from any thread, also while the main thread hangs in a collective.
        """
        dump = filled(recorded(), LOG.groups.values(), LOG.recent())
        if not dump["entries"]:
            return None
        dump["gpuscope_note"] = note  # a dump on demand, or at the end, need not be of a hang
        path = self._folder.file(f"{subfolder}/{PREFIX}{self._folder.part.rank}")
        if path.exists() and not final:  # written by NCCL's watchdog, which saw what stopped the job
            self._folder.add_file(path, self.name, note="on timeout")
            return path
        write(path, dump)
        self._dumped = self._dumped or final
        self._folder.add_file(path, self.name, note=note)
        return path


def collected(run: Path, *, since_ns: int) -> list[tuple[Path, int]]:
    """What NCCL's watchdog wrote in this run, each with its rank: copies of what lay elsewhere, and what lies in the
    folder and no rank has listed, since the watchdog ends it. A dump of the recorder's, on a hang, stays."""
    found = []
    for part in rank_parts(run):
        theirs = Path(f"{part.facts.get(ELSEWHERE, '')}{part.rank}")
        life = f"restart{part.restart}" if part.restart else ""
        path = run / life / FOLDER / f"{PREFIX}{part.rank}"
        if ELSEWHERE in part.facts and not path.exists() and theirs.is_file() and theirs.stat().st_mtime_ns >= since_ns:
            path.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(theirs, path)
        if path.exists() and path.relative_to(run).as_posix() not in {entry.path for entry in part.files}:
            found.append((path, part.rank))
    return found


def write(path: Path, dump: Mapping[str, Any]) -> None:
    """Write a dump, whole or not at all; makes its folder."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.partial")
    partial.write_bytes(pickle.dumps(dump, protocol=2))
    partial.replace(path)


def filled(dump: Mapping[str, Any], groups: Iterable[Group], collectives: Sequence[Collective]) -> dict[str, Any]:
    """`dump` with the state and times of gloo's entries, its sends and receives, and its groups.

    gloo's entries are recognised by name and joined to collectives by (group, sequence number). A running one is
    `started`. Collectives that torch did not record become entries of their own, without frames.
    """
    known = {(entry.group.name, entry.seq): entry for entry in collectives if not entry.is_p2p}
    entries = []
    for record in dump.get("entries", []):
        key = (record["process_group"][0], record["collective_seq_id"])
        record = record | {"frames": _script_frames(record.get("frames", []))}
        entry = known.pop(key, None) if record["profiling_name"].startswith("gloo:") else None
        entries.append(record if entry is None else record | _progress(entry))
    missing = [*known.values(), *(entry for entry in collectives if entry.is_p2p)]
    entries += [_entry(entry) for entry in missing]
    entries.sort(key=lambda entry: entry["time_created_ns"])
    for number, record in enumerate(entries):
        record["record_id"] = number
    groups = list(groups)
    config = {name: group for name, group in dump.get("pg_config", {}).items() if name}
    config |= {
        group.name: {"name": group.name, "desc": group.description, "ranks": str(list(group.ranks))} for group in groups
    }
    return {
        "version": dump.get("version", VERSION),
        "pg_config": config,
        "comm_lib_version": dump.get("comm_lib_version", ""),
        "dumped_ns": time.time_ns(),  # torch does not record it; without it the last one's waiting time is unknown
        "pg_status": {**dump.get("pg_status", {}), **_status(groups, collectives)},
        "entries": entries,
    }


def _script_frames(frames: Any) -> Any:
    """A stack without the recorder's own frames."""
    if not isinstance(frames, list):
        return frames
    return [frame for frame in frames if OURS not in str(frame.get("filename"))]


def _progress(entry: Collective) -> dict[str, Any]:
    done = entry.completed_ns is not None and entry.error is None
    # gloo carries a reduce-scatter out as an all-reduce, and torch recorded that one's sizes.
    sizes = {"input_sizes": _whole(entry, entry.sizes_in), "output_sizes": _whole(entry, entry.sizes_out)}
    return (sizes if entry.op == "reduce_scatter" else {}) | {
        "profiling_name": f"gloo:{_name(entry)}",
        "state": "completed" if done else "started",
        "time_discovered_started_ns": entry.issued_ns,
        "time_discovered_completed_ns": entry.completed_ns if done else None,
        "retired": done,
    }


def _entry(entry: Collective) -> dict[str, Any]:
    return {
        "frames": [],
        "pg_id": 0,
        "process_group": (entry.group.name, entry.group.description),
        "collective_seq_id": entry.seq,
        "p2p_seq_id": entry.p2p_seq,
        "op_id": 0,
        "time_created_ns": entry.issued_ns,
        "input_sizes": _whole(entry, entry.sizes_in),
        "input_dtypes": [entry.dtype] * min(1, len(entry.sizes_in)),
        "output_sizes": _whole(entry, entry.sizes_out),
        "output_dtypes": [entry.dtype] * min(1, len(entry.sizes_out)),
        "timeout_ms": 0,
        "is_p2p": entry.is_p2p,
        **_progress(entry),
    }


def _name(entry: Collective) -> str:
    """As torch names NCCL's: `send 0->1` and `recv 1<-0` by ranks within the group."""
    if not entry.is_p2p:
        return entry.op
    ranks = entry.group.ranks
    src = ranks.index(entry.src) if entry.src is not None else -1
    dst = ranks.index(entry.dst) if entry.dst is not None else -1
    return f"send {src}->{dst}" if entry.op == "send" else f"recv {dst}<-{src}"


def _whole(entry: Collective, sizes: Sequence[Sequence[int]]) -> list[list[int]]:
    """A list of tensors counts as one array, as in the entries of the single-tensor calls."""
    if entry.op in ("all_gather", "reduce_scatter") and len(sizes) > 1:
        return [[entry.elements_out if sizes is entry.sizes_out else entry.elements_in]]
    return [list(one) for one in sizes]


def _status(groups: Iterable[Group], collectives: Sequence[Collective]) -> dict[str, dict[str, int]]:
    """The last collective that was enqueued, started and completed, per group; −1 for none."""
    status = {}
    for group in groups:
        mine = [entry for entry in collectives if entry.group is group and not entry.is_p2p]
        last = max((entry.seq for entry in mine), default=-1)
        done = max((e.seq for e in mine if e.completed_ns is not None and e.error is None), default=-1)
        status[group.name] = {
            "last_enqueued_collective": last,
            "last_started_collective": last,
            "last_completed_collective": done,
        }
    return status

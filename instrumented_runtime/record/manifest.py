"""The contents of `manifest.json`, and how the launcher's and ranks' parts are merged."""

from __future__ import annotations

import errno
import os
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec

from gpuscope.version import __version__

# JSON files that are replaced atomically, and that can be written once more where the disk is full.
#
# Space given back to a full disk is taken by whoever writes next, so none is given back: a reserve is a file of blanks
# beside the one it is for, and on a full disk its own blocks are written over, in place, and take the other's name.

FULL = (errno.ENOSPC, errno.EDQUOT)


def encoded(value: Any) -> bytes:
    """`value` as indented JSON."""
    return msgspec.json.format(msgspec.json.encode(value, enc_hook=str), indent=2) + b"\n"


def reserve(path: Path, size: int) -> None:
    """Set `size` bytes aside for `path`. Raises `OSError`."""
    _reserve_of(path).write_bytes(b" " * size)


def release(path: Path) -> None:
    """Give the reserve of `path` back. Raises `OSError`."""
    _reserve_of(path).unlink(missing_ok=True)


def write_json(path: Path, value: Any) -> None:
    """Replace `path`. Raises `OSError`, on a full disk only where there is no reserve or it is too small."""
    data = encoded(value)
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        temporary.write_bytes(data)
        os.replace(temporary, path)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        if error.errno not in FULL or not _written_over(path, data):
            raise


def _reserve_of(path: Path) -> Path:
    return path.with_name(f".{path.name}.reserve")


def _written_over(path: Path, data: bytes) -> bool:
    """Whether the reserve, or what it has become, had room for `data`; blanks fill the rest."""
    blocks = _reserve_of(path) if _reserve_of(path).exists() else path
    size = blocks.stat().st_size if blocks.exists() else 0
    if size < len(data):
        return False
    with blocks.open("r+b") as file:
        file.write(data + b" " * (size - len(data)))
    if blocks != path:
        os.replace(blocks, path)
    return True


SCHEMA_VERSION = 1

# Kind of file -> what wrote it.
KINDS = {
    "torch_profiler": "torch.profiler: a trace in Chrome's JSON, gzipped",
    "nsys": "Nsight Systems: a report",
    "collectives": "the log of gloo's collectives, JSON lines",
    "flight_recorder": "torch's Flight Recorder: a pickle of the last collectives",
    "stacks": "faulthandler: the stacks of all threads",
    "memory_snapshot": "the CUDA caching allocator: a pickle",
    "environment": "versions, variables, processors and GPUs, JSON",
    "topology": "nvidia-smi topo -m",
    "nccl_log": "NCCL's log",
    "nccl_inspector": "NCCL Inspector's records",
    "compile_log": "torch.compile's log, as `TORCH_TRACE` writes it",
    "steps": "when each step ended, JSON lines",
    "digest": "a digest of every step, JSON lines (`--always`)",
    "measures": "the measures of `gpuscope train` per step, JSON lines",
}


class FileEntry(msgspec.Struct, kw_only=True):
    """One file: `path` relative to the run folder, `kind` one of `KINDS`."""

    path: str
    kind: str
    rank: int | None = None
    bytes: int | None = None
    note: str | None = None


class Problem(msgspec.Struct, kw_only=True):
    """Something lost or wrong while recording; severity is info, data_loss or error."""

    severity: str
    code: str
    message: str
    rank: int | None = None


class RankStatus(msgspec.Struct, kw_only=True):
    """How one rank ended (one restart of it, if torchrun restarted it)."""

    rank: int
    restart: int = 0
    local_rank: int = 0
    host: str = ""
    pid: int = 0
    status: str = "running"  # running, completed, failed, interrupted, killed
    started_ns: int = 0
    ended_ns: int | None = None
    error: str | None = None


class RankPart(RankStatus, kw_only=True):
    """What one rank writes: its status, its files, and facts of the run that it knows."""

    world_size: int = 1
    files: list[FileEntry] = []
    problems: list[Problem] = []
    facts: dict[str, Any] = {}


class Launch(msgspec.Struct, kw_only=True):
    """How `gpuscope record` started the command, so that it can be run again: `gpuscope again`."""

    folder: str
    variables: dict[str, str] = {}  # those that may be kept: gpuscope/recorded_environment.py
    options: dict[str, Any] = {}  # fields of RecordOptions that differ from their defaults


class RunPart(msgspec.Struct, kw_only=True):
    """What the launcher writes, or the first rank where there is no launcher (`launched` False)."""

    run_id: str
    command: list[str]
    started_ns: int
    ended_ns: int | None = None
    status: str = "running"
    exit_code: int | None = None
    launched: bool = True
    launch: Launch | None = None
    parallelism: dict[str, Any] | None = None
    config: dict[str, Any] | None = None
    changes: dict[str, str] = {}  # values by name: record/applied
    faults: list[dict[str, Any]] = []
    files: list[FileEntry] = []
    problems: list[Problem] = []


class Manifest(msgspec.Struct, kw_only=True):
    """The merged manifest. Times are ns since the epoch; `started` and `ended` are the same in readable form."""

    schema_version: int = SCHEMA_VERSION
    gpuscope_version: str = __version__
    run_id: str = ""
    command: list[str] = []
    launch: Launch | None = None
    status: str = "running"
    exit_code: int | None = None
    started: str = ""
    ended: str | None = None
    started_ns: int = 0
    ended_ns: int | None = None
    world_size: int | None = None
    backend: str | None = None
    framework: str | None = None
    parallelism: dict[str, Any] | None = None
    config: dict[str, Any] | None = None
    changes: dict[str, str] = {}
    versions: dict[str, Any] = {}
    faults: list[dict[str, Any]] = []  # ground truth of the injected faults; empty: none
    ranks: list[RankStatus] = []
    files: list[FileEntry] = []
    problems: list[Problem] = []


def merge(run: RunPart, parts: Sequence[RankPart]) -> Manifest:
    """One manifest from the launcher's part and the ranks'.

    A rank that did not close its part of an ended, launched run was killed, unless the command succeeded. Without a
    launcher the run has ended when every rank of the world has.
    """
    parts = sorted(parts, key=lambda part: (part.restart, part.rank))
    facts: dict[str, Any] = {}
    for part in reversed(parts):  # the lowest rank's facts win
        facts.update(part.facts)
    world_size = max((part.world_size for part in parts), default=None)
    status, ended_ns = (run.status, run.ended_ns) if run.launched else _status_of(parts)
    last = max((part.restart for part in parts), default=0)
    ranks = [_rank_status(part, run, succeeded=run.exit_code == 0 and part.restart == last) for part in parts]
    return Manifest(
        run_id=run.run_id,
        command=run.command,
        launch=run.launch,
        status=status,
        exit_code=run.exit_code,
        started=_readable(run.started_ns),
        ended=_readable(ended_ns) if ended_ns else None,
        started_ns=run.started_ns,
        ended_ns=ended_ns,
        world_size=world_size,
        backend=facts.get("backend"),
        framework=facts.get("framework"),
        parallelism=run.parallelism or facts.get("parallelism"),
        config=run.config or facts.get("config"),
        changes=run.changes,
        versions=facts.get("versions", {}),
        faults=_with_injected(run.faults + facts.get("faults", []), parts),
        ranks=ranks,
        files=run.files + [entry for part in parts for entry in part.files],
        problems=run.problems + [problem for part in parts for problem in part.problems],
    )


def _with_injected(truths: list[dict[str, Any]], parts: Sequence[RankPart]) -> list[dict[str, Any]]:
    """What was planned, and under `injected` what each rank did (`faults.ledger`)."""
    rows = [row for part in parts for row in part.facts.get("injected", [])]
    return [
        {
            **truth,
            "injected": [
                {key: value for key, value in row.items() if key != "fault"}
                for row in rows
                if row["fault"] == truth["fault"]
            ],
        }
        if "fault" in truth
        else truth  # a launcher's own record, of a fault that is not from this package
        for truth in truths
    ]


def _status_of(parts: Sequence[RankPart]) -> tuple[str, int | None]:
    last_life = max((part.restart for part in parts), default=0)
    parts = [part for part in parts if part.restart == last_life]
    open_parts = [part for part in parts if part.ended_ns is None]
    if not parts or open_parts or len(parts) < parts[0].world_size:
        return "running", None
    worst = next((part.status for part in parts if part.status != "completed"), "completed")
    return worst, max(part.ended_ns or 0 for part in parts)


def _rank_status(part: RankPart, run: RunPart, *, succeeded: bool) -> RankStatus:
    status = RankStatus(**{field: getattr(part, field) for field in RankStatus.__struct_fields__})
    if run.launched and run.ended_ns is not None and part.ended_ns is None:
        status.status = "completed" if succeeded else "killed"
    return status


def _readable(time_ns: int) -> str:
    return datetime.fromtimestamp(time_ns / 1e9, tz=UTC).isoformat(timespec="milliseconds")

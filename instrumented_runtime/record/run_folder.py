"""The run folder: everything one recorded job leaves behind, and the manifest that says what is what.

    RUN/manifest.json         the whole job: what ran, how it ended, every file with its kind and rank
    RUN/manifest.d/*.json     the parts it is merged from, one per writer, so that no two processes ever
                              write one file; a rank that is killed leaves its last part behind
    RUN/rank0.json.gz …       what the captures wrote

A launcher calls `RunFolder.create`, each rank `RunFolder.join(rank)`; a script without a launcher needs
only the latter. Every write is atomic: at any instant the folder can be read.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import socket
import sys
import time
import uuid
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from gpuscope.errors import InputError, UsageError
from gpuscope.instrumented_runtime.record.manifest import (
    FileEntry,
    Manifest,
    Problem,
    RankPart,
    RunPart,
    encoded,
    merge,
    release,
    reserve,
    write_json,
)
from gpuscope.instrumented_runtime.record.ranges import launched_rank
from gpuscope.recorded_environment import redacted_command

PARTS = "manifest.d"
MANIFEST = "manifest.json"
ENV_FOLDER = "GPUSCOPE_RUN_FOLDER"
ENV_RUN_ID = "GPUSCOPE_RUN_ID"

# Set aside, so that how the job and each rank ended can be written on a full disk too.
_PART_BYTES, _MANIFEST_BYTES = 16 * 1024, 64 * 1024

T = TypeVar("T")


class RankTakenError(UsageError):
    """The folder holds a recording of this rank already."""


class RunFolder:
    """A run folder as its launcher sees it: `create` it, run the job, `finish`."""

    def __init__(self, path: Path, run: RunPart) -> None:
        self.path = Path(os.path.realpath(path))  # of a link to itself `resolve` fails
        self.run = run

    @classmethod
    def create(cls, path: str | os.PathLike[str], *, command: Sequence[str], **facts: Any) -> RunFolder:
        """Start a run in a new or empty folder. `facts` are fields of `RunPart` (parallelism, faults…).

        Raises `UsageError` if the folder holds anything, `InputError` if it can't be written.
        """
        folder = Path(path)
        if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
            raise UsageError(
                f"{folder} exists already",
                hint="choose a new folder, or remove this one if you no longer need it",
            )
        run = RunPart(run_id=_new_run_id(), command=redacted_command(command), started_ns=time.time_ns(), **facts)
        created = cls(folder, run)
        with _writing(folder):
            (folder / PARTS).mkdir(parents=True)
            reserve(folder / PARTS / "run.json", _PART_BYTES)
            reserve(folder / MANIFEST, _MANIFEST_BYTES)
        created.save()
        return created

    def environment(self) -> dict[str, str]:
        """Variables by which the ranks find this folder."""
        return {ENV_FOLDER: str(self.path.resolve()), ENV_RUN_ID: self.run.run_id}

    def add_file(self, path: str | os.PathLike[str], kind: str, *, rank: int | None = None) -> None:
        """List a file that no rank has listed itself."""
        self.run.files.append(_entry(self.path, Path(path), kind, rank, None))

    def problem(self, code: str, message: str, *, severity: str = "error") -> None:
        """Record a loss or an error for the analysis."""
        self.run.problems.append(Problem(severity=severity, code=code, message=message))

    def save(self) -> None:
        """Write this part and the merged manifest. Raises `InputError` if they can't be written."""
        with _writing(self.path):
            write_json(self.path / PARTS / "run.json", self.run)
            refresh(self.path)

    def finish(self, status: str, *, exit_code: int | None = None) -> Manifest:
        """Close the run: `completed`, `failed` or `interrupted`. A rank that is still open was killed."""
        self.run.status, self.run.exit_code, self.run.ended_ns = status, exit_code, time.time_ns()
        self.save()
        with contextlib.suppress(OSError):
            release(self.path / MANIFEST)
            for part in (self.path / PARTS).glob("*.json"):
                release(part)
        return read_manifest(self.path)


class RankFolder:
    """A run folder as one rank sees it: it writes its own files and its own part of the manifest."""

    def __init__(self, path: Path, part: RankPart) -> None:
        self.path = Path(os.path.realpath(path))  # of a link to itself `resolve` fails
        self.part = part
        # After an elastic restart the same rank runs again; the files of the first run are kept.
        self.files = self.path / f"restart{part.restart}" if part.restart else self.path
        self._told: str | None = None

    @classmethod
    def join(
        cls, path: str | os.PathLike[str], *, rank: int, world_size: int, command: Sequence[str] | None = None
    ) -> RankFolder:
        """Join `path` as `rank`; create it if no launcher has. Raises `UsageError` if this rank has already
        recorded there: it is another run's folder."""
        folder = Path(path)
        restart = int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"))
        with _writing(folder):
            (folder / PARTS).mkdir(parents=True, exist_ok=True)
            _start_run_once(folder, command)
        part = RankPart(
            rank=rank,
            world_size=world_size,
            restart=restart,
            local_rank=launched.local_rank if (launched := launched_rank()) else 0,
            host=socket.gethostname(),
            pid=os.getpid(),
            started_ns=time.time_ns(),
        )
        joined = cls(folder, part)
        with _writing(folder):
            try:
                os.close(os.open(joined._part_path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o644))
            except FileExistsError:
                raise RankTakenError(
                    f"{folder} already holds a recording of rank {rank}",
                    hint="choose a new folder, or remove this one if you no longer need it",
                ) from None
            joined.files.mkdir(exist_ok=True)
            reserve(joined._part_path, _PART_BYTES)
        joined.save()
        return joined

    @classmethod
    def join_next(cls, path: str | os.PathLike[str]) -> RankFolder:
        """Join as the lowest rank that no process has taken: for processes that have no rank of their own."""
        rank = 0
        while True:
            try:
                return cls.join(path, rank=rank, world_size=rank + 1)
            except RankTakenError:
                rank += 1

    @property
    def _part_path(self) -> Path:
        life = f".restart{self.part.restart}" if self.part.restart else ""
        return self.path / PARTS / f"rank{self.part.rank}{life}.json"

    def file(self, name: str) -> Path:
        """Path for a file of this rank; creates its folder."""
        path = self.files / name
        path.parent.mkdir(parents=True, exist_ok=True)
        return path

    def below(self, name: str) -> RankFolder:
        """This rank's part of the folder with its files in a folder of their own; entries go into the same manifest."""
        inner = RankFolder(self.path, self.part)
        inner.files = self.files / name
        inner.files.mkdir(exist_ok=True)
        return inner

    def add_file(self, path: str | os.PathLike[str], kind: str, *, note: str | None = None) -> None:
        """List a complete file; replaces an earlier entry of it."""
        entry = _entry(self.path, Path(path), kind, self.part.rank, note)
        self.part.files = [other for other in self.part.files if other.path != entry.path] + [entry]
        self.save()

    def note(self, **facts: Any) -> None:
        """Record facts that ranks know first: versions, backend, parallelism, faults…"""
        self.part.facts.update(facts)
        self.save()

    def problem(self, code: str, message: str, *, severity: str = "error") -> None:
        """Record a loss or an error, and print it on stderr: a recorder must never fail silently."""
        self.part.problems.append(Problem(severity=severity, code=code, message=message, rank=self.part.rank))
        if severity != "info":
            print(f"gpuscope: rank {self.part.rank}: {message}", file=sys.stderr, flush=True)
        self.save()

    def withdraw(self, code: str) -> None:
        """Problems of this code turned out to be none."""
        self.part.problems = [problem for problem in self.part.problems if problem.code != code]
        self.save()

    def replace_file(self, entry: FileEntry, path: Path) -> None:
        """A listed file lies elsewhere now."""
        self.part.files.remove(entry)
        self.add_file(path, entry.kind, note=None if entry.note is None else f"{entry.note} that was a pause")

    def save(self) -> None:
        """Write this rank's part. A full disk is reported on stderr and does not stop the job."""
        try:
            write_json(self._part_path, self.part)
        except OSError as error:
            if self._told != error.strerror:
                print(f"gpuscope: rank {self.part.rank}: {self._part_path}: {error.strerror}", file=sys.stderr)
            self._told = error.strerror

    def finish(self, status: str, *, error: str | None = None) -> None:
        """Close this rank's part; only the first call (say, with the exception) counts."""
        if self.part.ended_ns is not None:
            return
        self.part.status, self.part.error, self.part.ended_ns = status, error, time.time_ns()
        self.save()
        with contextlib.suppress(OSError):
            release(self._part_path)
        with contextlib.suppress(OSError):
            refresh(self.path)


def read_manifest(path: str | os.PathLike[str]) -> Manifest:
    """The manifest of a run folder, merged from its parts, so that it is valid while the job still runs.

    Raises `InputError` if it is not a run folder.
    """
    folder = Path(path)
    run = _read_json(folder / PARTS / "run.json", RunPart)
    if run is None:
        manifest = _read_json(folder / MANIFEST, Manifest)
        if manifest is None:
            raise InputError(
                f"{folder} is not a run folder: it has no {MANIFEST}",
                hint="give the folder that gpuscope train or gpuscope record writes",
            )
        return manifest
    parts = [_read_json(part, RankPart) for part in sorted((folder / PARTS).glob("rank*.json"))]
    return merge(run, [part for part in parts if part is not None])


def rank_parts(path: Path) -> list[RankPart]:
    """What each rank wrote in its last life, by rank. Raises `InputError` for a part that can't be read."""
    parts = [_read_json(part, RankPart) for part in sorted((path / PARTS).glob("rank*.json"))]
    last = {part.rank: part for part in sorted((one for one in parts if one), key=lambda part: part.restart)}
    return [part for _, part in sorted(last.items())]


def refresh(folder: Path) -> None:
    """Merge the parts into `manifest.json`."""
    with _lock(folder / PARTS / "lock"):
        write_json(folder / MANIFEST, read_manifest(folder))


def _new_run_id() -> str:
    return time.strftime("%Y%m%dT%H%M%S") + "-" + uuid.uuid4().hex[:8]


def _start_run_once(folder: Path, command: Sequence[str] | None) -> None:
    """Without a launcher the first rank writes the run's part; the others find it."""
    part = folder / PARTS / "run.json"
    if part.exists():
        return
    run = RunPart(
        run_id=_new_run_id(), command=redacted_command(command or sys.argv), started_ns=time.time_ns(), launched=False
    )
    temporary = part.with_name(f".run.{os.getpid()}.{socket.gethostname()}")
    try:
        temporary.write_bytes(encoded(run))
        os.link(temporary, part)  # unlike rename, fails where another rank was first
    except FileExistsError:
        pass
    except OSError:  # no hard links here, or a full disk, which the copy will report
        if not part.exists():
            shutil.copyfile(temporary, part)
    finally:
        temporary.unlink(missing_ok=True)


def _entry(folder: Path, path: Path, kind: str, rank: int | None, note: str | None) -> FileEntry:
    path = path if path.is_absolute() else folder / path
    size = path.stat().st_size if path.exists() else None
    try:
        name = path.resolve().relative_to(folder.resolve()).as_posix()
    except ValueError:
        name = str(path)
    return FileEntry(path=name, kind=kind, rank=rank, bytes=size, note=note)


def _read_json(path: Path, kind: type[T]) -> T | None:
    """The record in `path`, or None: a rank killed while joining leaves an empty file."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=kind)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        if path.stat().st_size == 0:
            return None
        raise InputError(f"{path} can't be read: {error}") from None


@contextlib.contextmanager
def _writing(folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise InputError(
            f"can't write the run folder {folder}: {error.strerror}", hint="choose another folder with --out"
        ) from None


@contextlib.contextmanager
def _lock(path: Path) -> Iterator[None]:
    """One merge at a time, if the file system has locks; a lost race only delays the merge."""
    with path.open("w") as lock:
        with contextlib.suppress(OSError):
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield

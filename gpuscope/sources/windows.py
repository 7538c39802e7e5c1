"""Recordings of the same ranks at several times of one run: a folder each (torchtitan's `iteration_10/` and so on), or
several files of a rank side by side (a schedule of torch.profiler that repeats).

They are windows of one run where their steps go on from one to the next, or where they are of one process; else they
may be different runs, and are not chosen among. Definitions: «Ranks of a file and of a folder».
"""

from __future__ import annotations

import os
import re
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import combinations, pairwise
from pathlib import Path
from typing import Any

from gpuscope import when_used
from gpuscope.errors import InputError, MissingExtraError, UsageError
from gpuscope.sources import stream
from gpuscope.when_used import dataclass

# Ranks by the names of files together, where neither the files nor a labelled number (`rank7`) tell them.
#
# Definitions: «Ranks of a file and of a folder».

_ENGINE = when_used.pattern(r"(?:.*-|^)TP-?(?P<tp>\d+)(?:-DP-?(?P<dp>\d+))?(?:-PP-?(?P<pp>\d+))?(?:-EP-?\d+)?(?=\.|$)")
"""SGLang's names: `1722…-TP-1-DP-0.trace.json.gz`, and `TP01-DP00` within a merged file; expert parallelism divides the
same ranks anew."""
_NUMBER = when_used.pattern(r"\d+")


def by_names(paths: Sequence[Path]) -> dict[Path, int]:
    """The rank of each file, for all or for none of them: the parallel ranks in an engine's names, tensor within data
    within pipeline parallelism; else the one number in which the names differ, if these are 0 … n−1."""
    engine = engine_ranks([path.name for path in paths])
    return dict(zip(paths, engine, strict=True)) if engine else _bare(paths)


def engine_ranks(names: Sequence[str]) -> list[int]:
    """The rank of each name by its places in the parallel groups; empty where a name has none, or two have the same."""
    found = [match for name in names if (match := _ENGINE.match(name))]
    if len(found) < len(names) or not names:
        return []
    places = [tuple(int(match[axis] or 0) for axis in ("pp", "dp", "tp")) for match in found]
    _, data, tensor = (1 + max(place[axis] for place in places) for axis in range(3))
    ranks = [(pp * data + dp) * tensor + tp for pp, dp, tp in places]
    return ranks if len(set(ranks)) == len(ranks) else []


def _bare(paths: Sequence[Path]) -> dict[Path, int]:
    """Of one file's number nothing tells what it means."""
    names = [f"{path.parent.name}/{path.name}" for path in paths]
    numbers = [[int(number) for number in _NUMBER.findall(name)] for name in names]
    if len(paths) < 2 or len({_NUMBER.sub("#", name) for name in names}) > 1:
        return {}
    columns = [column for column in zip(*numbers, strict=True) if sorted(column) == list(range(len(paths)))]
    return dict(zip(paths, columns[0], strict=True)) if len(columns) == 1 else {}


# Traces by URL (s3://, gs://, hdfs://, ssh:// …), through fsspec: found here, fetched where they are read.

HEAD_BYTES = 256 << 10
"""Of a remote file, to recognise its format by."""
_VERSIONS = ("ETag", "etag", "md5Hash", "version_id", "checksum", "LastModified", "last_modified", "updated", "mtime")
"""What storages call that which changes with a file's content (s3fs, gcsfs, adlfs, HDFS, SSH, local)."""
_ONE_SLASH = when_used.pattern(r"^([A-Za-z][A-Za-z0-9+]+):/(?!/)")


def is_url(named: object) -> bool:
    """Whether an argument is a URL and no path."""
    text = str(named)
    scheme, separator, _ = text.partition("://")
    return bool(separator) and scheme.replace("+", "").isalnum()


@dataclass(frozen=True)
class RemoteFile:
    """A file of some storage."""

    url: str
    size: int
    """Bytes."""
    version: str
    """What the storage says of its content (an ETag, a checksum, the time of its last change); empty where nothing."""


def expand(url: str, suffixes: tuple[str, ...]) -> list[RemoteFile]:
    """The files of a URL: itself, what a glob matches, or a folder's files that end in `suffixes`.

    Raises `InputError` where there is none or the storage refuses, `MissingExtraError` where fsspec or the library of
    the protocol is not installed.
    """
    filesystem, path = _opened(url)
    protocol = url.partition("://")[0]
    try:
        # With their details, in one listing: to ask for each of thousands takes minutes.
        if "*" in url or "?" in url:
            found = {name: info for name, info in filesystem.glob(path, detail=True).items() if _is_file(info)}
        elif filesystem.isdir(path):
            found = filesystem.find(path, detail=True)
            found = {name: info for name, info in found.items() if str(name).endswith(suffixes)}
        else:
            found = {path: filesystem.info(path)}
    except Exception as error:  # every storage has errors of its own
        raise _refused(url, error) from None
    if not found:
        raise InputError(f"{url}: no traces")
    files = (
        RemoteFile(
            f"{protocol}://{str(name).removeprefix(f'{protocol}://')}", int(info.get("size") or 0), _version(info)
        )
        for name, info in found.items()
    )
    return sorted(files, key=lambda file: file.url)


def _is_file(info: Mapping[str, Any]) -> bool:
    return bool(info.get("type", "file") == "file")


def _version(info: Mapping[str, Any]) -> str:
    return " ".join(f"{key}={info[key]}" for key in _VERSIONS if info.get(key))


def shown(path: Path) -> str:
    """A path as text; one that stands for a URL as that URL, of which a path keeps one slash only."""
    return _ONE_SLASH.sub(r"\1://", str(path))


@contextmanager
def beginning(url: str, size: int) -> Iterator[Path]:
    """A local file of the same name with the first bytes of a remote one of that size, to recognise its format."""
    import tempfile

    filesystem, path = _opened(url)
    with tempfile.TemporaryDirectory(prefix="gpuscope-") as folder:
        local = Path(folder) / url.rpartition("/")[2]
        try:
            # Some storages refuse a range beyond the end.
            local.write_bytes(filesystem.cat_file(path, start=0, end=min(size, HEAD_BYTES)) if size else b"")
        except Exception as error:
            raise _refused(url, error) from None
        yield local


@contextmanager
def fetched(url: str) -> Iterator[Path]:
    """The whole file as a local one, removed afterwards."""
    import tempfile

    filesystem, path = _opened(url)
    with tempfile.TemporaryDirectory(prefix="gpuscope-") as folder:
        local = Path(folder) / url.rpartition("/")[2]
        try:
            filesystem.get_file(path, str(local))
        except Exception as error:
            raise _refused(url, error) from None
        yield local


def _opened(url: str) -> tuple[Any, str]:
    try:
        import fsspec
    except ImportError:
        raise MissingExtraError("fsspec") from None
    try:
        filesystem, path = fsspec.core.url_to_fs(url)
    except ImportError as error:
        raise InputError(
            f"{url}: {error}", hint="install the library of that protocol, such as s3fs or gcsfs"
        ) from None
    except Exception as error:
        raise _refused(url, error) from None
    return filesystem, path


def _refused(url: str, error: Exception) -> InputError:
    if isinstance(error, FileNotFoundError):
        return InputError(f"{url}: no such file or directory")
    return InputError(f"{url}: can't be read: {type(error).__name__}: {error}")


_NUMBERED = when_used.pattern(r"(?P<before>.*?)(?P<number>\d+)(?P<after>\D*)")
_STEP = when_used.pattern(rb"ProfilerStep#(\d+)")
_TEXTS = (".json", ".json.gz")
_HANDLER = when_used.pattern(r"(?P<process>.+_\d+)\.\d{10,}\.pt\.trace\.json(\.gz)?")
"""Files of torch's `tensorboard_trace_handler`: host, process id, time of writing."""
_PROCESS = when_used.pattern(
    rb'(?:"cat"\s*:\s*"(?:cpu_op|user_annotation|cuda_runtime)"|"gpuscope_digest":)[^{}]*?"pid"\s*:\s*(\d+)'
)

Rank = Callable[[Path], int | None]


@dataclass(frozen=True)
class Windows:
    """The windows of a run below a folder."""

    folder: Path
    files: dict[int, list[Path]]
    """By the number in their folder's name, else 1, 2 … as they were recorded."""
    names: dict[int, str]

    def chosen(self, asked: int | None, ranks: Rank) -> int:
        """The one asked for; else the latest that has all ranks, or as many as any. Raises `UsageError` for none."""
        if asked is not None:
            if asked not in self.files:
                there = ", ".join(map(str, sorted(self.files)))
                raise UsageError(f"{self.folder}: has no window {asked}", hint=f"its windows: {there}")
            return asked
        return max(self.files, key=lambda number: (len({ranks(path) for path in self.files[number]}), number))


_LOOP = when_used.pattern(r"\b(train(ing)?|val(idation)?|eval(uation)?|test|predict(ion)?)(_step|_loop|_epoch)?\b")
"""What frameworks call their loops in files' names, as whole words between points (Lightning: `….training_step.…`)."""
_TRAINS = when_used.pattern(
    rb"Optimizer\.(?:step|zero_grad)#|autograd::engine::evaluate_function|aten::_fused_(?:adam|sgd)|optimizer_step"
)
"""What only a loop that trains records."""


@dataclass(frozen=True)
class Loops:
    """Recordings of several loops of the same processes, each of which counts its own steps."""

    read: str
    """What the recordings that hold the optimizer are of."""
    others: tuple[str, ...]
    gone: frozenset[Path]
    """The files of the other loops."""
    example: str


def training_loop(files: Sequence[Path], ranks: Rank) -> Loops | None:
    """Recordings that train beside others of the same processes that do not (training beside validation); None where
    they are not so."""
    by_rank: dict[object, list[Path]] = defaultdict(list)
    for path in files:
        if not path.name.endswith(_TEXTS):
            return None
        rank = ranks(path)
        by_rank[rank if rank is not None else _process(path)].append(path)
    if not by_rank or None in by_rank or any(len(own) < 2 for own in by_rank.values()):
        return None
    for own in by_rank.values():
        processes = {_process(path) for path in own}
        if len(processes) > 1 or None in processes:
            return None  # runs of their own
    training = {path for path in files if _trains(path)}
    gone = frozenset(set(files) - training)
    if not gone or any(len(training.intersection(own)) in (0, len(own)) for own in by_rank.values()):
        return None
    named = {path: _loop_of(path) for path in sorted(files)}
    read = sorted({named[path] for path in training})
    others = sorted({named[path] for path in gone})
    return Loops(" and ".join(read), tuple(others), gone, min(path.name for path in gone))


def _loop_of(path: Path) -> str:
    """What a file's name calls its loop, else the name."""
    found = next((part for part in path.name.split(".") if _LOOP.fullmatch(part.lower())), None)
    return found or path.name


def _trains(path: Path) -> bool:
    left = b""
    try:
        for block in stream.blocks(path):
            text = left + block
            if _TRAINS.search(text):
                return True
            left = text[-64:]
    except (InputError, stream.TruncatedError):
        pass  # reading it says what is wrong
    return False


def windows(files: Sequence[Path], ranks: Rank) -> Windows | None:
    """The windows that the traces of a folder are; None where they are none."""
    folder = Path(os.path.commonpath([path.parent for path in files]))
    if all(path.parent == folder for path in files):
        return _side_by_side(folder, files, ranks)
    by_number: dict[int, list[Path]] = defaultdict(list)
    names: dict[int, str] = {}
    for path in files:
        inner = path.relative_to(folder).parts
        found = _NUMBERED.fullmatch(inner[0]) if len(inner) > 1 else None
        if found is None:
            return None
        by_number[int(found["number"])].append(path)
        names[int(found["number"])] = inner[0]
    if len(by_number) < 2 or len({re.sub(r"\d+", "#", name) for name in names.values()}) > 1:
        return None
    common = set.intersection(*({ranks(path) for path in own} for own in by_number.values())) - {None}
    if not common:  # folders of nodes, say, each with ranks of its own
        return None
    rank = min(one for one in common if one is not None)
    steps = [_steps(next(path for path in by_number[number] if ranks(path) == rank)) for number in sorted(by_number)]
    goes_on = all(one and other and max(one) < min(other) for one, other in pairwise(steps))
    return Windows(folder, dict(by_number), names) if goes_on else None


def _side_by_side(folder: Path, files: Sequence[Path], ranks: Rank) -> Windows | None:
    """Files of one folder, as many of each rank."""
    own: dict[object, list[Path]] = defaultdict(list)
    for path in sorted(files, key=lambda path: (len(path.name), path.name)):
        rank = ranks(path)
        own[rank if rank is not None else _process(path)].append(path)
    counts = {len(of_one) for of_one in own.values()}
    if len(counts) != 1 or counts == {1} or None in own:
        return None
    for of_one in own.values():
        steps = {path: _steps(path) for path in of_one}
        if any(one & other for one, other in combinations(steps.values(), 2)):
            return None  # runs of their own
        processes = {_process(path) for path in of_one}
        if not all(steps.values()) and (len(processes) > 1 or None in processes):
            return None  # nothing says that they are of one run
        of_one.sort(key=lambda path, first=steps: min(first[path], default=0))  # type: ignore[misc]
    by_number = {number: list(at_once) for number, at_once in enumerate(zip(*own.values(), strict=True), 1)}
    return Windows(folder, by_number, {number: at_once[0].name for number, at_once in by_number.items()})


def _process(path: Path) -> str | None:
    """The process that a trace of torch.profiler or a digest is of, by its name, else by its beginning."""
    if named := _HANDLER.fullmatch(path.name):
        return named["process"]
    try:
        found = _PROCESS.search(stream.head(path))
    except InputError:
        return None
    return found[1].decode() if found else None


def _steps(path: Path) -> set[int]:
    """Numbers of the profiler's steps in a trace of torch.profiler; none of another."""
    found: set[int] = set()
    if not path.name.endswith(_TEXTS):
        return found
    try:
        left = b""
        for block in stream.blocks(path):
            text = left + block
            found.update(int(number[:18]) for number in _STEP.findall(text))
            left = text[-64:]
    except (InputError, stream.TruncatedError):
        pass  # reading it says what is wrong
    return found

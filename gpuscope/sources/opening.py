"""From what the user names (files, folders, globs) to one Trace of many ranks."""

from __future__ import annotations

import glob
import os
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import field, replace
from itertools import islice
from pathlib import Path

import numpy as np

from gpuscope import archives
from gpuscope import cache as file_cache
from gpuscope.errors import InputError, UsageError
from gpuscope.native import release_memory
from gpuscope.problems import job, reading
from gpuscope.problems.problem import Problem
from gpuscope.sources import rank_numbers, run_manifest, stream, windows
from gpuscope.sources.pytorch import execution_trace
from gpuscope.sources.run_manifest import ended
from gpuscope.sources.source import (
    Files,
    ReadOptions,
    Role,
    SeveralRanks,
    Source,
    all_sources,
    check_readable,
    files_below,
    files_of,
    hang_records_below,
    is_record,
    is_timeline,
    last_attempt,
    newest_dumps,
    rank_in_name,
    records_below,
    records_beside,
    source_for,
    source_of,
    suffixes_of,
)
from gpuscope.sources.stream import other_kind, placeholder
from gpuscope.trace.builder import TraceBuilder
from gpuscope.trace.name_pool import NO_NAME
from gpuscope.trace.schema import NA
from gpuscope.trace.table import Table
from gpuscope.trace.trace import Trace, merge, with_world_size
from gpuscope.when_used import dataclass
from gpuscope.words import units

PathLike = str | os.PathLike[str]

LARGE = 32 << 20
"""Bytes of a file that leave so much freed memory behind that giving it back pays."""

RECORDINGS = (".gz", ".pickle", ".pkl", ".zst")
"""Suffixes of files that some profiler wrote, whatever it is."""
NAMES_TOLD = 4
"""Files of no known format that are named one by one."""
LOOKED_AT = 200
"""Files of a folder without a trace that are looked at, to name what they are."""
NOTHING_RECORDED = "record fewer steps sooner (--wait, --warmup, --active), or --whole where no optimizer steps"


@dataclass(frozen=True)
class Input:
    """A file (or export directory) to read, and the rank from its name or head."""

    path: Path
    source: Source
    rank: int | None
    first_rank: int | None = None
    """Its first rank where the file records none and others beside it neither."""
    beside: bool = False
    """Whether it is a record found in a folder beside other files: without it those can still be analysed."""
    url: str = ""
    """Where it is, if not on this machine; `path` then only names it."""
    url_bytes: int = 0
    url_version: str = ""
    """What its storage says of its content; empty where nothing."""
    left_out: tuple[Problem, ...] = ()
    """What of its folder is not read: jobs of other roles, other windows of its run."""
    linked: tuple[Path, ...] = ()
    """Execution traces beside it, one of which may be of its process."""
    in_archive: Path | None = None
    """Its archive's path and its own in there, where `path` is the unpacked file."""

    @property
    def read_so(self) -> tuple[object, ...]:
        """What decides what is read of it, besides its own content."""
        others = ((path, (status := path.stat()).st_size, status.st_mtime_ns) for path in self.linked)
        return self.first_rank, *others

    @property
    def shown(self) -> str:
        """The path, or the URL, as text."""
        return self.url or str(self.in_archive or self.path)

    @property
    def name(self) -> str:
        """The file's own name."""
        return self.path.name

    @property
    def size(self) -> int:
        """Bytes, packed as they are."""
        if isinstance(self.source, Unreadable):
            return 0
        return self.url_bytes if self.url else self.path.stat().st_size


def _listed(paths: Iterable[PathLike | Sequence[PathLike]]) -> list[PathLike]:
    """The paths, also those that a caller gives as a list of them. Raises `UsageError` where one is no path."""
    found: list[PathLike] = []
    for named in paths:
        if isinstance(named, list | tuple):
            found += _listed(named)
        elif not isinstance(named, str | os.PathLike):
            raise UsageError(f"{named!r} is not a path", hint="give paths as text or pathlib.Path")
        elif not str(named):
            raise UsageError("an empty path", hint="name a file, a folder or a glob; . is this folder")
        else:
            found.append(named)
    return found


def asked_ranks(ranks: Collection[int] | str | int | None) -> Collection[int] | None:
    """The ranks that a caller asks for: numbers, one number, or text as for `--ranks`. Raises `UsageError` else."""
    try:
        if ranks is None:
            return None
        if isinstance(ranks, str):
            return frozenset(rank for span in rank_numbers.rank_spans(ranks) for rank in span)
        found = frozenset({ranks} if isinstance(ranks, int) else ranks)
    except (TypeError, ValueError):
        found = frozenset()
    if not found or not all(isinstance(rank, int) for rank in found):
        raise UsageError(f"{ranks!r} is not a set of ranks", hint="give numbers, for example {0, 1}, or text: '0-7,64'")
    return found


def inputs(
    paths: Sequence[PathLike],
    ranks: Collection[int] | None = None,
    window: int | None = None,
    role: str | None = None,
    *,
    skip_unreadable: bool = False,
) -> list[Input]:
    """What to read for `paths`: each a file, a folder of ranks, or a glob.

    Files whose rank is known by name or head and not in `ranks` are left out unread. Of a folder with jobs of several
    roles those of `role` are taken, of one with several windows of one run `window`, else the latest that all ranks
    share. Raises `InputError` where a path is missing or nothing in it is a trace, or where a file can't be opened,
    unless reading it may say so (`skip_unreadable`); `roles.SeveralRoles` where none is chosen, `UsageError` where no
    folder has that role or window.
    """
    paths = _listed(paths)
    found = [item for named in paths if windows.is_url(named) for item in _remote(str(named), ranks)]
    paths = [named for named in paths if not windows.is_url(named)]
    outright = {Path(named) for named in paths}
    files = list(dict.fromkeys(file for named in paths for file in _expand(named)))
    paths = [archives.folder_of(Path(named)) or named for named in paths]
    files, left_out = _of_one_job(paths, files, window, role)
    found += _unrecognised(paths, files)
    held: set[int] = set()
    for path in files:
        try:
            source, head = source_for(path)
        except InputError as error:
            if len(files) == 1:
                raise
            if not skip_unreadable:
                raise or_skip(error) from None
            found.append(Input(path, Unreadable(error.message, error.hint), rank_in_name(path)))
            continue
        rank = source.peek_rank(path, head)
        held |= set() if rank is None else {rank}
        # One file alone may be a merged one, whose head is that of its first rank: reading it tells.
        if ranks is None or rank is None or rank in ranks or len(files) == 1:
            beside = source.files.role is Role.RECORD and path not in outright and len(files) > 1
            found.append(Input(path, source, rank, beside=beside, left_out=left_out, in_archive=archives.shown(path)))
    if not found:
        named = ", ".join(os.fspath(path) for path in paths) or "the URLs"
        raise _none_of_the_ranks(named, held) if ranks else InputError(f"{named}: no traces")
    if len(files) > 1:
        found = [item for item in _named(found) if ranks is None or item.rank is None or item.rank in ranks]
    linked = tuple(item.path for item in found if item.source.name == execution_trace.SOURCE.name)
    found = [replace(item, linked=linked) if linked and is_timeline(item.source.name) else item for item in found]
    return sorted(found, key=lambda item: (item.rank is None, item.rank or 0, item.path))


def or_skip(error: InputError) -> InputError:
    """The error of one file of several, with the way to do without it."""
    hint = f"{error.hint.rstrip('.')}; or gpuscope" if error.hint else "gpuscope"
    return InputError(error.message, hint=f"{hint} analyze --skip-unreadable goes on without this file")


def _of_one_job(
    paths: Sequence[PathLike], files: list[Path], window: int | None, role: str | None
) -> tuple[list[Path], tuple[Problem, ...]]:
    """The files without those of other roles and windows, and what was left out, where one folder is named."""
    folder = Path(paths[0]) if len(paths) == 1 and os.path.isdir(paths[0]) else None
    timelines = [path for path in files if _is_trace(path)] if folder is not None and len(files) > 1 else []
    told: list[Problem] = []
    if folder is None or not timelines or not all(path.is_relative_to(folder) for path in files):
        if window is not None or role is not None:
            option = "--role" if window is None else "--window"
            raise UsageError(f"{option}: no folder with several of them is named", hint="name the folder above them")
        return files, ()
    if (of_role := rank_numbers.chosen(folder, timelines, role)) is not None:
        told.append(job.OTHER_ROLES.of(1, run=folder.name, read=of_role.role, others=", ".join(of_role.others)))
        files = [path for path in files if path not in of_role.gone]
        timelines = [path for path in timelines if path not in of_role.gone]
    if (loops := windows.training_loop(timelines, _rank_of)) is not None:
        told.append(
            job.OTHER_LOOPS.of(1, run=folder.name, read=loops.read, others=", ".join(loops.others), first=loops.example)
        )
        files = [path for path in files if path not in loops.gone]
        timelines = [path for path in timelines if path not in loops.gone]
    found = windows.windows(timelines, _rank_of)
    if found is None:
        if window is not None:
            raise UsageError(f"--window: {folder} does not hold several windows of one run", hint="leave it out")
        return files, tuple(told)
    taken = found.chosen(window, _rank_of)
    others = [number for number in sorted(found.files) if number != taken]
    gone = {path for number in others for path in found.files[number]}
    named = ", ".join(found.names[number] for number in others)
    told.append(job.OTHER_WINDOWS.of(1, run=found.folder.name, read=found.names[taken], others=named))
    return [path for path in files if path not in gone], tuple(told)


def _rank_of(path: Path) -> int | None:
    try:
        source, head = source_for(path)
        return source.peek_rank(path, head)
    except InputError:
        return None


def _named(items: list[Input]) -> list[Input]:
    """The timelines with ranks by their names, where none of them tells its own and none holds several processes."""
    timelines = [item for item in items if item.source.files.role is Role.TIMELINE]
    if any(item.rank is not None or isinstance(item.source, rank_numbers.HoldsProcesses) for item in timelines):
        return items
    ranks = windows.by_names([item.path for item in timelines])
    return [
        replace(item, rank=ranks[item.path], first_rank=ranks[item.path]) if item.path in ranks else item
        for item in items
    ]


@dataclass
class Unreadable:
    """Stands for files that are of no known format, or can't be opened: reading them says so."""

    why: str
    hint: str | None = None
    name: str = "unrecognised"
    files: Files = field(default_factory=lambda: Files(Role.RECORD, ()))

    def sniff(self, path: Path, head: bytes) -> bool:  # noqa: ARG002 - a protocol's signature
        """Nothing is found by it."""
        return False

    def peek_rank(self, path: Path, head: bytes) -> int | None:  # noqa: ARG002
        """Unknown."""
        return None

    def read(self, path: Path, builder: TraceBuilder, options: ReadOptions) -> None:  # noqa: ARG002
        """Raise `InputError`."""
        raise InputError(self.why, hint=self.hint)


def _unrecognised(paths: Sequence[PathLike], files: Collection[Path]) -> Iterator[Input]:
    """Of each folder without a timeline, what looks like a recording and is of no known format. Beside timelines other
    people's files are no news."""
    for folder in (Path(named) for named in paths if os.path.isdir(named)):
        own = [path for path in files if path.is_relative_to(folder)]
        if folder in own or any(_is_trace(path) for path in own):
            continue
        others = [path for path in files_below(folder) if path.name.endswith(RECORDINGS) and not is_record(path)]
        if others:
            shown = ", ".join(other.name for other in others[:NAMES_TOLD])
            more = f" and {len(others) - NAMES_TOLD} more" if len(others) > NAMES_TOLD else ""
            yield Input(others[0], Unreadable(f"{shown}{more}: unrecognised trace format"), None, beside=True)


def _remote(url: str, ranks: Collection[int] | None) -> Iterator[Input]:
    """The files of a URL, each recognised by its beginning."""
    suffixes = tuple(suffix for suffix in suffixes_of(Role.TIMELINE) if "/" not in suffix)
    found = windows.expand(url, suffixes)
    for file in found:
        name = file.url
        with windows.beginning(name, file.size) as local:
            try:
                source, head = source_for(local)
            except InputError as error:
                # Of a folder only traces are read: other people's JSON lies beside them.
                if len(found) > 1:
                    continue
                raise error.naming(name, local) from None
            if len(found) > 1 and source.files.role is not Role.TIMELINE:
                continue
            rank = _peeked(source, local, head)
        if ranks is None or rank is None or rank in ranks:
            yield Input(Path(name), source, rank, url=name, url_bytes=file.size, url_version=file.version)


def _peeked(source: Source, local: Path, head: bytes) -> int | None:
    try:
        return source.peek_rank(local, head)
    except InputError:  # only the beginning is here
        return rank_in_name(local)


def _expand(named: PathLike) -> list[Path]:
    path = Path(named)
    if not os.path.exists(path) and glob.has_magic(os.fspath(named)):
        # Where nothing matches, brackets may be the names' own (Lightning's `fit-[Strategy]DDPStrategy…`).
        patterns = (os.fspath(named), os.fspath(named).replace("[", "[[]"))
        found_by = (sorted(glob.glob(pattern, recursive=True)) for pattern in patterns)
        matches = [Path(match) for match in next(filter(None, found_by), [])]
        if not matches:
            raise InputError(f"{named}: matches no file")
        return [file for match in matches for file in (_expand(match) if match.is_dir() else [match])]
    check_readable(path)
    if archives.is_archive(path):
        return _in_archive(path)
    if path.is_dir():
        if _is_trace(path):
            return [path]
        traces = last_attempt(path, _folder(path))
        found = [*traces, *records_beside(path)] if traces else last_attempt(path, records_below(path))
        manifest = ended(path)
        if manifest is not None and manifest.hung:  # then the dumps say why, and the traces can't
            dumps = last_attempt(path, newest_dumps(hang_records_below(path)))
            found += [dump for dump in dumps if dump not in found]
        if not found:
            if manifest is not None:
                raise InputError(
                    f"{path}: the run recorded no trace; its status is «{manifest.status}»{manifest.first_failure}",
                    hint=NOTHING_RECORDED,
                )
            if packed := archives.archives_in(path.iterdir()):
                return [file for archive in packed for file in _expand(archive)]
            if (foreign := _of_others(path)) is not None:
                raise foreign
            raise InputError(
                f"{path}: no trace in this folder",
                hint=f"gpuscope reads {', '.join(f'*{suffix}' for suffix in suffixes_of(*Role))}",
            )
        return found
    return [path]


def _of_others(folder: Path) -> InputError | None:
    """What a folder without a trace holds instead, by the first file that is known by name: another recorder's trace, a
    page that was saved, a pointer."""
    for path in islice(files_below(folder), LOOKED_AT):
        try:
            refused = other_kind(path, stream.head(path)) if path.is_file() else None
        except (InputError, OSError):
            continue
        if refused is not None:
            return refused
    return None


def _in_archive(path: Path) -> list[Path]:
    folder = archives.unpacked(path)
    try:
        return _expand(folder)
    except InputError as error:
        raise error.naming(path, folder) from None


def _folder(folder: Path) -> list[Path]:
    """The traces below a folder; a report and its own export count once."""
    found: list[Path] = []
    suffixes = suffixes_of(Role.TIMELINE)
    for parent, folders, files in os.walk(folder):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        exports = [name for name in folders if name.endswith(suffixes) and _is_trace(Path(parent, name))]
        folders[:] = [name for name in folders if name not in exports]
        found += [Path(parent, name) for name in exports]
        named = (Path(parent, name) for name in sorted(files) if name.endswith(suffixes))
        found += [path for path in named if _may_be_trace(path)]
    best: dict[Path, int] = {}
    for file in found:
        stem, place = _recording(file)
        best[stem] = min(place, best.get(stem, place))
    found = [file for file in found if best[_recording(file)[0]] == _recording(file)[1]]
    brief = tuple(suffix for source in all_sources() if source.files.brief for suffix in source.files.suffixes)
    return [file for file in found if not file.name.endswith(brief)] or found


def _recording(file: Path) -> tuple[Path, int]:
    """What a report and its exports have in common, and how much this form of it is preferred (0: most)."""
    for forms in (source.files.forms for source in all_sources()):
        for place, suffix in enumerate(forms):
            if file.name.endswith(suffix):
                return file.with_name(file.name.removesuffix(suffix)), place
    return file, 0


def _may_be_trace(path: Path) -> bool:
    # A broken trace must be reported, other people's JSON (configs, manifests) must not.
    if any(path.name.endswith(source.files.unmistakable) for source in all_sources()):
        return True
    try:
        check_readable(path)
        # Of one whose packed data is damaged from the start there is no beginning.
        head = stream.head(path)
        return not head or _is_trace(path) or placeholder(path, head) is not None
    except InputError:
        return True  # reading it will say what is wrong


def _is_trace(path: Path) -> bool:
    try:
        return source_of(path).files.role is Role.TIMELINE
    except InputError:
        return False


def numbered(items: Sequence[Input], options: ReadOptions) -> list[Input]:
    """The inputs with a first rank for those that hold processes without ranks, node by node, where there are several.

    Raises `UsageError` where two hold the same processes.
    """
    here = [item for item in items if not item.url]
    if sum(isinstance(item.source, rank_numbers.HoldsProcesses) for item in here) < 2:
        return list(items)
    found = rank_numbers.number(rank_numbers.peeked(((item.path, item.source) for item in here), options))
    return [
        replace(item, rank=own.rank, first_rank=own.first if own.rank is None else None)
        if (own := found.get(item.path)) is not None
        else item
        for item in items
    ]


def read_file(item: Input, options: ReadOptions) -> Trace:
    """Read one input. Raises `InputError` where it can't be used, unless it only lay beside the traces."""
    key = file_cache.key_of(item.path, item.source, options, item.read_so)
    if (kept := file_cache.kept(key, Trace)) is not None:
        if options.advance:
            options.advance(item.path.stat().st_size)
        return _with_device(_with_manifest(kept, item.path), options.device)
    trace = _read(item, options)
    if item.size >= LARGE:
        release_memory()
    file_cache.keep(key, trace)
    return _with_device(_with_manifest(trace, item.path), options.device)


def as_shown(trace: Trace, item: Input) -> Trace:
    """A trace whose file is called as users know it, where it was read from an archive or a URL."""
    shown = item.in_archive or (Path(item.url) if item.url else item.path)
    sources = [replace(source, path=shown) if source.path == item.path else source for source in trace.sources]
    return trace.with_sources(sources) if shown != item.path else trace


def _read(item: Input, options: ReadOptions) -> Trace:
    builder = TraceBuilder()
    try:
        item.source.read(item.path, builder, replace(options, first_rank=item.first_rank, linked=item.linked))
    except SeveralRanks as apart:
        return merge([one.finish() for one in apart.builders])
    except InputError as error:
        if not item.beside:
            raise
        builder = TraceBuilder()
        builder.problem(reading.FILE_BESIDE_UNREADABLE, 1, why=error.message)
    return builder.finish()


def _with_device(trace: Trace, model: str | None) -> Trace:
    """The trace with this model of its devices, where the file tells none."""
    ranks = trace["ranks"]
    untold = (ranks["device_name"] == NO_NAME) & (ranks["device"] != NA)
    if model is None or not untold.any():
        return trace
    named = np.where(untold, np.int32(trace.names.code(model)), ranks["device_name"]).astype(np.int32)
    return trace.with_table(Table(ranks.schema, {**ranks.columns, "device_name": named}))


def _with_manifest(trace: Trace, path: Path) -> Trace:
    """The trace with the world size of its run's manifest, where the file records none."""
    ranks = trace["ranks"]
    if not len(ranks) or bool(ranks.known("world_size").any()) or (size := run_manifest.world_size(path)) is None:
        return trace
    return with_world_size(trace, size, "manifest")


def total_size(items: Iterable[Input]) -> int:
    """Bytes on disk, for a progress bar."""
    return sum(item.size for item in items)


def open_trace(
    *paths: PathLike,
    ranks: Collection[int] | str | int | None = None,
    partial: bool = False,
    nsys: str | None = None,
    cache: bool = False,
) -> Trace:
    """Open files, folders or globs as one Trace of all their ranks: `gpuscope.open_trace`.

    `ranks` leaves other ranks out, `partial` takes what is there of a file that is cut off, `nsys` is the program that
    exports reports of Nsight Systems, `cache` looks for large files in the user's cache directory and keeps them
    there. Times in the Trace's tables are int ns of one clock per rank.

    Raises `InputError` for what is missing or can't be read, `UsageError` where two files claim one rank or belong to
    different jobs.
    """
    asked = asked_ranks(ranks)
    return open_inputs(inputs(paths, asked), asked, ReadOptions(partial=partial, nsys=nsys, cache=cache))


def open_inputs(
    items: Sequence[Input],
    ranks: Collection[int] | None,
    options: ReadOptions,
    begun: Callable[[str], None] = lambda _: None,
) -> Trace:
    """`open_trace` of inputs already found; `begun` is called with the name of each file as its reading starts."""
    traces: list[Trace] = []
    for item in numbered(items, options):
        begun(item.path.name)
        traces.append(as_shown(read_file(item, options), item))
    check_one_run([trace.ranks_by_file() for trace in traces])
    whole = merge(traces, ranks)
    check_any_read(items, whole)
    check_ranks_present(items, ranks, whole.ranks)
    return whole


def check_ranks_present(items: Iterable[Input], asked: Collection[int] | None, present: Collection[int]) -> None:
    """Raise `InputError` where ranks were asked for and what was read of these files holds none of them."""
    if asked is not None and not set(asked) & set(present):
        raise _none_of_the_ranks(", ".join(item.shown for item in items), present)


def check_any_read(items: Sequence[Input], whole: Trace) -> None:
    """Raise `InputError` where nothing in the files of a folder could be used: each only lay beside others."""
    if not whole.sources and whole.problems:
        folder = os.path.commonpath([item.path.parent for item in items])
        told = f"{units.plural(len(items), 'file')} of no use; the first: {whole.problems[0].message}"
        raise InputError(f"{folder}: {told}", hint="gpuscope info FILE says what is wrong with one")


def _none_of_the_ranks(named: str, present: Collection[int]) -> InputError:
    holds = f"it holds {units.rank_words(present)}" if present else None
    return InputError(f"{named}: contains none of the requested ranks", hint=holds)


RanksByFile = list[tuple[Path, str, list[int], int | None]]
"""Per file: its path, format, ranks and the recorded world size."""


def check_one_run(parts: Iterable[RanksByFile]) -> None:
    """Raise `UsageError` where ranks are duplicate, or files are of different jobs or formats."""
    owner: dict[tuple[int, str], Path] = {}
    first: tuple[Path, str, int | None] | None = None
    for path, fmt, ranks, world_size in (entry for part in parts for entry in part):
        if is_timeline(fmt):
            if first is not None and fmt.split()[0] != first[1].split()[0]:
                raise UsageError(
                    f"{windows.shown(first[0])} is {first[1]} but {windows.shown(path)} is {fmt}",
                    hint="analyse one of them at a time",
                )
            if first is not None and None not in (world_size, first[2]) and world_size != first[2]:
                raise UsageError(
                    f"{windows.shown(first[0])} is of a job with {first[2]} ranks, {windows.shown(path)} of one with "
                    f"{world_size}",
                    hint="name the traces of one run only; two runs are compared by: gpuscope diff "
                    f"{' '.join(_two_runs(first[0], path))}",
                )
            first = first or (path, fmt, world_size)
        if not files_of(fmt).one_per_rank:
            continue
        for rank in ranks:
            key = (rank, "" if is_timeline(fmt) else fmt)
            if key in owner:
                two = _two_runs(owner[key], path)
                raise UsageError(
                    f"{windows.shown(owner[key])} and {windows.shown(path)} both hold rank {rank}",
                    hint="name one trace per rank (a file without a recorded rank counts as rank 0); two runs are "
                    f"compared by: gpuscope diff {' '.join(two)}"
                    if is_timeline(fmt)
                    else f"name the records of one job, such as {two[0]}",
                )
            owner[key] = path


def _two_runs(one: Path, other: Path) -> tuple[str, str]:
    """How two runs are named that have a file each: by these, or by the folders that part them."""
    paths = [one, other]
    if one.parent != other.parent and not any(windows.is_url(windows.shown(path)) for path in paths):
        depth = len(Path(os.path.commonpath(paths)).parts)
        folders = [Path(*path.parts[: depth + 1]) for path in paths]
        if all(folder == path.parent for folder, path in zip(folders, paths, strict=True)):
            paths = folders
    import shlex

    first, second = (shlex.quote(windows.shown(path)) for path in paths)
    return first, second

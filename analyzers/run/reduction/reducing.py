"""Traces to `.gsr` files, one after the other."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from gpuscope.analyzers.run.file_part import HoldsPart, Options, Part, analyze_file
from gpuscope.analyzers.run.reduction.part_file import write_part
from gpuscope.analyzers.run.reduction.reduced_file import SUFFIX
from gpuscope.errors import InputError, UsageError
from gpuscope.output import check_free
from gpuscope.sources.opening import Input, check_one_run, check_ranks_present, numbered


def reduced(
    items: Sequence[Input],
    options: Options,
    out: Path,
    force: bool,
    begun: Callable[[str], None] = lambda _: None,
    share: bool = False,
) -> list[Path]:
    """Write the part of each input: to `out` if that ends in `.gsr`, else into the folder `out`. With `share` names of
    hosts, users and folders are replaced in them.

    With `options.files` 0 what each part keeps for the replay follows from the world size that its trace records.
    Raises `InputError` for what can't be read, `UsageError` where several traces would go into one file.
    """
    one = out.suffix == SUFFIX
    if one and len(items) > 1:
        raise UsageError(f"{len(items)} traces don't go into one file", hint="name a folder: -o parts/")
    parts: list[Part] = []
    paths: list[Path] = []
    for item in numbered(items, options.read):
        if isinstance(item.source, HoldsPart):
            raise InputError(f"{item.path}: is reduced already", hint="gpuscope analyze takes it")
        begun(item.path.name)
        path = out if one else out / _name(item.path, paths)
        check_free([path], force, makes=path.parent)
        part = analyze_file(item, replace(options, files=options.files or _files(item, len(items))))
        check_ranks_present([item], options.ranks, part.trace.ranks)
        write_part(path, part, options.steps, share)
        parts.append(part)
        paths.append(path)
    check_one_run([part.trace.ranks_by_file() for part in parts])
    return paths


def _files(item: Input, beside: int) -> int:
    """Files of the run as far as is known before it is read: those named, or what the run's manifest says."""
    from gpuscope.sources.run_manifest import world_size

    return max(beside, world_size(item.path) or 1)


def _name(path: Path, taken: Sequence[Path]) -> str:
    stem = path.name
    for suffix in (".gz", ".json", ".sqlite", ".nsys-rep", ".qdrep"):
        stem = stem.removesuffix(suffix)
    names = {one.name for one in taken}
    name, count = f"{stem}{SUFFIX}", 1
    while name in names:
        count += 1
        name = f"{stem}.{count}{SUFFIX}"
    return name

"""Where the run store lies, the options that say so, and what keeps a report there.

`gpuscope --help` and a look at a kept report import this: what only the keeping needs is imported there.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping, Sequence
from hashlib import file_digest, sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from gpuscope import cache as file_cache
from gpuscope.cache import content_key
from gpuscope.errors import GpuscopeError

if TYPE_CHECKING:
    from gpuscope.schema.document import Report

ENV_STORE = "GPUSCOPE_STORE"

store_option = click.option(
    "--store",
    type=click.Path(path_type=Path),
    metavar="FILE",
    envvar=ENV_STORE,
    help="The run store. [default: runs.db in the user's data folder]",
)


def default_store() -> Path:
    """`runs.db` in the user's data folder, as the operating system has it."""
    from platformdirs import user_data_path

    return user_data_path("gpuscope", appauthor=False) / "runs.db"


def located(store: Path | None) -> Path:
    """The store named, else the one of `GPUSCOPE_STORE`, else the default one."""
    named = store or os.environ.get(ENV_STORE)
    return Path(named) if named else default_store()


# Keeping an analysis in the run store, which must never get in the analysis's way; and what makes two the same one.


def keep(
    report: Report,
    files: Sequence[Path],
    paths: Sequence[str],
    options: Mapping[str, Any],
    store: Path | None,
    label: str | None = None,
    remote: Sequence[str] = (),
    cache: bool = False,
) -> int | None:
    """Store a report and return the run's number; where that fails, warn on stderr and return None.

    `files` are those read on this machine, `remote` what identifies the content of those elsewhere; `cache` as
    `run_key` has it.
    """
    # A bug in the store must not cost an analysis that is done, so everything is caught here.
    try:
        from gpuscope.store.store import opened

        with opened(located(store), write=True) as open_store:
            return open_store.add(report, run_key(files, options, remote, cache), paths, options, label)
    except Exception as error:
        said = error.message if isinstance(error, GpuscopeError) else f"{type(error).__name__}: {error}"
        click.echo(f"Warning: this analysis is not stored: {said} (--no-store skips the store)", err=True)
        return None


def run_key(files: Iterable[Path], options: Mapping[str, Any], remote: Iterable[str] = (), cache: bool = False) -> str:
    """A hash of the files' content (directories: of all that is in them) and of the options.

    Neither names nor their order count: the same traces copied elsewhere are the same run. Of files on other machines
    `remote` has, in place of their content, what identifies it: URL, size, and the version that the storage gives.
    `cache` keeps the hash of a large file in the user's cache directory, where it is looked up the next time.
    Raises `OSError`.
    """
    from concurrent.futures import ThreadPoolExecutor

    content = _known_content if cache else _content
    # SHA-256 for its speed, since processors have instructions for it; and in threads, since hashing lets go of the
    # interpreter's lock.
    with ThreadPoolExecutor(min(os.cpu_count() or 1, 8)) as pool:
        contents = sorted([*pool.map(content, files), *map(_digest, remote)])
    return _digest("\n".join([*contents, json.dumps(options, sort_keys=True)]))


def _known_content(path: Path) -> str:
    """As `_content`, which reads all of it; of a large file only the first time."""
    if path.is_dir() or path.stat().st_size < file_cache.WORTH:
        return _content(path)
    key = content_key(path, "sha256")
    found = file_cache.kept(key, str)
    if found is None:
        found = _content(path)
        file_cache.keep(key, found)()
    return found


def _content(path: Path) -> str:
    if path.is_dir():
        inside = sorted(file for file in path.rglob("*") if file.is_file())
        return _digest("\n".join(f"{file.relative_to(path)} {_content(file)}" for file in inside))
    with path.open("rb") as handle:
        return file_digest(handle, sha256).hexdigest()


def _digest(text: str) -> str:
    return sha256(text.encode("utf-8", "surrogateescape")).hexdigest()

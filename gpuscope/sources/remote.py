"""Traces by URL (s3://, gs://, hdfs://, ssh:// …), through fsspec: found here, fetched where they are read."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from gpuscope.errors import InputError, MissingExtraError

HEAD_BYTES = 256 << 10
"""Of a remote file, to recognise its format by."""


def is_url(named: object) -> bool:
    """Whether an argument is a URL and no path."""
    text = str(named)
    scheme, separator, _ = text.partition("://")
    return bool(separator) and scheme.replace("+", "").isalnum()


def expand(url: str, suffixes: tuple[str, ...]) -> list[tuple[str, int]]:
    """URLs and sizes of the files of a URL: itself, what a glob matches, or a folder's files that end in `suffixes`.

    Raises `InputError` where there is none or the storage refuses, `MissingExtraError` where fsspec or the library of
    the protocol is not installed.
    """
    filesystem, path = _opened(url)
    protocol = url.partition("://")[0]
    try:
        if "*" in url or "?" in url:
            names = [name for name in filesystem.glob(path) if filesystem.isfile(name)]
        elif filesystem.isdir(path):
            names = [name for name in filesystem.find(path) if name.endswith(suffixes)]
        else:
            names = [path]
        found = [(f"{protocol}://{str(name).removeprefix(f'{protocol}://')}", filesystem.size(name)) for name in names]
    except Exception as error:  # every storage has errors of its own
        raise _refused(url, error) from None
    if not found:
        raise InputError(f"{url}: no traces")
    return sorted((name, int(size or 0)) for name, size in found)


@contextmanager
def beginning(url: str, size: int) -> Iterator[Path]:
    """A local file of the same name with the first bytes of a remote one of that size, to recognise its format."""
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

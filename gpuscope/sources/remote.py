"""Traces by URL (s3://, gs://, hdfs://, ssh:// …), through fsspec: found here, fetched where they are read."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from gpuscope import when_used
from gpuscope.errors import InputError, MissingExtraError
from gpuscope.when_used import dataclass

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

"""A report for a stranger's eyes: paths, hosts and users replaced, each by the same name wherever it stands."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from typing import Any, cast

from gpuscope.schema.document import Report, SharedEntry
from gpuscope.words.compiled_frames import LIBRARY

_PATH = re.compile(r"(?<![\w./…-])(?:[A-Za-z]:[\\/]|~?/|[A-Za-z][A-Za-z0-9+]*://)[^\s'\"«»,;:|<>()\[\]]+")
_HOME = re.compile(r"(?:/home|/Users|[A-Za-z]:[\\/]Users)[\\/]([^\s/\\'\"«»,;:]+)")
_ADDRESS = re.compile(r"(?<![\w.])(?:\d{1,3}\.){3}\d{1,3}(?![\w.])")
_SHORTEST = 3
"""Letters of a name from which it is not taken for a part of ordinary text."""


def share(report: Report, hosts: Iterable[str] = ()) -> Report:
    """A copy of a report without what names people, machines and folders; `shared` says how many of each there were.
    `hosts` are the names that the traces record.

    Folders go from every path, and file names stay; so do the paths within installed libraries. Names of kernels,
    modules and functions stay: they are what the report is about.
    """
    named = [source["path"] for source in report["trace"]["sources"]]
    replacing = Replacing(texts(report), hosts, named)
    replaced = cast(Report, replacing.all(report))
    return cast(Report, {**replaced, "shared": replacing.counted()})


class Replacing:
    """Replaces what names people, machines and folders."""

    def __init__(
        self,
        own_texts: Iterable[str],
        hosts: Iterable[str],
        paths: Iterable[str],
        named: Callable[[set[str], str], dict[str, str]] | None = None,
    ) -> None:
        """`own_texts` are all texts there are, `hosts` the names that the files record, `paths` the files as given;
        `named` chooses what stands instead of a host or user."""
        users, machines = _own_users(), {*hosts, *_own_hosts()}
        for text in own_texts:
            users |= set(_HOME.findall(text))
            machines |= set(_ADDRESS.findall(text))
        named = named or _numbered
        self._instead = named(machines, "host") | named(users, "user")
        self._named = {path: _last(path) for path in paths if _last(path) != path}
        words = "|".join(map(re.escape, sorted(self._instead, key=len, reverse=True)))
        self._words = re.compile(rf"(?<![A-Za-z0-9])(?:{words})(?![A-Za-z0-9])") if words else None
        self._replaced: dict[str, set[str]] = {"path": set(), "host": set(), "user": set()}

    def all(self, value: Any) -> Any:
        """The same value with every text in it replaced, keys of objects too."""
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, dict):
            return {self.all(key): self.all(inner) for key, inner in value.items()}
        return [self.all(inner) for inner in value] if isinstance(value, list) else value

    def text(self, text: str) -> str:
        """One text."""
        for path in sorted((path for path in self._named if path in text), key=len, reverse=True):
            self._replaced["path"].add(path)
            text = text.replace(path, self._named[path])
        text = _PATH.sub(self._path, text)
        return text if self._words is None else self._words.sub(self._word, text)

    def counted(self) -> SharedEntry:
        """How many different ones were replaced."""
        return {
            "paths": len(self._replaced["path"]),
            "hosts": len(self._replaced["host"]),
            "users": len(self._replaced["user"]),
        }

    def _path(self, found: re.Match[str]) -> str:
        path, last = found[0], _last(found[0])
        if last == path.lstrip("/"):
            return path  # no folder in it
        self._replaced["path"].add(path)
        return f"…/{last}"

    def _word(self, found: re.Match[str]) -> str:
        instead = self._instead[found[0]]
        self._replaced[instead.partition("-")[0]].add(found[0])
        return instead


def _last(path: str) -> str:
    """A path's own name; of a library's file the path in that library."""
    if (library := LIBRARY.match(path)) is not None:
        return path[library.end() :]
    return re.split(r"[\\/]", path.rstrip("\\/"))[-1]


def _numbered(names: set[str], kind: str) -> dict[str, str]:
    return {name: f"{kind}-{number}" for number, name in enumerate(sorted(n for n in names if len(n) >= _SHORTEST), 1)}


def hashed(names: set[str], kind: str) -> dict[str, str]:
    """What stands instead of each name: alike in every file that it occurs in."""
    from hashlib import sha256

    return {name: f"{kind}-{sha256(name.encode()).hexdigest()[:8]}" for name in names if len(name) >= _SHORTEST}


def _own_users() -> set[str]:
    import getpass

    with suppress(KeyError, OSError, ImportError):  # no user of that number, as in some containers
        return {getpass.getuser()} - {"root"}
    return set()


def _own_hosts() -> set[str]:
    import socket

    name = socket.gethostname()
    return {name, name.partition(".")[0]} - {"localhost"}


def texts(value: Any) -> Iterator[str]:
    """Every text in a value of JSON, keys of objects too."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for key, inner in value.items():
            yield from texts(key)
            yield from texts(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from texts(inner)

"""Sections of a document as DataFrames."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any, cast

from gpuscope.schema.document import Report, SharedEntry
from gpuscope.words.vocabulary import LIBRARY

if TYPE_CHECKING:
    import pandas as pd


# A report for a stranger's eyes: paths, hosts and users replaced, each by the same name wherever it stands.

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


def table(owner: object, name: str, tables: SectionTables) -> pd.DataFrame:
    """The table that `owner.name` stands for. Raises `AttributeError`, with the name that was probably meant."""
    try:
        return tables[name]
    except KeyError:
        known = name in tables.rows
    why = ": this run has no such section" if known else did_you_mean(name, dir(owner))
    raise AttributeError(f"{type(owner).__name__!r} object has no attribute {name!r}{why}", name=name, obj=owner)


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """`: did you mean 'kernels'?`; empty where no known name is close."""
    from difflib import get_close_matches

    close = get_close_matches(name, [one for one in known if not one.startswith("_")], 1)
    return f": did you mean {close[0]!r}?" if close else ""


class SectionTables(Mapping[str, "pd.DataFrame"]):
    """The sections of `document` that are lists, by name; each becomes a DataFrame when it is asked for.

    A row's keys are the columns, nested keys dotted (`breakdown_ns.idle`). `rows` has every section that may be there
    and what a row of it holds; of these only the sections that `document` has are in the mapping. `tables.kernels` is
    `tables["kernels"]`.
    """

    def __init__(self, document: Mapping[str, Any], rows: Mapping[str, type]) -> None:
        self._document, self._rows = document, rows

    @property
    def rows(self) -> Mapping[str, type]:
        """Every section that may be there, and what a row of it holds."""
        return self._rows

    def __getitem__(self, section: str) -> pd.DataFrame:
        import pandas as pd

        if section not in self._rows:
            raise KeyError(f"{section!r}{did_you_mean(section, self._rows)}")
        if section not in self._document:
            raise KeyError(f"{section!r}: this run has no such section")
        rows = self._document[section]
        frame = pd.json_normalize([{key: value for key, value in row.items() if key != "facts"} for row in rows])
        if any("facts" in row for row in rows):  # of every kind others: one column of dictionaries
            frame["facts"] = [row.get("facts") for row in rows]
        # An empty table still has its columns, so that it can be written and read.
        return frame if len(frame) else pd.DataFrame(columns=list(self._rows[section].__annotations__))

    def __iter__(self) -> Iterator[str]:
        return (section for section in self._rows if section in self._document)

    def __len__(self) -> int:
        return sum(1 for _ in self)

    if not TYPE_CHECKING:  # to type checkers it would make every misspelt name one of ours

        def __getattr__(self, name: str) -> pd.DataFrame:
            if name.startswith("_"):  # asked for by copying and pickling, before there is a document
                raise AttributeError(name)
            return table(self, name, self)

    def __dir__(self) -> list[str]:
        return sorted({*super().__dir__(), *self})

    def __repr__(self) -> str:
        return f"SectionTables({', '.join(self)})"

"""Exports of nsys reports (.nsys-rep, .qdrep): made by nsys itself, once, and read from there.

The export is kept in the user's cache directory, without the profiled program's environment, arguments and output;
nothing is ever written beside the report. It carries a table that says of which report it was made: only such a file is
trusted or replaced. An `X.sqlite` that someone else made beside `X.nsys-rep` is used if it was made from that report
and is not older.
"""

from __future__ import annotations

import os
from pathlib import Path

from gpuscope.errors import InputError
from gpuscope.sources.nsys.export_secrets import take_out_secrets
from gpuscope.sources.nsys.formats.export_tables import SqliteTables, looks_like_nsys, pairs
from gpuscope.sources.nsys.formats.nsys_export import export, find_nsys, nsys_version
from gpuscope.sources.source import ReadOptions

_MARK = "GPUSCOPE_EXPORT"
_DIGESTED = 1 << 20
_ELSEWHERE = "XDG_CACHE_HOME names another cache directory; or export it yourself: nsys export --type sqlite"


def exported(report: Path, options: ReadOptions) -> Path:
    """The SQLite export of a report, made if need be.

    Raises `InputError` where nsys is missing or refuses the report.
    """
    import tempfile

    state = state_of(report)
    if (there := already_exported(report, state)) is not None:
        return there
    nsys = find_nsys(report, options.nsys)
    target = _kept_export(report)
    if target.exists() and _mark_of(target) is None:
        raise InputError(f"{report}: nowhere to keep its export ({target} is not gpuscope's)", hint=_ELSEWHERE)
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        scratch = tempfile.TemporaryDirectory(prefix="export-", dir=target.parent)
    except OSError as error:
        why = f"{target.parent}: {error.strerror or error}"
        raise InputError(f"{report}: nowhere to keep its export ({why})", hint=_ELSEWHERE) from error
    with scratch:
        made = Path(scratch.name) / "export.sqlite"
        export(nsys, report, made, options.status or (lambda _: None))
        take_out_secrets(made)
        _put_mark(made, state, nsys)
        os.replace(made, target)
    return target


def already_exported(report: Path, state: str) -> Path | None:
    """An export of this very report that we made, or else one that someone else made beside it."""
    kept = _kept_export(report)
    if kept.exists() and _mark_of(kept) == state:
        return kept
    beside = report.with_suffix(".sqlite")
    return beside if beside.is_file() and _is_export_of(beside, report) else None


def _kept_export(report: Path) -> Path:
    """Where the export of a report is kept: a folder of its own below the user's cache directory."""
    import hashlib

    from platformdirs import user_cache_path

    whole = os.fspath(report.absolute()).encode()
    private = hashlib.blake2b(whole, digest_size=8).hexdigest()
    return user_cache_path("gpuscope") / "exports" / private / f"{report.name}.sqlite"


def state_of(report: Path) -> str:
    """Changes when the report does; reads no more than its two ends, since reports have gigabytes."""
    import hashlib

    try:
        stat = report.stat()
        with report.open("rb") as file:
            digest = hashlib.blake2b(file.read(_DIGESTED), digest_size=16)
            file.seek(max(0, stat.st_size - _DIGESTED))
            digest.update(file.read(_DIGESTED))
    except OSError as error:
        raise InputError(f"{report}: can't be read: {error.strerror or error}") from error
    return f"{stat.st_size} {stat.st_mtime_ns} {digest.hexdigest()}"


def _put_mark(database: Path, state: str, nsys: str) -> None:
    import sqlite3

    try:
        connection = sqlite3.connect(database)
        with connection:
            connection.execute(f"CREATE TABLE {_MARK} (report TEXT, nsys TEXT)")
            connection.execute(f"INSERT INTO {_MARK} VALUES (?, ?)", (state, nsys_version(nsys)))
        connection.close()
    except sqlite3.Error as error:
        raise InputError(f"{database}: nsys's export is no usable SQLite file: {error}") from error


def _mark_of(database: Path) -> str | None:
    """The state of the report that an export of ours was made of; None for a file that is not ours."""
    try:
        tables = SqliteTables(database)
    except InputError:
        return None
    try:
        marks = list(tables.texts(_MARK, "report"))
    except InputError:
        return None
    finally:
        tables.close()
    return marks[0] if marks else None


def _is_export_of(database: Path, report: Path) -> bool:
    """Whether an export that someone else made is this report's, and not an older one's."""
    if database.stat().st_mtime_ns < report.stat().st_mtime_ns or not looks_like_nsys(database):
        return False
    try:
        tables = SqliteTables(database)
    except InputError:
        return False
    named = [
        value
        for table in ("META_DATA_EXPORT", "EXPORT_META_DATA")
        for name, value in pairs(tables, table, "name", "value")
        if name in ("EXPORT_PARAM_INPUT_FILE", "EXPORT_INPUT_FILE")
    ]
    tables.close()
    return all(Path(name).name == report.name for name in named)

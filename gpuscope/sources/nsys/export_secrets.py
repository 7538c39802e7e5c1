"""Takes out of an export of ours what a report holds of the profiled program beside its events.

A report keeps the program's whole environment (DeviceEnvironment in TARGET_INFO_SYSTEM_ENV, one row per variable in
META_DATA_CAPTURE), its arguments, what it printed (ProcessStreams), and messages that quote these.
"""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

from gpuscope.errors import InputError
from gpuscope.recorded_environment import allowed, kept_assignments, redacted

if TYPE_CHECKING:
    import sqlite3

_ENVIRONMENT, _CAPTURE, _PRINTED = "TARGET_INFO_SYSTEM_ENV", "META_DATA_CAPTURE", "ProcessStreams"
_SAID = "DIAGNOSTIC_EVENT"


def take_out_secrets(database: Path) -> None:
    """Leave of the environment what is allowed, of arguments and output nothing; what is deleted is overwritten.

    Raises `InputError` where the export is no usable SQLite file.
    """
    import sqlite3

    try:
        with closing(sqlite3.connect(database)) as connection:
            connection.text_factory = lambda raw: raw.decode("utf-8", "replace")
            connection.execute("PRAGMA secure_delete=ON")
            tables = {name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
            with connection:
                if _ENVIRONMENT in tables:
                    _shorten_environment(connection)
                if _CAPTURE in tables:
                    _delete_variables(connection)
                if _SAID in tables:
                    _redact_diagnostics(connection)
                if _PRINTED in tables:
                    _delete_output(connection, tables)
    except sqlite3.Error as error:
        raise InputError(f"{database}: nsys's export is no usable SQLite file: {error}") from error


def _shorten_environment(connection: sqlite3.Connection) -> None:
    rows = connection.execute(f"SELECT rowid, value FROM {_ENVIRONMENT} WHERE name = 'DeviceEnvironment'").fetchall()
    for row, value in rows:
        left = kept_assignments(value or "")
        connection.execute(f"UPDATE {_ENVIRONMENT} SET value = ? WHERE rowid = ?", (left, row))


def _delete_variables(connection: sqlite3.Connection) -> None:
    rows = connection.execute(
        f"SELECT rowid, name, value FROM {_CAPTURE} "
        "WHERE name LIKE '%:ENVIRONMENT_VARIABLE' OR name LIKE '%:ARGUMENT_%'"
    ).fetchall()
    for row, name, value in rows:
        if not (name.endswith(":ENVIRONMENT_VARIABLE") and allowed((value or "").partition("=")[0])):
            connection.execute(f"DELETE FROM {_CAPTURE} WHERE rowid = ?", (row,))


def _redact_diagnostics(connection: sqlite3.Connection) -> None:
    for row, text in connection.execute(f"SELECT rowid, text FROM {_SAID}").fetchall():
        if text and (left := redacted(text)) != text:
            connection.execute(f"UPDATE {_SAID} SET text = ? WHERE rowid = ?", (left, row))


def _delete_output(connection: sqlite3.Connection, tables: set[str]) -> None:
    if "StringIds" in tables:
        connection.execute(f"UPDATE StringIds SET value = '' WHERE id IN (SELECT contentId FROM {_PRINTED})")
    connection.execute(f"DELETE FROM {_PRINTED}")

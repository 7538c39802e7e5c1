"""The run store as an object: add a run, list runs, get one, delete one.

A store is a plain SQLite file with a rollback journal, not WAL: data folders are often on a network file system,
where WAL does not work, and every write is one short transaction that others wait for.
"""

from __future__ import annotations

import importlib
import json
import os
import sqlite3
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, cast
from urllib.parse import quote

import msgspec

from gpuscope.errors import InputError, UsageError
from gpuscope.report.published import StoredRun
from gpuscope.report.read_report import brought_up, dumps
from gpuscope.report.view import report_rows
from gpuscope.schema.document import BreakdownEntry, RankEntry, Report, StepEntry
from gpuscope.sources.windows import is_url
from gpuscope.store.tables import APPLICATION_ID, FOLLOWED_BY, SCHEMA_VERSION, TABLES, migrations
from gpuscope.welch import whole_mean
from gpuscope.words.vocabulary import PARTS

if TYPE_CHECKING:
    from sqlite_utils import Database
    from sqlite_utils.db import Table


# From a report to rows of the run store's tables (`tables.py`), without the column `run`.

Row = dict[str, Any]


def real_path(named: str) -> str:
    """One name of a file, from wherever and through whatever links it was named; a URL as it is."""
    return named if is_url(named) else os.path.realpath(named)


def run_row(report: Report) -> Row:
    """What `runs` holds of a report itself."""
    verdict, ranks = report["verdict"], report["ranks"]
    return {
        "gpuscope_version": report["gpuscope_version"],
        "report_version": report["schema_version"],
        "world_size": report["trace"]["world_size"],
        "ranks_present": len(report["trace"]["ranks_present"]),
        **{key: verdict[key] for key in ("bound_by", "cause", "share_frac", "confidence", "abstained", "why")},
        "steps": max((entry["steps"] for entry in ranks), default=0),
        "step_ns": report_rows.step_ns(report),
        "window_ns": whole_mean(entry["window_ns"] for entry in ranks),
    }


def section_rows(report: Report) -> dict[str, list[Row]]:
    """The rows of every table but `runs`."""
    return {
        "sources": [
            {"path": real_path(entry["path"]), **_pick(entry, "format", "format_version", "rank", "events")}
            for entry in report["trace"]["sources"]
        ],
        "ranks": [_rank(entry) for entry in report["ranks"]],
        "steps": _steps(report["steps"]),
        "causes": [row for entry in report["ranks"] for row in _causes(entry)],
        "findings": [
            {
                "position": at,
                **_pick(entry, "code", "severity", "message", "cost_ns_per_step", "share_frac"),
                "ranks": json.dumps(entry["ranks"]),
            }
            for at, entry in enumerate(report["findings"])
        ],
        "suggestions": [
            {
                "position": at,
                **_pick(entry, "code", "finding", "action"),
                **{f"setting_{key}": value for key, value in _pick(entry["setting"], "kind", "name", "value").items()},
                **_pick(entry["predicted"], "step_ns_before", "step_ns_after", "low_ns", "high_ns", "basis"),
            }
            for at, entry in enumerate(report["suggestions"])
        ],
        "collectives": [
            {
                **_pick(entry, "op", "count", "bytes", "dur_ns", "wait_ns", "transfer_ns", "algbw_gbps", "busbw_gbps"),
                "group_name": entry["group"],
            }
            for entry in report["collectives"]
        ],
        "kernels": _only(report["kernels"], "name", "category", "count", "dur_ns", "share_frac"),
        "stragglers": _only(report["stragglers"], "rank", "caused_wait_ns", "phase", "recurrent"),
        "problems": _only(report["problems"], "severity", "code", "count", "message"),
    }


def _pick(entry: Mapping[str, Any], *keys: str) -> Row:
    return {key: entry[key] for key in keys}


def _only(entries: Sequence[Mapping[str, Any]], *keys: str) -> list[Row]:
    return [_pick(entry, *keys) for entry in entries]


def _rank(entry: RankEntry) -> Row:
    keys = ("rank", "device", "device_name", "window_ns", "steps")
    communication = ("communication_ns", "overlapped_communication_ns", "overlap_frac")
    return {**_pick(entry, *keys, *communication), **_parts([entry["breakdown_ns"]])}


def _parts(breakdowns: Sequence[BreakdownEntry]) -> Row:
    return {f"{part.key}_ns": whole_mean(breakdown[part.key] for breakdown in breakdowns) for part in PARTS}


def _steps(entries: Sequence[StepEntry]) -> list[Row]:
    by_step: dict[int, list[StepEntry]] = defaultdict(list)
    for entry in entries:
        if entry["step"] is not None:
            by_step[entry["step"]].append(entry)
    rows = []
    for step, own in sorted(by_step.items()):
        times = [entry["dur_ns"] for entry in own]
        rows.append(
            {
                "step": step,
                "ranks": len({entry["rank"] for entry in own}),
                "dur_ns": whole_mean(times),
                "dur_min_ns": min(times),
                "dur_max_ns": max(times),
                **_parts([entry["breakdown_ns"] for entry in own]),
            }
        )
    return rows


def _causes(entry: RankEntry) -> list[Row]:
    stalls, where = entry["stall_ns"], _pick(entry, "rank", "device")
    named: list[tuple[str | None, Mapping[str, int]]] = [
        ("cpu", stalls["cpu"]),
        ("communication", stalls["communication"]),
        ("memory", stalls["memory"]),
        (None, {"unattributed": stalls["unattributed"]}),
    ]
    return [
        {**where, "class": class_name, "cause": cause, "dur_ns": ns}
        for class_name, causes in named
        for cause, ns in causes.items()
        if ns
    ]


BUSY_SECONDS = 10.0
"""How long a writer waits for another one; a write takes milliseconds."""
_AGAIN = "move the store away and analyse the runs again"
_HEADER = 100
"""Bytes of SQLite's file header: user_version at 60, application_id at 68, big-endian (sqlite.org/fileformat)."""


_CAUSE_SHARE = (
    "(SELECT share_frac FROM cause_shares AS own "
    "WHERE own.run = runs.id AND own.class = runs.bound_by AND own.cause = runs.cause)"
)


class Store:
    """An open run store. Use `opened`."""

    def __init__(self, db: Database, path: Path) -> None:
        self.db = db
        self.path = path

    def add(
        self, report: Report, key: str, paths: Sequence[str], options: Mapping[str, Any], label: str | None = None
    ) -> int:
        """Store a report under its key and return the run's number; the same key again replaces what is there,
        but for its number, its first date and, where no other is given, its label."""
        now = datetime.now(UTC).isoformat(timespec="seconds")
        text = dumps(report)
        # Plain numbers only, as JSON has them: SQLite knows no numpy scalar and no NaN.
        report = cast(Report, json.loads(text))
        row = {
            **run_row(report),
            "report": text,
            "key": key,
            "analysed_at": now,
            "paths": json.dumps([path if is_url(path) else os.path.abspath(path) for path in paths]),
            "options": json.dumps(options, sort_keys=True),
        }
        if label is not None:
            row["label"] = label
        sections = section_rows(report)
        with self._writing():
            known = next(self.db.query("SELECT id FROM runs WHERE key = ?", [key]), None)
            runs = self._table("runs")
            if known:
                run = int(known["id"])
                runs.update(run, row)
                for table in TABLES[1:]:
                    self._table(table.name).delete_where("run = ?", [run])
            else:
                run = int(cast(int, runs.insert({**row, "recorded_at": now}, pk="id").last_pk))
            for name, rows in sections.items():
                self._table(name).insert_all({"run": run, **one} for one in rows)
        return run

    def runs(self, where: str = "1", parameters: Sequence[Any] = (), limit: int | None = None) -> list[dict[str, Any]]:
        """Rows of `runs` without the report and with the share of the verdict's cause, the last analysed first."""
        columns = ", ".join(column.name for column in TABLES[0].columns if column.name != "report")
        found = self.db.query(
            f"SELECT {columns}, {_CAUSE_SHARE} AS cause_share_frac FROM runs WHERE {where} "
            "ORDER BY analysed_at DESC, id DESC LIMIT ?",
            [*parameters, -1 if limit is None else limit],
        )
        rows = [
            {
                **row,
                "paths": self._parsed(row["paths"], list),
                "options": self._parsed(row["options"], dict),
                "abstained": bool(row["abstained"]),
            }
            for row in found
        ]
        try:
            msgspec.convert(rows, list[StoredRun])
        except msgspec.ValidationError as error:
            raise InputError(f"{self.path}: a stored run is damaged: {error}", hint=_AGAIN) from error
        return rows

    def runs_of(self, files: Iterable[str]) -> list[dict[str, Any]]:
        """Rows of `runs` that read one of these files, or everything in a folder above it; the last analysed first."""
        asked = {real_path(file) for file in files}
        above = asked | {str(folder) for file in asked for folder in Path(file).parents}
        found = self.db.query(
            "SELECT DISTINCT run FROM sources WHERE path IN (SELECT value FROM json_each(?))", [json.dumps(list(asked))]
        )
        read = {row["run"] for row in found}
        return [row for row in self.runs() if row["id"] in read or any(real_path(one) in above for one in row["paths"])]

    def link(self, run: int, by: int, suggestion: str | None, changes: Mapping[str, str]) -> None:
        """Note that run `by` is `run` made again with these changes; the same two again replace what is there."""
        row = {"run": run, "by": by, "suggestion": suggestion, "changes": json.dumps(changes, sort_keys=True)}
        with self._writing():
            self._table(FOLLOWED_BY.name).delete_where("run = ? AND by = ?", [run, by])
            self._table(FOLLOWED_BY.name).insert(row)

    def report(self, run: int) -> Report:
        """The report of a run. Raises `UsageError` where there is no such run."""
        found = next(self.db.query("SELECT report FROM runs WHERE id = ?", [run]), None)
        if found is None:
            raise UsageError(f"no run {run} in {self.path}", hint="`gpuscope runs` lists them")
        return cast(Report, brought_up(self._parsed(found["report"], dict)))

    def delete(self, run: int) -> None:
        """Delete a run with all its rows. Raises `UsageError` where there is no such run."""
        with self._writing():
            if not self.db.execute("DELETE FROM runs WHERE id = ?", [run]).rowcount:
                raise UsageError(f"no run {run} in {self.path}", hint="`gpuscope runs` lists them")

    def migrate(self) -> None:
        """Bring the schema up to date; another process may have done so meanwhile."""
        with self._writing():
            migrations().apply(self.db)
            self.db.execute(f"PRAGMA application_id = {APPLICATION_ID}")
            self.db.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")

    def _parsed(self, text: Any, kind: type) -> Any:
        """JSON in a column. Raises `InputError` where it is none: a damaged page may still be one to SQLite."""
        try:
            value = json.loads(text)
        except (ValueError, TypeError, RecursionError) as error:
            raise InputError(f"{self.path}: a stored run is damaged: {error}", hint=_AGAIN) from error
        if not isinstance(value, kind):
            raise InputError(f"{self.path}: a stored run is damaged: not a {kind.__name__}", hint=_AGAIN)
        return value

    def _table(self, name: str) -> Table:
        return self.db.table(name)

    @contextmanager
    def _writing(self) -> Iterator[None]:
        # Taking the lock at once: a reader that turns into a writer could be refused without waiting.
        self.db.execute("BEGIN IMMEDIATE")
        try:
            yield
        except BaseException:
            self.db.rollback()
            raise
        self.db.commit()


@contextmanager
def opened(path: Path, write: bool = False) -> Iterator[Store]:
    """The store at `path`, its schema brought up to date; `write` makes it where there is none.

    Raises `InputError` where there is none, where the file is something else or of a newer gpuscope, and where
    SQLite can't read or write it. A file that is no run store is never touched.
    """
    path = Path(os.path.abspath(path))
    try:
        version = _version(path)
        if version is None and not write:
            raise InputError(f"{path}: no run store yet", hint="`gpuscope analyze` creates it, or pass --store")
        stale = (version or 0) < SCHEMA_VERSION
        if write:
            path.parent.mkdir(parents=True, exist_ok=True)
        # What a killed writer left half done is rolled back by the next to open the store, who has to write for that.
        killed = path.with_name(f"{path.name}-journal").exists()
        mode = "rwc" if write else "rw" if stale or killed else "ro"
        connection = sqlite3.connect(f"file:{quote(str(path))}?mode={mode}", uri=True, timeout=BUSY_SECONDS)
        try:
            connection.execute("PRAGMA foreign_keys = ON")
            store = Store(sqlite_utils().Database(connection, execute_plugins=False), path)
            if stale:
                store.migrate()
            yield store
        finally:
            connection.close()
    except (OSError, sqlite3.Error, UnicodeDecodeError) as error:  # a damaged page may hold no UTF-8
        reason = getattr(error, "strerror", None) or error
        raise InputError(f"{path}: the run store can't be {'written' if write else 'read'}: {reason}") from error


def _version(path: Path) -> int | None:
    """The store's schema version; None where there is no file, or an empty one."""
    if not path.exists():
        return None
    if not path.is_file():
        raise InputError(f"{path}: is not a file", hint="name a file with --store or GPUSCOPE_STORE")
    with path.open("rb") as handle:
        header = handle.read(_HEADER)
    if not header:
        return None
    if not header.startswith(b"SQLite format 3\0") or int.from_bytes(header[68:72], "big") != APPLICATION_ID:
        raise InputError(f"{path}: is not a gpuscope run store; left unchanged", hint="name another with --store")
    version = int.from_bytes(header[60:64], "big")
    if version > SCHEMA_VERSION:
        raise InputError(f"{path}: written by a newer gpuscope (schema {version})", hint="update gpuscope")
    return version


def sqlite_utils() -> ModuleType:
    """The module `sqlite_utils`, without what it does not need.

    Its import tries pandas, only to know one more type of column. That costs as much as a small analysis, which
    needs no pandas itself; so where pandas is not loaded yet it is hidden for the time of the import.
    """
    if "sqlite_utils" in sys.modules or "pandas" in sys.modules:
        return importlib.import_module("sqlite_utils")
    sys.modules["pandas"] = None  # type: ignore[assignment]  # how Python marks a module as missing
    try:
        return importlib.import_module("sqlite_utils")
    finally:
        del sys.modules["pandas"]

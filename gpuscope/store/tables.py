"""The run store's tables and views, each column with its meaning, and how a store comes by them.

A change of the schema is a further migration at the end; those that were released are never edited.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from gpuscope.when_used import dataclass

if TYPE_CHECKING:
    from sqlite_utils import Database, Migrations

APPLICATION_ID = 0x47505343
"""«GPSC» in the file's header (SQLite's application_id): identifies a run store."""
SCHEMA_VERSION = 3
"""Migrations there are; stands in the header as user_version."""

SQL_TYPES: dict[str, type] = {"integer": int, "real": float, "text": str}


@dataclass(frozen=True)
class StoreColumn:
    """One column: its SQL type and its meaning."""

    name: str
    kind: str
    doc: str


@dataclass(frozen=True)
class StoreTable:
    """One table; all but `runs` refer to a run by `run`, and go with it."""

    name: str
    doc: str
    columns: tuple[StoreColumn, ...]


def _table(name: str, doc: str, *columns: str) -> StoreTable:
    """Columns as `name kind: meaning`."""
    parsed = []
    for column in columns:
        head, _, meaning = column.partition(": ")
        title, kind = head.split(" ")
        parsed.append(StoreColumn(title, kind, meaning))
    return StoreTable(name, doc, tuple(parsed))


_PARTS = (
    "compute_ns integer: part of the breakdown",
    "exposed_communication_ns integer: part of the breakdown",
    "exposed_memory_ns integer: part of the breakdown",
    "idle_ns integer: part of the breakdown",
)

TABLES = (
    _table(
        "runs",
        "one row per run analysed",
        "id integer: number of the run, as `gpuscope runs` shows it",
        "key text: hash of the inputs' content and of the options; the same analysis again replaces the row",
        "recorded_at text: first analysed, ISO 8601 in UTC",
        "analysed_at text: last analysed, ISO 8601 in UTC",
        "gpuscope_version text: version that analysed it last",
        "report_version integer: schema version of the report",
        "paths text: what was asked to be analysed, a JSON list of absolute paths",
        "options text: options that change the result, as JSON",
        "label text: name given with --label; NULL without",
        "world_size integer: ranks of the job; NULL where not recorded",
        "ranks_present integer: number of ranks analysed",
        "bound_by text: class of the verdict; NULL if it abstained",
        "cause text: cause of the verdict",
        "share_frac real: share of that class",
        "confidence real: confidence of the verdict",
        "abstained integer: 1 if there is no verdict",
        "why text: the verdict's reason",
        "steps integer: most steps of any rank",
        "step_ns integer: mean over ranks of window / steps; NULL without steps",
        "window_ns integer: mean over ranks",
        "report text: the whole report, as `gpuscope analyze --json` prints it",
    ),
    _table(
        "sources",
        "files of a run",
        "run integer: the run",
        "path text: absolute, with links resolved; a URL as it is",
        "format text: kineto, nsys…",
        "format_version text: as recorded in the file",
        "rank integer: NULL where it holds several",
        "events integer: events in the file",
    ),
    _table(
        "ranks",
        "one row per rank and device",
        "run integer: the run",
        "rank integer: the rank",
        "device integer: NULL on CPU",
        "device_name text: model",
        "window_ns integer: length of the window",
        "steps integer: steps in it",
        *_PARTS,
        "communication_ns integer: hidden or not",
        "overlapped_communication_ns integer: hidden behind compute",
        "overlap_frac real: overlapped / communication",
    ),
    _table(
        "steps",
        "one row per step, over its ranks",
        "run integer: the run",
        "step integer: number of the step",
        "ranks integer: ranks that ran it",
        "dur_ns integer: mean over ranks",
        "dur_min_ns integer: shortest",
        "dur_max_ns integer: longest",
        *(part.replace("part of", "mean over ranks; part of") for part in _PARTS),
    ),
    _table(
        "causes",
        "time that is not compute, per rank, device and cause",
        "run integer: the run",
        "rank integer: the rank",
        "device integer: NULL on CPU",
        "class text: cpu, communication or memory; NULL with unattributed",
        "cause text: the cause",
        "dur_ns integer: time over the window",
    ),
    _table(
        "findings",
        "what costs time",
        "run integer: the run",
        "position integer: 0 is the first in the report",
        "code text: what it is",
        "severity text: high, medium or low",
        "message text: in words",
        "ranks text: JSON list",
        "cost_ns_per_step integer: time lost",
        "share_frac real: share of the time",
    ),
    _table(
        "suggestions",
        "what to change, with its predicted gain",
        "run integer: the run",
        "position integer: 0 is the first in the report",
        "code text: what it is",
        "finding text: code of the finding it is for",
        "action text: in words",
        "setting_kind text: env, python or config",
        "setting_name text: what to set",
        "setting_value text: to what",
        "step_ns_before integer: step it starts from",
        "step_ns_after integer: predicted step",
        "low_ns integer: lower bound",
        "high_ns integer: upper bound",
        "basis text: what the prediction rests on",
    ),
    _table(
        "collectives",
        "one row per operation and group",
        "run integer: the run",
        "op text: operation",
        "group_name text: process group",
        "count integer: instances",
        "bytes integer: sum over instances",
        "dur_ns integer: sum over instances and ranks",
        "wait_ns integer: sum over instances and ranks",
        "transfer_ns integer: sum over instances",
        "algbw_gbps real: 1e9 B/s",
        "busbw_gbps real: 1e9 B/s",
    ),
    _table(
        "kernels",
        "device events by name and category",
        "run integer: the run",
        "name text: of the kernel",
        "category text: what it does",
        "count integer: how often",
        "dur_ns integer: in all",
        "share_frac real: share of all device-event time",
    ),
    _table(
        "stragglers",
        "ranks that others waited for",
        "run integer: the run",
        "rank integer: the rank",
        "caused_wait_ns integer: others' waiting",
        "phase text: what it was late in",
        "recurrent integer: 1 if beyond chance",
    ),
    _table(
        "problems",
        "what was lost or is uncertain",
        "run integer: the run",
        "severity text: info, data_loss or error",
        "code text: what it is",
        "count integer: how often",
        "message text: in words",
    ),
)

FOLLOWED_BY = _table(
    "followed_by",
    "runs that `gpuscope again` made of a run, and what of its advice they followed",
    "run integer: the run that gave the advice",
    "by integer: the run made of it",
    "suggestion text: code of the suggestion that was followed; NULL where none was",
    "changes text: what was set, a JSON object",
)
"""A link between two runs: unlike the tables above it is no part of a report, and stays where one is analysed again."""

VIEWS = {
    "run_overview": (
        "one line per run, without the report",
        "SELECT id, label, analysed_at, bound_by, cause, round(100.0 * share_frac, 1) AS share_percent, confidence, "
        "steps, step_ns / 1e6 AS step_ms, window_ns / 1e6 AS window_ms, ranks_present, world_size, paths FROM runs",
    ),
    "cause_shares": (
        "share of every cause of every run, over all ranks",
        "SELECT causes.run, class, cause, sum(dur_ns) AS dur_ns, 1.0 * sum(dur_ns) / total.window_ns AS share_frac "
        "FROM causes JOIN (SELECT run, sum(window_ns) AS window_ns FROM ranks GROUP BY run) AS total "
        "ON total.run = causes.run GROUP BY causes.run, class, cause",
    ),
    "predicted_gains": (
        "every suggestion with its predicted step time and gain",
        "SELECT run, code, setting_name, setting_value, step_ns_before / 1e6 AS before_ms, step_ns_after / 1e6 AS "
        "after_ms, low_ns / 1e6 AS low_ms, high_ns / 1e6 AS high_ms, 1.0 - 1.0 * step_ns_after / step_ns_before AS "
        "gain_frac FROM suggestions",
    ),
}


def migrations() -> Migrations:
    """The steps from an empty file to the schema of today, in order."""
    from sqlite_utils import Migrations

    steps = Migrations("gpuscope")

    @steps()
    def tables(db: Database) -> None:
        for table in TABLES:
            _create(db, table)

    @steps()
    def views(db: Database) -> None:
        for name, (_, sql) in VIEWS.items():
            db.create_view(name, sql)

    @steps()
    def followed_by(db: Database) -> None:
        _create(db, FOLLOWED_BY, ("run", "by"))
        db.table("followed_by").create_index(["run", "by"], unique=True)

    return steps


def _create(db: Database, table: StoreTable, of_runs: Sequence[str] = ("run",)) -> None:
    from sqlite_utils.db import ForeignKey

    columns = {column.name: SQL_TYPES[column.kind] for column in table.columns}
    if table.name == "runs":
        made = db.create_table("runs", columns, pk="id", not_null={"key", "analysed_at", "report"})
        made.create_index(["key"], unique=True)
        return
    keys = [ForeignKey(table.name, name, "runs", "id", on_delete="CASCADE") for name in of_runs]
    made = db.create_table(table.name, columns, foreign_keys=keys, not_null=set(of_runs))
    made.create_index(["run"])

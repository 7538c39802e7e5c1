"""Mutations of tables: columns and rows of nsys exports, in SQLite and in Arrow's formats, and of Parquet files."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from random import Random
from typing import Any

Tables = dict[str, list[dict[str, Any]]]
OF_A_COLUMN = frozenset({"column dropped", "column renamed", "column emptied", "column of a wrong type"})
ODD = [None, -1, 0, 1, 2**31, 2**62, 2**63 - 1, -(2**63), 0.5, "text", "", "-", b"\xff\x00", "9" * 40]


def mutated(tables: Tables, random: Random) -> tuple[Tables, str]:
    """A changed copy, and what was done to it."""
    tables = {name: [dict(row) for row in rows] for name, rows in tables.items()}
    if not tables:
        return tables, "table dropped"
    name = random.choice(sorted(tables))
    rows = tables[name]
    columns = sorted({column for row in rows for column in row})
    what = random.choice(
        [
            "column dropped",
            "column dropped",
            "table dropped",
            "times reversed",
            "value replaced",
            "column of a wrong type",
            "column renamed",
            "column emptied",
            "row doubled",
            "rows dropped",
        ]
    )
    column = random.choice(columns) if columns else ""
    if what == "table dropped" or not columns or not rows:
        del tables[name]
        return tables, "table dropped"
    if what == "times reversed":
        timed = [one for one in tables if any("start" in row and row.get("end") is not None for row in tables[one])]
        for row in tables[random.choice(timed)] if timed else []:
            if row.get("start") is not None and row.get("end") is not None:
                row["start"], row["end"] = row["end"], row["start"]
    elif what == "column dropped":
        for row in rows:
            row.pop(column, None)
    elif what == "column renamed":
        for row in rows:
            row[column + "_"] = row.pop(column, None)
    elif what == "column emptied":
        for row in rows:
            row[column] = None
    elif what == "column of a wrong type":
        for row in rows:
            row[column] = str(row.get(column)) + "x" if not isinstance(row.get(column), str) else 7
    elif what == "row doubled":
        rows.insert(random.randrange(len(rows)), dict(random.choice(rows)))
    elif what == "rows dropped":
        del rows[random.randrange(len(rows)) :]
    else:
        random.choice(rows)[column] = random.choice(ODD)
    return tables, f"{what}: {name}.{column}" if what in OF_A_COLUMN else what


def write_sqlite(path: Path, tables: Tables) -> Path:
    """Each column without a declared type, so that values keep theirs."""
    path.unlink(missing_ok=True)
    connection = sqlite3.connect(path)
    try:
        connection.execute("PRAGMA synchronous = OFF")
        for name, rows in tables.items():
            columns = list(dict.fromkeys(column for row in rows for column in row)) or ["nothing"]
            connection.execute(f'CREATE TABLE "{name}" ({", ".join(f"{chr(34)}{c}{chr(34)}" for c in columns)})')
            marks = ", ".join("?" * len(columns))
            values = [[_stored(row.get(column)) for column in columns] for row in rows]
            connection.executemany(f'INSERT INTO "{name}" VALUES ({marks})', values)
        connection.commit()
    finally:
        connection.close()
    return path


def _stored(value: Any) -> Any:
    return float(value) if isinstance(value, int) and not -(2**63) <= value < 2**63 else value


def write_arrow(folder: Path, tables: Tables, kind: str) -> Path:
    """A folder of Parquet or Arrow files; columns of several types become text."""
    import pyarrow as pa
    from pyarrow import ipc, parquet

    path = folder / ("export_pqtdir" if kind == "parquetdir" else "export_arwdir")
    path.mkdir(exist_ok=True)
    for old in path.iterdir():
        old.unlink()
    for name, rows in tables.items():
        columns = list(dict.fromkeys(column for row in rows for column in row))
        whole = pa.table({column: _array([row.get(column) for row in rows]) for column in columns} or {"nothing": []})
        if kind == "parquetdir":
            parquet.write_table(whole, path / f"{name}.parquet")
        else:
            with ipc.new_file(str(path / f"{name}.arrow"), whole.schema) as writer:
                writer.write_table(whole)
    return path


def _array(values: list[Any]) -> Any:
    import pyarrow as pa

    try:
        return pa.array(values)
    except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError):
        return pa.array([None if value is None else str(value) for value in values], pa.string())

"""Small operation-level traces written by hand; times in ms, as text.

A line is `stage type start-end start-end …`, one span per operation in order of its number; a type may be
followed by `@chunk` (and `/global chunk`).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow
from pyarrow import parquet

Row = dict[str, Any]


def rows(text: str, dp_rank: int = 0, step: int = 0, replicas: int = 1) -> list[Row]:
    """The operations of one replica in one step; rank = stage · replicas + dp_rank."""
    found: list[Row] = []
    for line in text.strip().splitlines():
        stage, name, *spans = line.split()
        optype, _, told = name.partition("@")
        chunk, _, model_chunk = told.partition("/")
        seen = sum((row["stage"], row["optype"]) == (int(stage), optype) for row in found)
        for number, span in enumerate(spans, seen):
            start, end = (float(ms) / 1000 for ms in span.split("-"))
            found.append(
                {
                    "dp_rank": dp_rank,
                    "stage": int(stage),
                    "rank": int(stage) * replicas + dp_rank,
                    "step": step,
                    "optype": optype,
                    "start_ts": start,
                    "duration": end - start,
                    "seq_id": number,
                    "mc": int(chunk or -1),
                    "mb_id": -1,
                    "gmc": int(model_chunk or -1),
                }
            )
    return found


def write(path: Path, *parts: list[Row], without: tuple[str, ...] = (), **columns: Any) -> Path:
    """A Parquet file of those rows, some columns left out or replaced."""
    everything = [row for part in parts for row in part]
    table = {name: [row[name] for row in everything] for name in everything[0] if name not in without}
    parquet.write_table(pyarrow.table({**table, **columns}), path)
    return path

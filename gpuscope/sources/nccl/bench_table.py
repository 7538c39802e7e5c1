"""What `gpuscope bench collectives --json` measured: the time of each operation and size."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from gpuscope.errors import InputError
from gpuscope.problems import reading
from gpuscope.sources.nccl import NCCL_ALONE
from gpuscope.sources.source import Files, ReadOptions, Role, Source, integer
from gpuscope.trace.builder import TraceBuilder
from gpuscope.trace.schema import NA


class BenchSource(Source):
    """Reads `measurements`."""

    name = "gpuscope-bench"
    files = Files(Role.RECORD, (".json",), alone=NCCL_ALONE)

    def sniff(self, path: Path, head: bytes) -> bool:
        """The first keys of the document."""
        return path.is_file() and b'"tool": "collectives"' in head[:200] and b'"schema_version"' in head[:200]

    def read(self, path: Path, builder: TraceBuilder, options: ReadOptions) -> None:  # noqa: ARG002
        """Read a file. Raises `InputError` where it is cut off or no row of it can be used."""
        try:
            document = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise InputError(f"{path}: not a whole document of gpuscope bench: {error}") from error
        rows = document.get("rows") if isinstance(document, dict) else None
        found = [row for row in rows if _usable(row)] if isinstance(rows, list) else []
        if not found:
            raise InputError(f"{path}: no row of gpuscope bench with an operation, its ranks, bytes and time")
        source = builder.source(path, self.name, str(document.get("schema_version", "")), len(found), {})
        code = builder.names.code
        columns = {
            "tool": [code(self.name)] * len(found),
            "op": [code(row["op"]) for row in found],
            "group_size": [row["ranks"] for row in found],
            "bytes": [row["nbytes"] for row in found],
            "dur": [row["time_ns"] for row in found],
            "wrong": [_or_absent(row.get("wrong")) for row in found],
            "count": [_or_absent(document.get("iterations"))] * len(found),
            "warmup": [_or_absent(document.get("warmup"))] * len(found),
            "source": [source] * len(found),
        }
        builder.add("measurements", len(found), columns)
        lost = len(rows or []) - len(found)
        builder.problem(reading.RECORD_UNREADABLE, lost, file=path.name, what="rows")


def _usable(row: Any) -> bool:
    if not isinstance(row, dict) or not isinstance(row.get("op"), str):
        return False
    least = {"ranks": 1, "nbytes": 0, "time_ns": 1}
    return all((value := integer(row.get(name))) is not None and value >= low for name, low in least.items())


def _or_absent(value: Any) -> int:
    number = integer(value)
    return NA if number is None or number < 0 else number


SOURCE = BenchSource()

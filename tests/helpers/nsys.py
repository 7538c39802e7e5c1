"""Small nsys exports written by hand, in each of the formats that nsys exports to; times in ns."""

from __future__ import annotations

import sqlite3
import struct
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

Row = dict[str, Any]
BACKENDS = ("SQLite", "parquetdir", "arrowdir")
KERNEL, MEMCPY = "CUPTI_ACTIVITY_KIND_KERNEL", "CUPTI_ACTIVITY_KIND_MEMCPY"
RUNTIME, NVTX = "CUPTI_ACTIVITY_KIND_RUNTIME", "NVTX_EVENTS"

LOST_AGENT = ("End of file", "Local Endpoint is not available")
"""What nsys 2022 says where it lost its own agent, as it does now and then on a busy machine: worth another try."""


def process(pid: int) -> int:
    """globalPid: hw<<56 | vm<<48 | pid<<24 | tid."""
    return 1 << 48 | pid << 24


class Export:
    """Collects rows; every column that some row of a table has becomes a column of that table."""

    def __init__(self, **metadata: str) -> None:
        self.tables: dict[str, list[Row]] = {}
        self.strings: dict[str | bytes, int] = {}
        for name, value in {"EXPORT_SCHEMA_VERSION": "3.17.2", **metadata}.items():
            self.add("META_DATA_EXPORT", name=name, value=value)

    def add(self, table: str, **row: Any) -> None:
        self.tables.setdefault(table, []).append(row)

    def string(self, text: str | bytes) -> int:
        """The id of a string in StringIds."""
        if text not in self.strings:
            self.strings[text] = 100 + len(self.strings)
            self.add("StringIds", id=self.strings[text], value=text)
        return self.strings[text]

    def kernel(
        self, start: int, end: int, correlation: int, name: str = "gemm", pid: int = 10, device: int = 0, **more: Any
    ) -> None:
        self.add(
            KERNEL,
            start=start,
            end=end,
            deviceId=device,
            streamId=7,
            correlationId=correlation,
            globalPid=process(pid),
            demangledName=self.string(name),
            **more,
        )

    def copy(self, start: int, end: int, correlation: int, kind: int = 1, pid: int = 10, **more: Any) -> None:
        self.add(
            MEMCPY,
            start=start,
            end=end,
            deviceId=0,
            streamId=7,
            correlationId=correlation,
            globalPid=process(pid),
            copyKind=kind,
            **({"bytes": 64} | more),
        )

    def call(
        self, start: int, end: int, correlation: int, name: str = "cudaLaunchKernel_v7000", pid: int = 10, **more: Any
    ) -> None:
        row = {"globalTid": process(pid) + pid, "nameId": self.string(name), "returnValue": 0} | more
        self.add(RUNTIME, start=start, end=end, correlationId=correlation, **row)

    def range(self, start: int, end: int | None, text: str | None = None, pid: int = 10, **more: Any) -> None:
        row = {"eventType": 59, "domainId": 0, "textId": None} | more
        self.add(NVTX, start=start, end=end, text=text, globalTid=process(pid) + pid, **row)

    def host(self, name: str, devices: Iterable[str] = (), epoch_ns: int | None = None) -> None:
        """The host, the UUIDs of the GPUs that it lists, and when the recording began."""
        self.add("TARGET_INFO_SYSTEM_ENV", name="Hostname", value=name)
        for number, uuid in enumerate(devices):
            self.add("TARGET_INFO_GPU", id=number, name="NVIDIA H100", uuid=uuid, cuDevice=number)
        if epoch_ns is not None:
            self.add("TARGET_INFO_SESSION_START_TIME", utcEpochNs=epoch_ns)

    def uses(self, pid: int, ordinal: int, gpu: int) -> None:
        """The listed GPU that a process calls `ordinal`."""
        self.add("TARGET_INFO_CUDA_DEVICE", gpuId=gpu, cudaId=ordinal, pid=pid)

    def environment(self, **variables: object) -> None:
        """Variables of the profiled command."""
        for name, value in variables.items():
            self.add("META_DATA_CAPTURE", name="PROCESS_0:ENVIRONMENT_VARIABLE", value=f'{name}="{value}"')

    def write(self, folder: Path, backend: str = "SQLite", name: str = "export") -> Path:
        """Write the export; returns what is to be opened."""
        folder.mkdir(parents=True, exist_ok=True)
        if backend == "SQLite":
            return self._sqlite(folder / f"{name}.sqlite")
        path = folder / ("export_pqtdir" if backend == "parquetdir" else "export_arwdir")
        path.mkdir()
        for table, rows in self.tables.items():
            _write_arrow(path, backend, table, rows)
        return path

    def _sqlite(self, path: Path) -> Path:
        connection = sqlite3.connect(path)
        for table, rows in self.tables.items():
            columns = _columns(rows)
            kinds = ["INTEGER" if all(_is_number(r.get(c)) for r in rows) else "TEXT" for c in columns]
            declared = ", ".join(f'"{c}" {kind}' for c, kind in zip(columns, kinds, strict=True))
            connection.execute(f'CREATE TABLE "{table}" ({declared})')
            # Text that is not UTF-8 gets into real files as TEXT; a payload as BLOB.
            marks = ", ".join(
                "CAST(? AS TEXT)" if k == "TEXT" and c != "binaryData" else "?"
                for c, k in zip(columns, kinds, strict=True)
            )
            values = [[row.get(c) for c in columns] for row in rows]
            connection.executemany(f'INSERT INTO "{table}" VALUES ({marks})', values)
        connection.commit()
        connection.close()
        return path


def payload(schema: int, body: bytes, domain: int = 1) -> bytes:
    """A binary NVTX payload as nsys exports it."""
    return struct.pack("<QQQQ", domain, schema, len(body), 32) + body


def _is_number(value: Any) -> bool:
    return value is None or isinstance(value, int)


def _columns(rows: Iterable[Row]) -> list[str]:
    return list(dict.fromkeys(name for row in rows for name in row))


def _write_arrow(folder: Path, backend: str, table: str, rows: list[Row]) -> None:
    pa = pytest.importorskip("pyarrow")
    from pyarrow import ipc, parquet

    arrays = {}
    for column in _columns(rows):
        values = [row.get(column) for row in rows]
        if all(_is_number(value) for value in values):
            arrays[column] = pa.array(values, pa.int64())
            continue
        encoded = pa.array([v.encode() if isinstance(v, str) else v for v in values], pa.large_binary())
        valid, offsets, data = encoded.buffers()
        # As nsys does: bytes of any kind in a column of text.
        arrays[column] = pa.LargeStringArray.from_buffers(len(encoded), offsets, data, valid, encoded.null_count)
    whole = pa.table(arrays)
    if backend == "parquetdir":
        parquet.write_table(whole, folder / f"{table}.parquet")
    else:
        with ipc.new_file(str(folder / f"{table}.arrow"), whole.schema) as writer:
            writer.write_table(whole)

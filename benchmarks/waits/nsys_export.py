"""A synthetic nsys SQLite export, for sizes and not for any real run. SQLite makes its rows itself."""

from __future__ import annotations

import sqlite3
from pathlib import Path

KERNELS_PER_STEP = 2_000
_NAMES, _RANGE_NAMES = 400, 2_000
_SCHEMA = """
CREATE TABLE META_DATA_EXPORT (name TEXT, value TEXT);
INSERT INTO META_DATA_EXPORT VALUES ('EXPORT_SCHEMA_VERSION', '3.17.2');
CREATE TABLE StringIds (id INTEGER PRIMARY KEY, value TEXT NOT NULL);
CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL (
    start INTEGER NOT NULL, end INTEGER NOT NULL, deviceId INTEGER NOT NULL, contextId INTEGER NOT NULL,
    greenContextId INTEGER, streamId INTEGER NOT NULL, correlationId INTEGER, globalPid INTEGER,
    demangledName INTEGER NOT NULL, shortName INTEGER NOT NULL, mangledName INTEGER, launchType INTEGER,
    registersPerThread INTEGER NOT NULL, gridX INTEGER NOT NULL, gridY INTEGER NOT NULL, gridZ INTEGER NOT NULL,
    blockX INTEGER NOT NULL, blockY INTEGER NOT NULL, blockZ INTEGER NOT NULL, graphId INTEGER, graphNodeId INTEGER);
CREATE TABLE CUPTI_ACTIVITY_KIND_RUNTIME (
    start INTEGER NOT NULL, end INTEGER NOT NULL, eventClass INTEGER NOT NULL, globalTid INTEGER, correlationId INTEGER,
    nameId INTEGER NOT NULL, returnValue INTEGER NOT NULL, callchainId INTEGER);
CREATE TABLE NVTX_EVENTS (
    start INTEGER NOT NULL, end INTEGER, eventType INTEGER NOT NULL, rangeId INTEGER, category INTEGER, text TEXT,
    globalTid INTEGER, domainId INTEGER, textId INTEGER);
"""
_PID = 1 << 48 | 10 << 24


def synthetic_export(path: Path, kernels: int, ranges: int = 0) -> Path:
    """An export with that many kernels, three runtime calls for each, a range per step of 2,000 kernels, and within the
    steps `ranges` of 2,000 names, one behind the other."""
    with sqlite3.connect(path) as database:
        database.executescript("PRAGMA journal_mode=OFF; PRAGMA synchronous=OFF;" + _SCHEMA)
        names = [(number, f"void kernel_{number}<float, {number % 7}>(float*, int)") for number in range(_NAMES)]
        names += [(1_000 + number, f"aten::operator_{number}") for number in range(_RANGE_NAMES)]
        names += [(900, "cudaLaunchKernel_v7000"), (901, "cudaEventRecord_v3020"), (902, "cudaGetLastError_v3020")]
        database.executemany("INSERT INTO StringIds VALUES (?, ?)", [*names, (903, "step")])
        database.execute(f"""
            INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL
            WITH RECURSIVE n(i) AS (SELECT 0 UNION ALL SELECT i + 1 FROM n WHERE i + 1 < {kernels})
            SELECT i * 10000 + 9000, i * 10000 + 12000 + i * 7919 % 6000, 0, 1, NULL, 7 + (i % 50 = 0), i + 1, {_PID},
                i * 31 % {_NAMES}, i * 31 % {_NAMES}, NULL, 0, 32, 1, 1, 1, 128, 1, 1, NULL, NULL FROM n""")
        database.execute(f"""
            INSERT INTO CUPTI_ACTIVITY_KIND_RUNTIME
            WITH RECURSIVE n(i) AS (SELECT 0 UNION ALL SELECT i + 1 FROM n WHERE i + 1 < {3 * kernels})
            SELECT i / 3 * 10000 + i % 3 * 3000, i / 3 * 10000 + i % 3 * 3000 + 2000, 0, {_PID + 10},
                CASE i % 3 WHEN 0 THEN i / 3 + 1 ELSE {kernels} + i END, 900 + i % 3, 0, NULL FROM n""")
        step, steps = KERNELS_PER_STEP * 10_000, max(1, kernels // KERNELS_PER_STEP)
        database.execute(f"""
            INSERT INTO NVTX_EVENTS
            WITH RECURSIVE n(i) AS (SELECT 0 UNION ALL SELECT i + 1 FROM n WHERE i + 1 < {steps})
            SELECT i * {step}, (i + 1) * {step} - 1, 59, NULL, NULL, NULL, {_PID + 10}, 0, 903 FROM n""")
        if ranges:
            each = kernels * 10_000 // ranges
            database.execute(f"""
                INSERT INTO NVTX_EVENTS
                WITH RECURSIVE n(i) AS (SELECT 0 UNION ALL SELECT i + 1 FROM n WHERE i + 1 < {ranges})
                SELECT i * {each} + 1, (i + 1) * {each} - 2, 59, NULL, NULL, NULL, {_PID + 10}, 0,
                    1000 + i * 7 % {_RANGE_NAMES} FROM n""")
    return path

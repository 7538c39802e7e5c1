"""What stands beside gpuscope: another tool's work on one file, in a process of its own.

Run as a script by a Python that has that tool (`python others.py hta FILE`), so nothing else of ours is imported.
"""

from __future__ import annotations

import logging
import sys


def hta(path: str) -> None:
    """HolisticTraceAnalysis: the breakdowns of one rank that gpuscope makes too, by the fastest parser it offers."""
    from hta.common.trace_parser import set_default_trace_parsing_backend  # type: ignore[import-not-found]
    from hta.configs.parser_config import ParserBackend  # type: ignore[import-not-found]
    from hta.trace_analysis import TraceAnalysis  # type: ignore[import-not-found]

    logging.disable(logging.CRITICAL)
    set_default_trace_parsing_backend(ParserBackend.IJSON_BATCH_AND_COMPRESS)
    analysis = TraceAnalysis(trace_files={0: path})
    analysis.get_temporal_breakdown(visualize=False)
    analysis.get_idle_time_breakdown(visualize=False)
    analysis.get_gpu_kernel_breakdown(visualize=False)
    analysis.get_comm_comp_overlap(visualize=False)


def adbc(path: str) -> None:
    """Arrow's SQLite driver: the times, names and ids of an export's kernels and runtime calls, merely read."""
    from adbc_driver_sqlite import dbapi  # type: ignore[import-not-found]

    kernels = "start, end, deviceId, streamId, correlationId, globalPid, demangledName, graphNodeId"
    with dbapi.connect(path) as connection, connection.cursor() as cursor:
        for query in (
            f"SELECT {kernels} FROM CUPTI_ACTIVITY_KIND_KERNEL",
            "SELECT start, end, globalTid, correlationId, nameId FROM CUPTI_ACTIVITY_KIND_RUNTIME",
        ):
            cursor.execute(query)
            cursor.fetch_arrow_table()


if __name__ == "__main__":
    {"hta": hta, "adbc": adbc}[sys.argv[1]](sys.argv[2])

"""One tool, one task, one file, in this fresh process: prints what it cost as JSON.

Run as a script with the tool's own Python, so nothing but the standard library and that tool is imported.
Imports come before the clock starts; peak memory is that of the whole process, imports included.
"""

from __future__ import annotations

import json
import logging
import resource
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any


def gpuscope(task: str) -> Callable[[str], Any]:
    import gpuscope
    from gpuscope.analyzers.base.analyzer import FileAnalyzer, analyzers_of
    from gpuscope.analyzers.facts.run_facts import RunAnalyzer, WhatIfAnalyzer
    from gpuscope.sources.source import all_sources

    all_sources()  # imported late otherwise
    if task == "load":
        return gpuscope.open_trace
    for kind in (FileAnalyzer, RunAnalyzer, WhatIfAnalyzer):
        analyzers_of(kind)
    return lambda path: gpuscope.analyze(path, advice=False)  # of which HTA gives none


def hta(task: str, backend: str) -> Callable[[str], Any]:
    from hta.common.trace_parser import set_default_trace_parsing_backend  # type: ignore[import-not-found]
    from hta.configs.parser_config import ParserBackend  # type: ignore[import-not-found]
    from hta.trace_analysis import TraceAnalysis  # type: ignore[import-not-found]

    logging.disable(logging.CRITICAL)
    set_default_trace_parsing_backend(ParserBackend(backend))

    def load(path: str) -> Any:
        return TraceAnalysis(trace_files={0: path})

    def analyze(path: str) -> None:
        """The analyses of one rank that gpuscope makes too."""
        analysis = load(path)
        analysis.get_temporal_breakdown(visualize=False)
        analysis.get_idle_time_breakdown(visualize=False)
        analysis.get_gpu_kernel_breakdown(visualize=False)
        analysis.get_comm_comp_overlap(visualize=False)

    return load if task == "load" else analyze


def peak_bytes() -> int:
    """Highest resident memory of this process."""
    status = Path("/proc/self/status")
    if status.exists():  # a child's ru_maxrss may be inherited from the process that started it
        for line in status.read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def main(tool: str, task: str, path: str) -> None:
    name, _, backend = tool.partition(":")
    run = gpuscope(task) if name == "gpuscope" else hta(task, backend)
    wall, cpu = time.perf_counter(), time.process_time()
    kept = run(path)
    cost = {"wall_s": time.perf_counter() - wall, "cpu_s": time.process_time() - cpu, "peak_bytes": peak_bytes()}
    print(json.dumps(cost))
    del kept


if __name__ == "__main__":
    main(*sys.argv[1:])

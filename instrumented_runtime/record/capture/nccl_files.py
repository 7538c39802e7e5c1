"""NCCL's own files: the INFO log of each process, and the Inspector's JSONL where that was asked for."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path

from gpuscope.errors import UsageError

INSPECTOR = "libnccl-profiler-inspector.so"
PLUGIN = "NCCL_PROFILER_PLUGIN"
FOLDER = "nccl"


def nccl_variables(folder: Path, environment: Mapping[str, str]) -> dict[str, str]:
    """Variables that make NCCL log into `folder`; nothing about its log where the user has set any of that."""
    wanted = {
        "NCCL_DEBUG": "INFO",
        # Written once, at start-up. TUNING, COLL and CALL write a line per collective, without bound.
        "NCCL_DEBUG_SUBSYS": "INIT,ENV,GRAPH,NET",
        "NCCL_DEBUG_FILE": str(folder / FOLDER / "nccl.%h.%p.log"),
    }
    return {} if set(wanted) & set(environment) else wanted


def inspector_variables(folder: Path, environment: Mapping[str, str]) -> dict[str, str]:
    """Variables that load NCCL Inspector, but for those that the user has set."""
    wanted = {
        PLUGIN: str(find_inspector(environment)),
        "NCCL_INSPECTOR_ENABLE": "1",
        "NCCL_INSPECTOR_DUMP_THREAD_INTERVAL_MICROSECONDS": "500000",
        "NCCL_INSPECTOR_DUMP_DIR": str(folder / "nccl_inspector"),
    }
    return {name: value for name, value in wanted.items() if name not in environment}


def check_inspector(environment: Mapping[str, str]) -> None:
    """Raise `UsageError` where NCCL can't load the Inspector: it loads one plugin, and the user's stays."""
    theirs = environment.get(PLUGIN)
    if theirs and "inspector" not in theirs:
        raise UsageError(
            f"{PLUGIN}={theirs} is set, and NCCL loads one plugin", hint="unset it, or leave --nccl-inspector out"
        )
    if not theirs and find_inspector(environment) is None:
        raise UsageError(f"{INSPECTOR} is not found", hint="put its folder into LD_LIBRARY_PATH")


def find_inspector(environment: Mapping[str, str]) -> Path | None:
    """The Inspector plugin, in the library path or beside the NCCL of a wheel."""
    folders = [Path(entry) for entry in environment.get("LD_LIBRARY_PATH", "").split(":") if entry]
    folders += [Path(entry, "nvidia", "nccl", "lib") for entry in sys.path]
    found = (folder / INSPECTOR for folder in folders)
    return next((path for path in found if path.is_file()), None)


def written_files(folder: Path) -> list[tuple[Path, str]]:
    """The files NCCL wrote, each with its kind. Empty logs are removed, so that gloo runs leave none."""
    files = []
    for log in sorted((folder / FOLDER).glob("*.log")):
        if log.stat().st_size:
            files.append((log, "nccl_log"))
        else:
            os.remove(log)
    files += [(path, "nccl_inspector") for path in sorted((folder / "nccl_inspector").rglob("*.log"))]
    files += [(path, "nccl_inspector") for path in sorted((folder / "nccl_inspector").rglob("*.json*"))]
    return files

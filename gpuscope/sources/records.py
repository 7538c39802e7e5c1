"""Files without a timeline of a rank: what NCCL, its tests, PyTorch's Flight Recorder and allocator wrote beside it.

They go with traces of any format. Where a folder holds traces too, allocator snapshots and what NCCL wrote are read
with them, Flight Recorder dumps only if named outright or where the job hung.
"""

from __future__ import annotations

import os
from collections.abc import Collection
from pathlib import Path

from gpuscope.errors import InputError
from gpuscope.sources.source import source_for

FLIGHT_RECORDER = "flight-recorder"
ALLOCATOR_SNAPSHOT = "allocator-snapshot"
NCCL_RECORDS = frozenset({"nccl-log", "nccl-inspector", "nccl-profiler", "nccl-topology", "nvidia-smi-topo"})
"""What NCCL, its tests and nvidia-smi write."""
RECORDS = NCCL_RECORDS | {FLIGHT_RECORDER, ALLOCATOR_SNAPSHOT}
"""Names of the formats."""
_BESIDE = (".log", ".txt", ".out", ".err", ".jsonl", ".xml")
"""Endings of NCCL's records that are looked for beside traces."""


def is_record(path: Path, formats: Collection[str] = RECORDS) -> bool:
    """Whether a file is of one of these formats."""
    try:
        return path.is_file() and source_for(path)[0].name in formats
    except InputError:
        return False


def records_below(folder: Path, formats: Collection[str] = RECORDS) -> list[Path]:
    """The files of these formats below a folder, whatever their names."""
    found: list[Path] = []
    for parent, folders, files in os.walk(folder):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        found += [Path(parent, name) for name in sorted(files) if not name.startswith(".")]
    return [path for path in found if is_record(path, formats)]


def snapshots_below(folder: Path) -> list[Path]:
    """The allocator snapshots below a folder, told by suffix and content. They are read with the traces there."""
    pickles = [path for path in folder.rglob("*.p*") if path.suffix in (".pickle", ".pkl")]
    shown = (path for path in pickles if not any(part.startswith(".") for part in path.relative_to(folder).parts))
    return sorted(path for path in shown if is_record(path, {ALLOCATOR_SNAPSHOT}))


def nccl_records_beside(folder: Path) -> list[Path]:
    """What NCCL wrote below a folder of traces, by the endings such files have."""
    found: list[Path] = []
    for parent, folders, files in os.walk(folder):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        found += [Path(parent, name) for name in sorted(files) if name.endswith(_BESIDE) and not name.startswith(".")]
    return [path for path in found if is_record(path, NCCL_RECORDS)]

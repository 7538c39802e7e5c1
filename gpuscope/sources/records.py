"""Files without a timeline of a rank: what NCCL, its tests and PyTorch's Flight Recorder wrote beside it.

They go with traces of any format. Where a folder holds traces too, they are read only if named outright.
"""

from __future__ import annotations

import os
from collections.abc import Collection
from pathlib import Path

from gpuscope.errors import InputError
from gpuscope.sources.base import source_for

FLIGHT_RECORDER = "flight-recorder"
RECORDS = frozenset(
    {FLIGHT_RECORDER, "nccl-log", "nccl-inspector", "nccl-profiler", "nccl-topology", "nvidia-smi-topo"}
)
"""Names of the formats."""


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

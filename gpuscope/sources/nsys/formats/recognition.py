"""What an nsys export is recognised by, which is asked of every file: this imports next to nothing."""

from __future__ import annotations

from pathlib import Path

FORMS = (".nsys-rep", ".qdrep", ".sqlite", "_pqtdir", "_arwdir")
"""A report and its exports: one recording in several forms, the one that holds most first."""
REPORT_MAGIC = b"NVIDIA Tegra Profiler Report "
SQLITE_MAGIC = b"SQLite format 3\0"
_NSYS_TABLES = ("StringIds", "NVTX_EVENTS", "OSRT_API", "TARGET_INFO_SYSTEM_ENV", "META_DATA_EXPORT")
FORMATS = {".parquet": "parquetdir", ".arrow": "arrowdir", ".arrows": "arrowdir", ".feather": "arrowdir"}
"""Formats of folders with a file per table, by the files' suffix."""


def is_of_nsys(table: str) -> bool:
    """Whether a table of this name is nsys's."""
    return table in _NSYS_TABLES or table.startswith("CUPTI_ACTIVITY_KIND_")


def is_table_folder(path: Path) -> bool:
    """Whether a folder holds one file per nsys table."""
    return any(is_of_nsys(file.stem) for file in table_files(path))


def table_files(path: Path) -> list[Path]:
    """The files of such a folder, in order."""
    try:
        return sorted(file for file in path.iterdir() if file.suffix in FORMATS)
    except OSError:
        return []

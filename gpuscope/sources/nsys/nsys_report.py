"""nsys reports (.nsys-rep, .qdrep), recognised here; `report_export` is imported for such files alone."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

from gpuscope.errors import InputError
from gpuscope.sources.nsys.recognition import FORMS, REPORT_MAGIC, SQLITE_MAGIC, is_table_folder
from gpuscope.sources.rank_numbers import Processes
from gpuscope.sources.source import Files, ReadOptions, Role, rank_in_name
from gpuscope.trace.builder import TraceBuilder

# Nsight Systems exports, recognised here; `export_reading` is imported for such files alone.


class NsysSource:
    """Reads what `nsys export` writes."""

    name = "nsys"
    files = Files(Role.TIMELINE, (".sqlite", "_pqtdir", "_arwdir"), forms=FORMS, keepable=True)

    def sniff(self, path: Path, head: bytes) -> bool:
        if path.is_dir():
            return is_table_folder(path)
        if not head.startswith(SQLITE_MAGIC):
            return False
        from gpuscope.sources.nsys.export_tables import looks_like_nsys

        return looks_like_nsys(path)

    def peek_rank(self, path: Path, head: bytes) -> int | None:  # noqa: ARG002
        from gpuscope.sources.nsys.export_reading import peek_rank

        return peek_rank(path, path)

    def processes(self, path: Path, options: ReadOptions) -> Processes | None:  # noqa: ARG002
        """The processes that worked, for files that record no ranks."""
        from gpuscope.sources.nsys.export_reading import processes_in

        return processes_in(path, path)

    def read(self, path: Path, builder: TraceBuilder, options: ReadOptions) -> None:
        from gpuscope.sources.nsys.export_reading import open_tables, read_tables

        with closing(open_tables(path, options.partial)) as tables:
            read_tables(tables, path, builder, options)
        if options.advance and path.is_file():
            options.advance(path.stat().st_size)


NSYS_SOURCE_SOURCE = NsysSource()


_SUFFIXES = (".nsys-rep", ".qdrep")


class NsysReportSource:
    """Reads reports through `nsys export`."""

    name = "nsys report"
    files = Files(Role.TIMELINE, _SUFFIXES, unmistakable=_SUFFIXES, forms=FORMS, keepable=True)

    def sniff(self, path: Path, head: bytes) -> bool:
        # An empty or damaged report is one by its name; what begins like another format is that, whatever its name.
        other = head.startswith(SQLITE_MAGIC) or head.lstrip()[:1] in (b"{", b"[")
        return path.is_file() and (head.startswith(REPORT_MAGIC) or (path.suffix in _SUFFIXES and not other))

    def peek_rank(self, path: Path, head: bytes) -> int | None:  # noqa: ARG002
        from gpuscope.sources.nsys.export_reading import peek_rank
        from gpuscope.sources.nsys.report_export import already_exported, state_of

        there = already_exported(path, state_of(path))
        return rank_in_name(path) if there is None else peek_rank(there, path)

    def processes(self, path: Path, options: ReadOptions) -> Processes | None:
        """The processes that worked, for files that record no ranks; exports the report if need be."""
        from gpuscope.sources.nsys.export_reading import processes_in
        from gpuscope.sources.nsys.report_export import exported

        try:
            return processes_in(exported(path, options), path)
        except InputError:
            return None

    def read(self, path: Path, builder: TraceBuilder, options: ReadOptions) -> None:
        from gpuscope.sources.nsys.export_reading import read_tables
        from gpuscope.sources.nsys.export_tables import SqliteTables
        from gpuscope.sources.nsys.report_export import exported

        if path.stat().st_size == 0:
            raise InputError(f"{path}: is empty", hint="was the profiler still writing, or the disk full?")
        with closing(SqliteTables(exported(path, options))) as tables:
            read_tables(tables, path, builder, options)
        if options.advance:
            options.advance(path.stat().st_size)


NSYS_REPORT_SOURCE = NsysReportSource()


SOURCES = (NSYS_REPORT_SOURCE, NSYS_SOURCE_SOURCE)

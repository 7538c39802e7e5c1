"""Nsight Systems exports, recognised here; `export_reading` is imported for such files alone."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

from gpuscope.sources.nsys.formats.recognition import FORMS, SQLITE_MAGIC, is_table_folder
from gpuscope.sources.rank_numbers import Processes
from gpuscope.sources.source import Files, ReadOptions, Role
from gpuscope.trace.builder import TraceBuilder


class NsysSource:
    """Reads what `nsys export` writes."""

    name = "nsys"
    files = Files(Role.TIMELINE, (".sqlite", "_pqtdir", "_arwdir"), forms=FORMS, keepable=True)

    def sniff(self, path: Path, head: bytes) -> bool:
        if path.is_dir():
            return is_table_folder(path)
        if not head.startswith(SQLITE_MAGIC):
            return False
        from gpuscope.sources.nsys.formats.export_tables import looks_like_nsys

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


SOURCE = NsysSource()

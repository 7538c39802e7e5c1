"""Kineto JSON, as torch.profiler writes it, from 2020 on: NVIDIA, ROCm, MTIA, CPU only.

Facts of the format: pytorch/kineto `libkineto/src/output_json.cpp` (layout, `baseTimeNanoseconds`) and
`ActivityType.cpp` (categories); PyTorch `torch/csrc/distributed/c10d/ParamCommsUtils.hpp` (arguments of
collectives).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from gpuscope import when_used
from gpuscope.errors import InputError
from gpuscope.problems import reading
from gpuscope.sources import stream
from gpuscope.sources.kineto.event_columns import EventColumns
from gpuscope.sources.kineto.execution_links import link
from gpuscope.sources.kineto.graph_nodes import flows_of
from gpuscope.sources.kineto.merged_file import Apart, check_one_recording, processes, without_device_calls
from gpuscope.sources.kineto.recorded_run import RecordedRun
from gpuscope.sources.kineto.text.chrome_json import Document, Losses
from gpuscope.sources.kineto.uncorrelated import correlate
from gpuscope.sources.other_recorders import marks_of
from gpuscope.sources.source import Files, ReadOptions, Role, SeveralRanks, rank_in_name
from gpuscope.trace.builder import TraceBuilder

_RANK_IN_HEADER = when_used.pattern(rb'"distributedInfo"\s*:\s*\{[^{}\[\]]*?"rank"\s*:\s*(\d+)')
_KINETO_HEAD = when_used.pattern(rb'"(schemaVersion|traceEvents|deviceProperties|baseTimeNanoseconds)"\s*:')
_HEAD, _LONG_HEAD = 1 << 16, 8 << 20
_MERGED = when_used.pattern(rb'"pid"\s*:\s*"\[|"pid_raw"\s*:')
_CHROME_EVENT = when_used.pattern(rb'\{\s*"(ph|name|cat|ts|pid|tid|args|dur)"\s*:')


class KinetoSource:
    """Reads what `torch.profiler` exports as Chrome trace, plain or gzipped."""

    name = "kineto"
    files = Files(Role.TIMELINE, (".json", ".json.gz"), unmistakable=(".json.gz",), keepable=True)

    def sniff(self, path: Path, head: bytes) -> bool:
        start = head.lstrip()
        if start.startswith(b"["):
            # py-spy's threads begin with a process id as well.
            chrome = _CHROME_EVENT.match(start[1:].lstrip()) is not None and b'"owns_gil"' not in head
        elif start.startswith(b"{"):
            # What a user put into the metadata can fill the beginning.
            chrome = _KINETO_HEAD.search(head) is not None or (
                len(head) >= _HEAD and _KINETO_HEAD.search(stream.head(path, _LONG_HEAD)) is not None
            )
        else:
            chrome = False
        return chrome and not marks_of(path).of_another

    def peek_rank(self, path: Path, head: bytes) -> int | None:
        if _MERGED.search(head):
            return None  # several, and the header is that of the first
        match = _RANK_IN_HEADER.search(head)
        return int(match[1]) if match else rank_in_name(path)

    def read(self, path: Path, builder: TraceBuilder, options: ReadOptions) -> None:
        columns = EventColumns(builder)
        document = Document(path, options.advance, scanner=columns.scanner)
        for events in document.events():
            columns.take(events)
        losses = document.losses
        if losses.truncated and not options.partial:
            raise InputError(losses.truncated, hint="copy it again, or pass --partial to analyse what is left")
        if not losses.events:
            raise InputError(f"{path}: contains no events", hint="was the profiler stopped before it was exported?")
        if not columns.chunks and not columns.bad_times and not (marks := marks_of(path)).kineto:
            raise marks.refusal()
        if len(working := processes(columns)) > 1:
            raise SeveralRanks(_apart(path, working))
        without_device_calls(columns)
        check_one_recording(columns, builder.names, path)
        report_losses(builder, losses, path)
        link(columns, builder, options.linked)
        correlate(columns, builder.names, path)
        if columns.has_short_nodes:
            columns.join(flows_of(path))
        cut_off = bool(losses.truncated)
        run = RecordedRun(builder, columns, path, document.header, named_rank=options.first_rank, cut_off=cut_off)
        run.finish(losses.events)


def _apart(path: Path, working: set[Any]) -> list[TraceBuilder]:
    """A builder for each rank of a merged file, each filled as if the rank had a file of its own."""
    apart = Apart(path, working)
    ranks = apart.read()
    for rank, key in ranks.items():
        header, cut_off = apart.header_of(rank), bool(apart.losses.truncated)
        run = RecordedRun(apart.builders[key], apart.columns[key], path, header, named_rank=rank, cut_off=cut_off)
        run.finish(apart.events[key])
    builders = [apart.builders[key] for key in ranks.values()]
    report_losses(builders[0], apart.losses, path)
    return builders


def report_losses(builder: TraceBuilder, losses: Losses, path: Path) -> None:
    """Report to the builder what the JSON reader could not read of `path`."""
    builder.problem(reading.TRUNCATED, int(bool(losses.truncated)), file=path.name, what="events")
    builder.problem(reading.UNDECODABLE_EVENT, losses.undecodable, file=path.name)
    builder.problem(reading.INVALID_UTF8, losses.invalid_utf8, file=path.name)


SOURCE = KinetoSource()

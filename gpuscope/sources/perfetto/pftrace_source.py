"""`.pftrace`: Perfetto's own format, as torch.profiler's CUPTI back end writes it since 2.14.

Facts of the format: google/perfetto `protos/perfetto/trace/**`, and pytorch `cuspy_pftrace.cpp`. Perfetto traces of
other recorders (Android, Chrome, `tracebox`) are told apart by what is in them, and refused.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from gpuscope.errors import InputError
from gpuscope.problems import reading
from gpuscope.sources import stream
from gpuscope.sources.kineto.event_columns import EventColumns
from gpuscope.sources.kineto.kineto_run import RecordedRun
from gpuscope.sources.perfetto.packets import DamagedError, begins_with_packets, texts
from gpuscope.sources.source import Files, ReadOptions, Role, rank_in_name
from gpuscope.sources.stream import is_xplane
from gpuscope.trace.builder import TraceBuilder

_RECORD = (
    "gpuscope reads Perfetto traces of torch.profiler: export_chrome_trace('rank0.pftrace') with the CUPTI back end of "
    "torch 2.15, or export as .json.gz"
)


class PftraceSource:
    """Reads `.pftrace` and `.pftrace.gz` of torch.profiler."""

    name = "pftrace"
    files = Files(
        Role.TIMELINE,
        (".pftrace", ".pftrace.gz", ".perfetto-trace"),
        unmistakable=(".pftrace", ".pftrace.gz"),
        keepable=True,
    )

    def sniff(self, path: Path, head: bytes) -> bool:  # noqa: ARG002
        return begins_with_packets(head) and not is_xplane(head)

    def peek_rank(self, path: Path, head: bytes) -> int | None:  # noqa: ARG002
        return rank_in_name(path)

    def read(self, path: Path, builder: TraceBuilder, options: ReadOptions) -> None:
        from gpuscope.sources.perfetto.torch_packets import TorchPackets

        columns = EventColumns(builder)
        found = TorchPackets(builder, columns)
        cut_off = ""
        try:
            texts(path, found.take, options.advance)
        except stream.TruncatedError as error:
            cut_off = str(error)
        except DamagedError as error:
            cut_off = f"{path}: damaged: {error}"
        found.finish(bool(cut_off))
        if cut_off and not options.partial:
            raise InputError(cut_off, hint="copy it again, or pass --partial to analyse what is left")
        state = found.reading
        if not state.work and not state.other and (cut_off or found.unpaired):
            raise InputError(
                f"{path}: cut off before the end of the first operator, CUDA call or kernel",
                hint="copy it again, or record anew: the profiler had to end by itself",
            )
        if not state.work:
            raise InputError(_nothing_of_torch(path, state.other, state.undecodable), hint=_RECORD)
        problem, name = builder.problem, path.name
        problem(reading.TRUNCATED, int(bool(cut_off)), file=name, what="packets")
        problem(reading.UNDECODABLE_PACKET, state.undecodable, file=name)
        problem(reading.UNPAIRED_SLICE, found.unpaired, file=name)
        problem(reading.INVALID_UTF8, found.invalid_utf8, file=name)
        for what, count in sorted(state.other.items()):
            problem(reading.UNKNOWN_PACKETS, count, file=name, what=what.replace("_", " "))
        header = {"distributedInfo": state.world}
        # This back end is CUPTI's: there was a device, even where nothing ran on it.
        run = RecordedRun(
            builder,
            columns,
            path,
            header,
            fmt=self.name,
            dropped_records=found.dropped,
            on_device=True,
            named_rank=options.first_rank,
            cut_off=bool(cut_off),
        )
        run.finish(found.events)


def _nothing_of_torch(path: Path, other: Counter[str], undecodable: int) -> str:
    held = ", ".join(f"{count} {what.replace('_', ' ')}" for what, count in other.most_common(6))
    damaged = f"; {undecodable} packets can't be read" if undecodable else ""
    return (
        f"{path}: a Perfetto trace, but not one of torch.profiler: it holds {held or 'no events'}{damaged}, and no "
        "operators, CUDA calls or kernels"
    )


SOURCE = PftraceSource()

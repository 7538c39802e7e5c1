"""The bench reports as tables, for people; `--json` is for programs."""

from __future__ import annotations

from rich.console import Console

from gpuscope.hardware.link_rates import Link
from gpuscope.instrumented_runtime.bench.sizes import format_size
from gpuscope.report.terminal.columns import Columns
from gpuscope.report.terminal.screen import Writer
from gpuscope.schema.bench_documents import BenchCollectives, BenchScaling, BenchTopology, BenchTransfers


def _table(writer: Writer, title: str, *columns: str) -> Columns:
    """A titled table; the columns' kinds are those of `Writer.table`."""
    writer.line(title)
    return writer.table(*columns)


def _row(table: Columns, writer: Writer, *cells: str) -> None:
    table.add_row(*(writer.text(cell) for cell in cells))


def _gbps(value: float | None) -> str:
    return "?" if value is None else f"{value:.3f}" if value < 10 else f"{value:.1f}"


def _of_peak(value: float | None, peak: float | None) -> str:
    return f"{value / peak:.0%}" if value is not None and peak else ""


def print_collectives(report: BenchCollectives, console: Console, link: Link | None) -> None:
    """Time, algbw and busbw per operation and size; beside a link's peak where one was named."""
    writer = Writer(console)
    columns = [">size", ">count", ">time (µs)", ">algbw (GB/s)", ">busbw (GB/s)"]
    columns += [f">of {link.name}"] if link else []
    title = f"{report.world_size} ranks · {report.backend} · {report.device} · torch {report.torch_version}"
    table = _table(writer, title, "<operation", *columns, ">wrong")
    for row in report.rows:
        cells = [format_size(row.nbytes), str(row.count), f"{row.time_ns / 1000:.1f}"]
        cells += [_gbps(row.algbw_gbps), _gbps(row.busbw_gbps)]
        cells += [_of_peak(row.busbw_gbps, link.peak)] if link else []
        _row(table, writer, row.op, *cells, "n/a" if row.wrong is None else str(row.wrong))
    writer.show(table)


def print_transfers(report: BenchTransfers, console: Console) -> None:
    """Bandwidth per kind of copy; states first if only host memory could be measured."""
    writer = Writer(console)
    if report.note:
        writer.line(f"Note: {report.note}.")
    table = _table(
        writer, f"{', '.join(report.devices) or 'cpu'} · torch {report.torch_version}",
        "<copy", "<from", "<to", ">size", ">time (µs)", ">copied (GB/s)", ">memory traffic (GB/s)", ">of link's peak",
        "~note",
    )  # fmt: skip
    for row in report.rows:
        _row(
            table,
            writer,
            row.kind,
            row.source,
            row.target,
            format_size(row.nbytes),
            f"{row.time_ns / 1000:.1f}",
            _gbps(row.bandwidth_gbps),
            _gbps(row.traffic_gbps),
            _of_peak(row.bandwidth_gbps, row.peak_gbps),
            row.note,
        )
    writer.show(table)


def print_topology(report: BenchTopology, console: Console) -> None:
    """Pairs of GPUs with what their link should give, then NUMA nodes, GPUs on the bus and network ports."""
    writer = Writer(console)
    if report.pairs:
        table = _table(
            writer, "What each pair's link should give, per direction (data sheets, not measured)",
            "<pair", "<path", "<link", ">peak (GB/s)", ">usable (GB/s)", "~note",
        )  # fmt: skip
        for pair in report.pairs:
            rates = _gbps(pair.peak_gbps), _gbps(pair.usable_gbps)
            _row(table, writer, f"{pair.a} {pair.b}", pair.path, pair.link, *rates, pair.note)
        writer.show(table)
    _print_machine(report, writer)
    for note in report.notes:
        writer.line(f"Note: {note}.", hang=2)


def print_scaling(report: BenchScaling, console: Console) -> None:
    """Throughput, speed-up and efficiency per number of processes."""
    writer = Writer(console)
    table = _table(
        writer,
        f"{report.parallel} · {report.preset} · {report.scaling} scaling · {report.device} · "
        f"{report.threads_per_process} thread(s) per process",
        ">processes", ">tokens/step", ">step (ms)", ">tokens/s", ">speed-up", ">efficiency", "<mesh",
    )  # fmt: skip
    for row in report.rows:
        _row(
            table,
            writer,
            str(row.processes),
            str(row.tokens_per_step),
            f"{row.step_ns / 1e6:.2f}",
            f"{row.tokens_per_s:.0f}",
            f"{row.speedup:.2f}",
            f"{row.efficiency:.0%}",
            row.mesh,
        )
    writer.show(table)
    if report.note:
        writer.line(f"Note: {report.note}.", hang=2)


def _print_machine(report: BenchTopology, writer: Writer) -> None:
    if report.numa:
        table = _table(writer, "NUMA nodes", "<node", "<CPUs", "<distance to each node")
        for node in report.numa:
            _row(table, writer, str(node.node), node.cpus, " ".join(map(str, node.distances)))
        writer.show(table)
    if report.pci_gpus:
        table = _table(writer, "GPUs on the PCI bus", "<bus id", "<vendor", "<NUMA", "<link now", "<link at best")
        for gpu in report.pci_gpus:
            _row(table, writer, gpu.bus_id, gpu.vendor, _or_unknown(gpu.numa), _link(gpu.link), _link(gpu.best))
        writer.show(table)
    if report.ports:
        table = _table(writer, "Network ports", "<port", "<NUMA", "<link", ">peak (GB/s)", ">usable (GB/s)")
        for port in report.ports:
            peak, usable = (port.link.peak, port.link.usable) if port.link else (None, None)
            name = port.link.name if port.link else "rate unknown"
            _row(table, writer, port.name, _or_unknown(port.numa), name, _gbps(peak), _gbps(usable))
        writer.show(table)


def _or_unknown(value: int | None) -> str:
    return "?" if value is None else str(value)


def _link(link: Link | None) -> str:
    return f"{link.name} ×{link.units}" if link else "?"

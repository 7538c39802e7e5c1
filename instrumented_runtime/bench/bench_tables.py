"""The bench reports as tables, for people; `--json` is for programs."""

from __future__ import annotations

from rich.console import Console

from gpuscope.hardware.link_rates import Link
from gpuscope.instrumented_runtime.bench.topology_links import format_size
from gpuscope.report.terminal.screen import Writer
from gpuscope.schema.bench_documents import BenchCollectives, BenchScaling, BenchTopology, BenchTransfers
from gpuscope.words import units


def _gbps(value: float | None) -> str:
    return "?" if value is None else f"{value:.3f}" if value < 10 else f"{value:.1f}"


def _of_peak(value: float | None, peak: float | None) -> str:
    return f"{units.whole_share(value / peak)}" if value is not None and peak else ""


def print_collectives(report: BenchCollectives, console: Console, link: Link | None) -> None:
    """Time, algbw and busbw per operation and size; beside a link's peak where one was named."""
    writer = Writer(console)
    columns = [">size", ">count", ">time (µs)", ">algbw (GB/s)", ">busbw (GB/s)"]
    columns += [f">of {link.name}"] if link else []
    title = f"{report.world_size} ranks · {report.backend} · {report.device} · torch {report.torch_version}"
    rows = []
    for row in report.rows:
        cells = [row.op, format_size(row.nbytes), str(row.count), f"{row.time_ns / 1000:.1f}"]
        cells += [_gbps(row.algbw_gbps), _gbps(row.busbw_gbps)]
        cells += [_of_peak(row.busbw_gbps, link.peak)] if link else []
        rows.append([*cells, "n/a" if row.wrong is None else str(row.wrong)])
    writer.line(title)
    writer.rows(("<operation", *columns, ">wrong"), rows)


def print_transfers(report: BenchTransfers, console: Console) -> None:
    """Bandwidth per kind of copy; states first if only host memory could be measured."""
    writer = Writer(console)
    if report.note:
        writer.line(f"Note: {report.note}.")
    rows = [
        (
            row.kind,
            row.source,
            row.target,
            format_size(row.nbytes),
            f"{row.time_ns / 1000:.1f}",
            _gbps(row.bandwidth_gbps),
            _gbps(row.traffic_gbps),
            _of_peak(row.bandwidth_gbps, row.peak_gbps),
            writer.words(row.note),
        )
        for row in report.rows
    ]
    writer.line(f"{', '.join(report.devices) or 'cpu'} · torch {report.torch_version}")
    rates = (">copied (GB/s)", ">memory traffic (GB/s)", ">of link's peak")
    writer.rows(("<copy", "<from", "<to", ">size", ">time (µs)", *rates, "~note"), rows)


def print_topology(report: BenchTopology, console: Console) -> None:
    """Pairs of GPUs with what their link should give, then NUMA nodes, GPUs on the bus and network ports."""
    writer = Writer(console)
    if report.pairs:
        writer.line("What each pair's link should give, per direction (data sheets, not measured)")
        rows = [
            (
                f"{pair.a} {pair.b}",
                pair.path,
                pair.link,
                _gbps(pair.peak_gbps),
                _gbps(pair.usable_gbps),
                writer.words(pair.note),
            )
            for pair in report.pairs
        ]
        writer.rows(("<pair", "<path", "<link", ">peak (GB/s)", ">usable (GB/s)", "~note"), rows)
    _print_machine(report, writer)
    for note in report.notes:
        writer.line(f"Note: {note}.", hang=2)


def print_scaling(report: BenchScaling, console: Console) -> None:
    """Throughput, speed-up and efficiency per number of processes."""
    writer = Writer(console)
    rows = [
        (
            str(row.processes),
            str(row.tokens_per_step),
            f"{row.step_ns / 1e6:.2f}",
            f"{row.tokens_per_s:.0f}",
            f"{row.speedup:.2f}",
            f"{units.whole_share(row.efficiency)}",
            row.mesh,
        )
        for row in report.rows
    ]
    writer.line(
        f"{report.parallel} · {report.preset} · {report.scaling} scaling · {report.device} · "
        f"{report.threads_per_process} thread(s) per process"
    )
    titles = (">processes", ">tokens/step", ">step (ms)", ">tokens/s", ">speed-up", ">efficiency", "<mesh")
    writer.rows(titles, rows)
    if report.note:
        writer.line(f"Note: {report.note}.", hang=2)


def _print_machine(report: BenchTopology, writer: Writer) -> None:
    if report.numa:
        writer.line("NUMA nodes")
        nodes = [(str(one.node), one.cpus, " ".join(map(str, one.distances))) for one in report.numa]
        writer.rows(("<node", "<CPUs", "<distance to each node"), nodes)
    if report.pci_gpus:
        writer.line("GPUs on the PCI bus")
        gpus = [
            (gpu.bus_id, gpu.vendor, _or_unknown(gpu.numa), _link(gpu.link), _link(gpu.best)) for gpu in report.pci_gpus
        ]
        writer.rows(("<bus id", "<vendor", "<NUMA", "<link now", "<link at best"), gpus)
    if report.ports:
        writer.line("Network ports")
        ports = []
        for port in report.ports:
            peak, usable = (port.link.peak, port.link.usable) if port.link else (None, None)
            name = port.link.name if port.link else "rate unknown"
            ports.append((port.name, _or_unknown(port.numa), name, _gbps(peak), _gbps(usable)))
        writer.rows(("<port", "<NUMA", "<link", ">peak (GB/s)", ">usable (GB/s)"), ports)


def _or_unknown(value: int | None) -> str:
    return "?" if value is None else str(value)


def _link(link: Link | None) -> str:
    return f"{link.name} ×{link.units}" if link else "?"

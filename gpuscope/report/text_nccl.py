"""The sections `bandwidth`, `nccl` and `topology` in the terminal."""

from __future__ import annotations

from collections.abc import Sequence

from gpuscope.report import units
from gpuscope.report.nccl_schema import BandwidthEntry, ChoiceEntry, Nccl, TopologyEntry
from gpuscope.report.schema import Report
from gpuscope.report.terminal import Writer

ROWS_SHOWN = 40
AVERAGES_SHOWN = 3


def sections(report: Report, writer: Writer) -> None:
    """Whichever of them the report has."""
    if "nccl" in report:
        _nccl(report["nccl"], writer)
    if "bandwidth" in report:
        _bandwidth(report["bandwidth"], writer)
    if "topology" in report:
        _topology(report["topology"], writer)


def _nccl(nccl: Nccl, writer: Writer) -> None:
    writer.heading("NCCL")
    if nccl["versions"]:
        writer.line(f"version {', '.join(nccl['versions'])}")
    for entry in nccl["communicators"]:
        told = [units.plural(entry["size"], "rank")]
        told += [units.plural(entry["nodes"], "node")] if entry["nodes"] else []
        told += [f"{entry['channels']} channels"] if entry["channels"] is not None else []
        told += [f"{entry['p2p_channels']} for send and receive"] if entry["p2p_channels"] is not None else []
        told += [f"{entry['rings']} rings"] if entry["rings"] else []
        told += [f"{entry['trees']} trees"] if entry["trees"] else []
        writer.line(f"{units.plural(entry['count'], 'communicator')}: {', '.join(told)}", hang=2)
    for transport in nccl["transports"]:
        where = {True: " on one host", False: " between hosts", None: ""}[transport["same_node"]]
        writer.line(
            f"{transport['transport']}: {units.plural(transport['connections'], 'connection')} between "
            f"{units.plural(transport['pairs'], 'pair')} of ranks{where}",
            hang=2,
        )
    if nccl["average_busbw_gbps"]:
        shown = ", ".join(f"{value:g}" for value in nccl["average_busbw_gbps"][:AVERAGES_SHOWN])
        more = ", …" if len(nccl["average_busbw_gbps"]) > AVERAGES_SHOWN else ""
        writer.line(f"nccl-tests' own average bus bandwidth: {shown}{more} GB/s")
    _choices(nccl["choices"], writer)


def _choices(choices: Sequence[ChoiceEntry], writer: Writer) -> None:
    if not choices:
        return
    table = writer.table("<operation", ">bytes", "<algorithm", "<protocol", ">channels", ">devices", ">count")
    for entry in choices[:ROWS_SHOWN]:
        cells = (
            units.size(entry["bytes"]),
            entry["algorithm"],
            entry["protocol"],
            _number(entry["channels"]),
            _number(entry["ranks"]),
            units.count(entry["count"]),
        )
        table.add_row(writer.text(entry["op"] or units.NONE), *(writer.text(cell) for cell in cells))
    writer.show(table)
    _more(len(choices), writer)


def _bandwidth(entries: Sequence[BandwidthEntry], writer: Writer) -> None:
    tools = sorted({entry["tool"] for entry in entries})
    writer.heading(f"Bandwidth measured by {', '.join(tools)}")
    table = writer.table("<operation", ">ranks", ">bytes", ">count", ">time", ">algbw", ">busbw", "~")
    for entry in entries[:ROWS_SHOWN]:
        cells = (
            str(entry["group_size"]),
            units.size(entry["bytes"]),
            units.count(entry["count"]),
            units.duration(entry["dur_ns"]),
            units.bandwidth(entry["algbw_gbps"]),
            units.bandwidth(entry["busbw_gbps"]),
        )
        words = (entry["tool"] if len(tools) > 1 else "", entry["variant"] or "")
        by = " ".join(word for word in words if word)
        table.add_row(writer.text(entry["op"]), *(writer.text(cell) for cell in cells), writer.cell(by))
    writer.show(table)
    _more(len(entries), writer)


def _topology(entries: Sequence[TopologyEntry], writer: Writer) -> None:
    writer.heading("Links of the host")
    table = writer.table("~from", "~to", "<link", ">width", ">rate")
    for entry in entries[:ROWS_SHOWN]:
        table.add_row(
            writer.cell(entry["node"]),
            writer.cell(entry["peer"]),
            writer.text(entry["link"]),
            writer.text(_number(entry["width"])),
            writer.text(units.bandwidth(entry["rate_gbps"])),
        )
    writer.show(table)
    _more(len(entries), writer)


def _number(value: int | None) -> str:
    return units.NONE if value is None else str(value)


def _more(rows: int, writer: Writer) -> None:
    if rows > ROWS_SHOWN:
        writer.line(writer.text(f"and {units.count(rows - ROWS_SHOWN)} more (--json)", "dim"))

"""Bus bandwidth, waiting, traffic between ranks, and NCCL's choices."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, cast

from dash.development.base_component import Component

from gpuscope.dashboards import ui
from gpuscope.dashboards.figures import gains_figure, of_results
from gpuscope.dashboards.ui import Page, Shown
from gpuscope.schema.nccl_sections import BandwidthEntry, FitEntry, Nccl, TopologyEntry, TrafficEntry
from gpuscope.words import units

SECTIONS = ("collectives", "bandwidth", "traffic", "nccl", "topology")
BARS = 20
"""Operations drawn, longest first; the table has all."""


def layout(shown: Shown) -> Component:
    """The page."""
    return ui.page(*_bandwidth(shown), _waiting(shown), _traffic(shown), _nccl(shown), *_topology(shown))


def _section(shown: Shown, key: str) -> Any:
    return cast("dict[str, Any]", shown.run.report).get(key)


def _bandwidth(shown: Shown) -> Iterator[Component]:
    rows: list[BandwidthEntry] = _section(shown, "bandwidth") or []
    fits: list[FitEntry] = _section(shown, "fits") or []
    if not any(row["busbw_gbps"] for row in rows):
        yield ui.empty(
            "No bus bandwidth to draw",
            "Sizes of messages are not recorded: torch 2.4 and later write them into its traces, nsys exports NCCL's "
            "with --include-blobs=true; `gpuscope bench collectives` measures them.",
        )
        return
    yield ui.card(
        "Bus bandwidth against message size",
        ui.figure(gains_figure.against_size(rows, fits, shown.dark), "bandwidth", 380),
        *_fits(fits, shown.dark),
        note="Points: measured (open: at least that, since the time holds waiting). "
        "Dashed, where there is one: the fit T(S) = α + S·factor/B. Dotted: the link's peak.",
        corner=ui.csv_link(shown.run.key, "bandwidth"),
    )


def _fits(fits: list[FitEntry], dark: bool) -> Iterator[Component]:
    """What was fitted as a table, and a sentence for each series that was not."""
    fitted = [fit for fit in fits if fit["alpha_ns"] is not None or fit["busbw_gbps"] is not None]
    if fitted:
        yield _fit_table(fitted, dark)
    missing = [fit for fit in fits if fit not in fitted]
    if missing:
        names = (f"{fit['op']} · {fit['group']}" if fit["group"] else fit["op"] for fit in missing)
        yield ui.sentences([f"{name}: {fit['why']}" for name, fit in zip(names, missing, strict=True)])


def _fit_table(fits: list[FitEntry], dark: bool) -> Component:
    rows = [
        {
            "op": fit["op"],
            "group": units.clean(fit["group"] or ""),
            "sizes": fit["sizes"],
            "alpha": fit["alpha_ns"],
            "alpha_text": _with_error(units.duration(fit["alpha_ns"]), units.duration(fit["alpha_error_ns"])),
            "busbw": fit["busbw_gbps"],
            "busbw_text": _with_error(units.bandwidth(fit["busbw_gbps"]), units.bandwidth(fit["busbw_error_gbps"])),
        }
        for fit in fits
    ]
    columns = [
        ui.column("op", "operation"),
        ui.column("group", "group"),
        ui.column("sizes", "distinct sizes", type="rightAligned"),
        ui.number("alpha", "α, fixed cost", "alpha_text"),
        ui.number("busbw", "B, busbw without it", "busbw_text"),
    ]
    return ui.grid(rows, columns, "fits", dark)


def _with_error(value: str, error: str) -> str:
    return value if units.NONE in (value, error) else f"{value} ± {error}"


def _waiting(shown: Shown) -> Component:
    rows = sorted(shown.run.report["collectives"], key=lambda row: -row["dur_ns"])
    if not rows:
        return ui.empty(
            "No collectives", "This run recorded none: a single rank, or communication that was not captured."
        )
    drawn = rows[:BARS]
    note = "Sums over instances and ranks of the whole run."
    if len(rows) > BARS:
        note += f" The {BARS} longest of {len(rows)}; the CSV has all."
    return ui.card(
        "Waiting and transferring",
        ui.figure(of_results.bars(drawn, shown.dark), "waiting", 110 + 30 * len(drawn)),
        note=note,
        corner=ui.csv_link(shown.run.key, "collectives"),
    )


def _traffic(shown: Shown) -> Component:
    rows: list[TrafficEntry] = _section(shown, "traffic") or []
    rows = [row for row in rows if shown.view.has_rank(row["rank"]) or shown.view.has_rank(row["peer"])]
    if not rows:
        return ui.empty(
            "No point-to-point traffic",
            "No sends and receives with known peers in this run (pipeline parallelism has them).",
        )
    count = len({rank for row in rows for rank in (row["rank"], row["peer"])})
    return ui.card(
        "Point-to-point traffic",
        ui.figure(of_results.matrix(rows, shown.dark), "traffic", min(200 + 24 * count, 720)),
        corner=ui.csv_link(shown.run.key, "traffic"),
    )


def _nccl(shown: Shown) -> Component:
    nccl: Nccl | None = _section(shown, "nccl")
    if nccl is None:
        return ui.empty(
            "No NCCL log",
            "Record with NCCL_DEBUG=INFO and NCCL_DEBUG_SUBSYS=INIT,GRAPH,TUNING,ENV (gpuscope record does) and "
            "open the log with the traces: it records algorithm, protocol, channels and transports.",
        )
    pairs: list[tuple[str, Any]] = [("version", ", ".join(nccl["versions"]) or units.NONE)]
    pairs += [
        (
            f"{one['count']} × {one['size']} ranks",
            f"{units.count(one['channels'])} channels, {units.count(one['rings'])} rings, "
            f"{units.count(one['trees'])} trees",
        )
        for one in nccl["communicators"]
    ]
    pairs += [
        (one["transport"], f"{units.plural(one['pairs'], 'pair')}{_where(one['same_node'])}")
        for one in nccl["transports"]
    ]
    pairs += [(one["name"], one["value"]) for one in nccl["environment"]]
    choices = [
        {
            "op": one["op"] or "",
            "bytes": one["bytes"],
            "size": units.memory(one["bytes"]),
            "algorithm": one["algorithm"],
            "protocol": one["protocol"],
            "channels": one["channels"],
            "count": one["count"],
        }
        for one in nccl["choices"]
    ]
    columns = [
        ui.column("op", "operation"),
        ui.number("bytes", "size", "size"),
        ui.column("algorithm", "algorithm"),
        ui.column("protocol", "protocol"),
        ui.column("channels", "channels", type="rightAligned"),
        ui.column("count", "times", type="rightAligned"),
    ]
    body: list[Component] = [ui.facts(pairs)]
    if choices:
        body.append(ui.grid(choices, columns, "nccl-choices", shown.dark))
    return ui.card("What NCCL says", *body)


def _where(same_node: bool | None) -> str:
    return "" if same_node is None else ", within a host" if same_node else ", between hosts"


def _topology(shown: Shown) -> Iterator[Component]:
    rows: list[TopologyEntry] = _section(shown, "topology") or []
    if not rows:
        yield ui.empty(
            "The topology was not recorded",
            "Open the output of `nvidia-smi topo -m`, or the file of NCCL_TOPO_DUMP_FILE, with the traces "
            "(gpuscope record keeps it in the run folder).",
        )
    for source in dict.fromkeys(row["source"] for row in rows):
        own = [row for row in rows if row["source"] == source]
        yield ui.card(
            "Topology",
            ui.figure(of_results.topology(own, shown.dark), "topology", 460),
            note=units.clean(source),
            corner=ui.csv_link(shown.run.key, "topology"),
        )


PAGE = Page(
    "/communication",
    "Communication",
    4,
    layout,
    has=lambda run: any(cast("dict[str, Any]", run.report).get(key) for key in SECTIONS),
)

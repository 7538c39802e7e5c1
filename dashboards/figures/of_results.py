"""The dashboard's figures for notebooks: `gpuscope.figures`. Each takes an `Analysis` or a `Comparison`.

Every figure is a plotly `Figure`; needs the extra `dashboard`. `dark` is for notebooks with a dark theme. A figure
of a section that the run has not raises `UsageError` with the reason.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import cos, pi, sin
from typing import TYPE_CHECKING, Any

from plotly import graph_objects as go

from gpuscope.analyzers.comparison.comparison import Comparison
from gpuscope.analyzers.run.analysis import Analysis
from gpuscope.dashboards.figures import gains_figure, heatmap_figure, steps_figure
from gpuscope.dashboards.figures.heatmap_figure import plain
from gpuscope.errors import UsageError
from gpuscope.report.section_tables import did_you_mean
from gpuscope.schema.document import CollectiveEntry
from gpuscope.schema.nccl_sections import TopologyEntry, TrafficEntry
from gpuscope.schema.provenance import ExpertPassEntry, PipelineComputation, PipelineRow
from gpuscope.words import units, vocabulary

# Traffic matrix, and a drawing of the links inside a host.

LINK_LOOKS = {
    "nvlink": (vocabulary.GREEN, "solid"),
    "nvswitch": (vocabulary.GREEN, "solid"),
    "pcie": (vocabulary.BLUE, "dot"),
    "net": (vocabulary.ORANGE, "dash"),
}
"""Colour and dash of each kind of link; paths of `topo -m` by what they cross."""


def matrix(rows: Sequence[TrafficEntry], dark: bool) -> go.Figure:
    """Sender × receiver: bytes where all sizes are known, else time."""
    ranks = sorted({rank for row in rows for rank in (row["rank"], row["peer"])})
    at = {rank: place for place, rank in enumerate(ranks)}
    sized = all(row["bytes"] is not None for row in rows)
    values: list[list[int | None]] = [[None] * len(ranks) for _ in ranks]
    texts = [[""] * len(ranks) for _ in ranks]
    for row in rows:
        y, x = at[row["rank"]], at[row["peer"]]
        values[y][x] = row["bytes"] if sized else row["dur_ns"]
        texts[y][x] = (
            f"rank {row['rank']} to rank {row['peer']}: {_bytes(row)}, {row['count']} messages, "
            f"{units.duration(row['dur_ns'])}"
        )
    names = [str(rank) for rank in ranks]
    fig = go.Figure(
        go.Heatmap(
            z=values,
            x=names,
            y=names,
            text=texts,
            hovertemplate="%{text}<extra></extra>",
            colorscale=heatmap_figure.SEQUENTIAL,
            zmin=0,
            xgap=1,
            ygap=1,
            colorbar={"title": "bytes" if sized else "ns", "tickformat": ".3s"},
        )
    )
    fig.update_layout(template=heatmap_figure.template(dark), margin_t=40)  # room for the buttons
    fig.update_xaxes(title="receiving rank", type="category", showgrid=False)
    fig.update_yaxes(title="sending rank", type="category", autorange="reversed", showgrid=False)
    return fig


def _bytes(row: TrafficEntry) -> str:
    return "size not recorded" if row["bytes"] is None else units.memory(row["bytes"])


def topology(rows: Sequence[TopologyEntry], dark: bool) -> go.Figure:
    """The devices of one host on a circle and the links between them."""
    nodes = sorted({node for row in rows for node in (row["node"], row["peer"])})
    place = {node: (cos(2 * pi * i / len(nodes)), sin(2 * pi * i / len(nodes))) for i, node in enumerate(nodes)}
    fig = go.Figure()
    for link in sorted({row["link"] for row in rows}):
        own = [row for row in rows if row["link"] == link]
        colour, dash = look(link)
        x: list[float | None] = []
        y: list[float | None] = []
        for row in own:
            (ax, ay), (bx, by) = place[row["node"]], place[row["peer"]]
            x += [ax, bx, None]
            y += [ay, by, None]
        fig.add_scatter(
            x=x,
            y=y,
            mode="lines",
            name=plain(link),
            line={"color": colour, "dash": dash, "width": 1.5},
            hoverinfo="skip",
        )
        middle = [
            ((place[r["node"]][0] + place[r["peer"]][0]) / 2, (place[r["node"]][1] + place[r["peer"]][1]) / 2)
            for r in own
        ]
        fig.add_scatter(
            x=[at[0] for at in middle],
            y=[at[1] for at in middle],
            mode="markers",
            showlegend=False,
            marker={"size": 10, "color": "rgba(0,0,0,0)"},
            text=[_link(row) for row in own],
            hovertemplate="%{text}<extra></extra>",
        )
    fig.add_scatter(
        x=[place[node][0] for node in nodes],
        y=[place[node][1] for node in nodes],
        mode="markers+text",
        text=[plain(units.crop(node, 20)) for node in nodes],
        textposition=[_anchor(place[node]) for node in nodes],
        marker={"size": 16, "color": [vocabulary.SKY if "GPU" in node.upper() else vocabulary.GREY for node in nodes]},
        showlegend=False,
        hoverinfo="skip",
    )
    fig.update_layout(template=heatmap_figure.template(dark))
    fig.update_xaxes(visible=False, range=[-1.6, 1.6])
    fig.update_yaxes(visible=False, range=[-1.25, 1.25])
    return fig


def look(link: str) -> tuple[str, str]:
    """Colour and dash of a link, or of a path of `nvidia-smi topo -m` (NV12, PIX, PXB, PHB, NODE, SYS)."""
    if link in LINK_LOOKS:
        return LINK_LOOKS[link]
    if link.startswith("NV"):
        return LINK_LOOKS["nvlink"]
    if link in ("PIX", "PXB"):
        return LINK_LOOKS["pcie"]
    return vocabulary.GREY, "dot"


def _link(row: TopologyEntry) -> str:
    width = f" ×{row['width']}" if row["width"] else ""
    rate = f", {units.bandwidth(row['rate_gbps'])} per direction" if row["rate_gbps"] else ""
    return plain(f"{row['node']} – {row['peer']}: {row['link']}{width}{rate}")


def _anchor(at: tuple[float, float]) -> str:
    vertical = "top" if at[1] > 0.3 else "bottom" if at[1] < -0.3 else "middle"
    return f"{vertical} {'right' if at[0] > 0.05 else 'left' if at[0] < -0.05 else 'center'}"


# Wait and transfer time per operation and group.


def bars(rows: Sequence[CollectiveEntry], dark: bool) -> go.Figure:
    """One bar per operation and group: rank time spent waiting for the last rank, and the rest (transferring)."""
    labels = [plain(units.crop(f"{row['op']} · {row['group']}" if row["group"] else row["op"], 48)) for row in rows]
    waits = [row["wait_ns"] or 0 for row in rows]
    rest = [row["dur_ns"] - wait for row, wait in zip(rows, waits, strict=True)]
    size, unit = units.time_unit(max((row["dur_ns"] for row in rows), default=1))
    fig = go.Figure()
    known = [row["wait_ns"] is not None for row in rows]
    for name, values, colour, pattern in (
        (
            "transfer",
            [value if matched else 0 for value, matched in zip(rest, known, strict=True)],
            vocabulary.BLUE,
            "",
        ),
        ("wait for the last rank", waits, vocabulary.ORANGE, "/"),
        (
            "not matched: wait and transfer can't be separated",
            [0 if matched else value for value, matched in zip(rest, known, strict=True)],
            vocabulary.GREY,
            ".",
        ),
    ):
        if any(values):
            fig.add_bar(
                orientation="h",
                y=labels,
                x=[value / size for value in values],
                name=name,
                marker_color=colour,
                marker_pattern={"shape": pattern, "size": 5, "fgopacity": 0.6, "fillmode": "overlay"},
                text=[units.duration(value) for value in values],
                textposition="none",
                hovertemplate="%{y}<br>" + name + ": %{text}<extra></extra>",
            )
    fig.update_layout(
        template=heatmap_figure.template(dark),
        barmode="stack",
        bargap=0.25,
        legend_traceorder="normal",
        showlegend=True,
    )
    fig.update_xaxes(title=f"time over all ranks ({unit})")
    fig.update_yaxes(autorange="reversed", type="category")
    return fig


# Stages × time: what each pipeline stage computes when, and its bubbles.

LOOKS = {"forward": (vocabulary.BLUE, ""), "backward": (vocabulary.ORANGE, ""), "weight": (vocabulary.GREEN, "/")}
NAMES = {"forward": "forward", "backward": "backward", "weight": "weight gradient"}
PARTS = (
    ("warm_up", "warm-up", vocabulary.SKY, ""),
    ("steady", "steady", vocabulary.YELLOW, ""),
    ("drain", "drain", vocabulary.PURPLE, ""),
    ("imbalance", "imbalance", vocabulary.VERMILLION, "/"),
)
MOST_NUMBERS = 400
"""Bars labelled with the micro-batch's number; beyond this it would be unreadable."""


def schedule(
    computations: Sequence[PipelineComputation], span_ns: int, dark: bool, leads_to: Sequence[str] = ()
) -> go.Figure:
    """One row per stage; gaps within the pipeline's span are bubble. `span_ns` puts both figures on one scale.

    `leads_to` gives the address that each computation leads to.
    """
    places = {id(one): place for one, place in zip(computations, leads_to, strict=False)}
    fig = go.Figure()
    first = min((one["start_ns"] for one in computations), default=0)
    size, unit = units.time_unit(span_ns)
    numbered = len(computations) <= MOST_NUMBERS
    for kind, (colour, pattern) in LOOKS.items():
        own = [one for one in computations if one["kind"] == kind]
        if not own:
            continue
        fig.add_bar(
            orientation="h",
            y=[f"stage {one['stage']}" for one in own],
            name=NAMES[kind],
            base=[(one["start_ns"] - first) / size for one in own],
            x=[one["dur_ns"] / size for one in own],
            marker={
                "color": colour,
                "line": {"width": 0.5, "color": "white"},
                "pattern": {"shape": pattern, "size": 5, "fgopacity": 0.6, "fillmode": "overlay"},
            },
            text=[str(one["micro_batch"]) if numbered else "" for one in own],
            textposition="inside",
            insidetextanchor="middle",
            hovertext=[_hover(one) for one in own],
            customdata=[places.get(id(one), "") for one in own],
            hovertemplate="%{hovertext}<extra></extra>",
        )
    fig.update_layout(template=heatmap_figure.template(dark), barmode="overlay", bargap=0.15)
    fig.update_xaxes(title=f"time since the first computation ({unit})", range=[0, span_ns / size])
    stages = sorted({one["stage"] for one in computations})
    fig.update_yaxes(autorange="reversed", categoryorder="array", categoryarray=[f"stage {stage}" for stage in stages])
    return fig


def _hover(one: PipelineComputation) -> str:
    chunk = f", model chunk {one['model_chunk']}" if one["model_chunk"] else ""
    return (
        f"{NAMES[one['kind']]} of micro-batch {one['micro_batch']}{chunk}<br>rank {one['rank']}, "
        f"{units.duration(one['dur_ns'])}"
    )


def bubbles(rows: Sequence[PipelineRow], dark: bool) -> go.Figure:
    """Mean bubble of each stage by part, as a share of the pipeline's part of the step."""
    stages = sorted({row["stage"] for row in rows})
    labels = [f"stage {stage}" for stage in stages]
    fig = go.Figure()
    for key, name, colour, pattern in PARTS:
        spent = [sum(_part(row, key) for row in rows if row["stage"] == stage) for stage in stages]
        spans = [sum(row["dur_ns"] for row in rows if row["stage"] == stage) for stage in stages]
        if not any(spent):
            continue
        shares = [value / span if span else 0.0 for value, span in zip(spent, spans, strict=True)]
        fig.add_bar(
            orientation="h",
            y=labels,
            x=[100 * share for share in shares],
            name=name,
            marker_color=colour,
            marker_pattern={"shape": pattern, "size": 5, "fgopacity": 0.6, "fillmode": "overlay"},
            text=[units.share(one) for one in shares],
            textposition="none",
            hovertemplate="%{y}<br>" + name + ": %{text}<extra></extra>",
        )
    fig.update_layout(template=heatmap_figure.template(dark), barmode="stack", bargap=0.25, legend_traceorder="normal")
    fig.update_xaxes(title="share of the pipeline's part of the step", ticksuffix=" %", rangemode="tozero")
    fig.update_yaxes(autorange="reversed")
    return fig


def _part(row: PipelineRow, key: str) -> int:
    parts: dict[str, int] = dict(row["bubble_ns"])  # type: ignore[arg-type]
    return parts[key]


# What each rank's experts receive, pass by pass.

WRITTEN = 24
"""Passes up to which loads are written into the cells."""


def loads(passes: Sequence[ExpertPassEntry], dark: bool) -> go.Figure:
    """Rank × pass: bytes received, times the mean."""
    ranks = sorted({rank for one in passes for rank in one["ranks"]})
    of = [dict(zip(one["ranks"], one["loads"], strict=True)) for one in passes]
    values = [[own.get(rank) for own in of] for rank in ranks]
    most = max([2.0, *(value for row in values for value in row if value is not None)])
    fig = go.Figure(
        go.Heatmap(
            x=[str(one["number"]) for one in passes],
            y=[str(rank) for rank in ranks],
            z=values,
            zmin=0.0,
            zmax=most,
            colorscale=tuple(zip((0.0, 1 / most, 1.0), heatmap_figure.AROUND[dark], strict=True)),
            xgap=1,
            ygap=1 if len(ranks) <= 64 else 0,
            textfont_color=heatmap_figure.ON_CELLS[dark],
            texttemplate="%{z:.2f}" if len(passes) <= WRITTEN else None,
            colorbar={"title": "times the mean", "nticks": 4},
            customdata=[[units.memory(one["bytes"]) for one in passes]] * len(ranks),
            hovertemplate="rank %{y}, pass %{x}: %{z:.2f} times the mean of %{customdata}<extra></extra>",
        )
    )
    fig.update_layout(template=heatmap_figure.template(dark))
    fig.update_xaxes(title="pass through a layer of experts, in the order of a step", type="category", showgrid=False)
    fig.update_yaxes(title="rank", type="category", autorange="reversed", showgrid=False)
    return fig


__all__ = [
    "bandwidth",
    "breakdown",
    "changed",
    "gains",
    "kernels",
    "memory",
    "pipeline",
    "rank_steps",
    "steps",
    "traffic",
    "waiting",
]
_ROW, _FRAME, _MOST = 34, 150, 900


if not TYPE_CHECKING:  # to type checkers it would make every misspelt name one of ours

    def __getattr__(name: str) -> Any:
        raise AttributeError(f"'gpuscope.figures' has no attribute {name!r}{did_you_mean(name, __all__)}")


def __dir__() -> list[str]:
    return sorted(__all__)


def breakdown(analysis: Analysis, *, dark: bool = False) -> go.Figure:
    """Where each rank's window goes: compute, exposed communication, exposed memory, idle by cause."""
    ranks = analysis.report["ranks"]
    _some(ranks, "no work of any rank was recorded")
    return _high(steps_figure.bars(ranks, dark), len(ranks))


def steps(analysis: Analysis, *, dark: bool = False) -> go.Figure:
    """The length of each step, a line per rank."""
    _some(analysis.report["steps"], "no steps were found")
    return steps_figure.series(analysis.report["steps"], dark)


def rank_steps(analysis: Analysis, *, measure: str = "step_ns", dark: bool = False) -> go.Figure:
    """Rank by step: `step_ns`, coloured by what is off the step's median, `wait_caused_ns` or `wait_suffered_ns`.

    Raises `UsageError` for another measure too.
    """
    rows = analysis.report["rank_steps"]
    _some(rows, "no collective is matched over the ranks")
    if measure not in ("step_ns", "wait_caused_ns", "wait_suffered_ns"):
        raise UsageError(f"no measure {measure!r}", hint="step_ns, wait_caused_ns or wait_suffered_ns")
    cells = {(row["rank"], row["step"]): int(row[measure]) for row in rows}  # type: ignore[literal-required]
    fig = heatmap_figure.heatmap(cells, measure.removesuffix("_ns").replace("_", " "), dark, measure == "step_ns")
    return _high(fig, len({rank for rank, _ in cells}))


def waiting(analysis: Analysis, *, dark: bool = False) -> go.Figure:
    """Per operation and group: rank time spent waiting for the last rank, and transferring."""
    rows = analysis.report["collectives"]
    _some(rows, "no collectives were recorded")
    return _high(bars(rows, dark), len(rows))


def kernels(analysis: Analysis, *, dark: bool = False) -> go.Figure:
    """Device time by kind of kernel."""
    _some(analysis.report["kernels"], "no device events were recorded")
    return gains_figure.categories(analysis.report["kernels"], dark)


def gains(analysis: Analysis, *, dark: bool = False) -> go.Figure:
    """The recorded step, and what each suggestion would make of it, with the 90 % range."""
    found = analysis.report["suggestions"]
    _some(found, analysis.report["advice"]["why"] or "no suggestions")
    drawn = [
        gains_figure.Step(
            one["action"], one["predicted"]["step_ns_after"], one["predicted"]["low_ns"], one["predicted"]["high_ns"]
        )
        for one in found
    ]
    return _high(gains_figure.steps(found[0]["predicted"]["step_ns_before"], drawn, dark), len(drawn) + 1)


def bandwidth(analysis: Analysis, *, dark: bool = False) -> go.Figure:
    """Bus bandwidth against message size, with the fits and the links' peaks."""
    rows = analysis.report.get("bandwidth", [])
    _some(rows, "no sizes of collectives were recorded")
    return gains_figure.against_size(rows, analysis.report.get("fits", []), dark)


def traffic(analysis: Analysis, *, dark: bool = False) -> go.Figure:
    """Who sends how much to whom."""
    rows = analysis.report.get("traffic", [])
    _some(rows, "no messages between two ranks were recorded")
    return matrix(rows, dark)


def memory(analysis: Analysis, *, entry: int = 0, dark: bool = False) -> go.Figure:
    """Allocated and reserved memory over time, of one of `analysis.report["memory"]`."""
    entries = analysis.report.get("memory", [])
    _some(entries, "no allocator snapshot or memory events were read")
    if not 0 <= entry < len(entries):
        raise UsageError(f"entry={entry}: there are {len(entries)}", hint="they count from 0")
    return gains_figure.over_time(entries[entry], dark)


def pipeline(analysis: Analysis, *, dark: bool = False) -> go.Figure:
    """The mean bubble of each pipeline stage by part."""
    section = analysis.report.get("pipeline")
    rows = section.get("rows", []) if section is not None else []
    _some(rows, "the run is no pipeline")
    return bubbles(rows, dark)


def changed(comparison: Comparison, *, dark: bool = False) -> go.Figure:
    """The breakdown of both runs of `gpuscope.diff`, per step (or window) and rank."""
    return steps_figure.parts(comparison.document, dark)


def _some(rows: Iterable[object], why: str) -> None:
    if not list(rows):
        raise UsageError(f"nothing to draw: {why}")


def _high(fig: go.Figure, rows: int) -> go.Figure:
    """As high as its rows need."""
    fig.update_layout(height=min(_FRAME + _ROW * rows, _MOST))
    return fig

"""`python -m benchmarks.growth`: time and memory per event, from ten thousand events on, by format.

Whole processes of `gpuscope analyze`, cache off and advice on. The Kineto trace is a real one repeated, the others are
synthetic. `--save` keeps the table, `--picture` draws it, each row a point.
"""

from __future__ import annotations

import base64
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path

import click

from benchmarks.outcome import outcome
from benchmarks.waits.measured import cost_of
from benchmarks.waits.rows import GPUSCOPE, TRACE, WHOLE

COLUMNS = ("format", "events", "file MB", "wall s", "peak MB", "µs per event", "bytes per event")
EVENTS = (10_000, 100_000, 1_000_000, 10_000_000, 50_000_000, 100_000_000)
SIZE = (760, 380)


def _kineto(path: Path, events: int) -> None:
    from benchmarks.waits.enlarge import enlarge
    from benchmarks.waits.template import read_template

    template = read_template(TRACE)
    enlarge(template, path, template.size * max(1, round(events / template.events)))


def _nsys(path: Path, events: int) -> None:
    """Five events for each kernel: itself, three calls and a range of NVTX."""
    from benchmarks.waits.nsys_export import synthetic_export

    synthetic_export(path, events // 5, events // 5)


def _packets(path: Path, events: int) -> None:
    from benchmarks.waits.packets import synthetic_packets

    synthetic_packets(path, events)


FORMATS: dict[str, tuple[str, Callable[[Path, int], None]]] = {
    "Kineto JSON": (".json", _kineto),
    "nsys SQLite": (".sqlite", _nsys),
    "Perfetto trace": (".pftrace", _packets),
}


def empty_mb() -> float:
    """What a process holds that does nothing."""
    return cost_of([*GPUSCOPE, "--version"], {}).peak_mb


def measured(name: str, events: int, folder: Path, empty_mb: float) -> list[str]:
    """A row: what a file of so many events takes; memory per event is above an empty process's."""
    path = folder / f"rank0{FORMATS[name][0]}"
    # Made in a process of its own: a child's memory would count what this one ever held.
    made = f"from benchmarks.growth import *; FORMATS[{name!r}][1](Path({str(path)!r}), {events})"
    subprocess.run([sys.executable, "-c", made], check=True)
    size = path.stat().st_size / 1e6
    cost = cost_of([*GPUSCOPE, "analyze", str(path), *WHOLE], {})
    path.unlink()
    return [
        name,
        f"{events:,}",
        f"{size:,.0f}",
        f"{cost.wall_s:.2f}",
        f"{cost.peak_mb:,.0f}",
        f"{1e6 * cost.wall_s / events:.2f}",
        f"{1e6 * (cost.peak_mb - empty_mb) / events:.0f}",
    ]


def draw(rows: Sequence[Sequence[str]], target: Path) -> None:
    """Both figures over the events, on logarithmic axes. Raises `click.ClickException` without a Chromium."""
    from plotly.subplots import make_subplots

    from benchmarks.pictures import chromium

    figure = make_subplots(1, 2, subplot_titles=("µs per event", "bytes of memory per event"))
    for number, name in enumerate(FORMATS):
        own = [row for row in rows if row[0] == name]
        events = [int(row[1].replace(",", "")) for row in own]
        for column, place in ((1, 5), (2, 6)):
            figure.add_scatter(
                x=events,
                y=[float(row[place]) for row in own],
                name=name,
                mode="lines+markers",
                line={"color": ("#4477aa", "#228833", "#ee6677")[number]},
                showlegend=column == 1,
                row=1,
                col=column,
            )
    figure.update_xaxes(type="log", title="events", dtick=1, exponentformat="SI")
    figure.update_yaxes(type="log", dtick=1, exponentformat="SI")
    figure.update_layout(
        template="plotly_white",
        width=SIZE[0],
        height=SIZE[1],
        margin={"t": 40, "b": 70, "l": 50},
        legend={"orientation": "h", "y": -0.25},
    )
    driver = chromium(*SIZE)
    if driver is None:
        raise click.ClickException("no chromium and chromedriver on PATH")
    try:
        with tempfile.NamedTemporaryFile("w", suffix=".html") as page:
            figure.write_html(page.name, config={"displayModeBar": False})
            driver.get(f"file://{page.name}")
            clip = {"x": 8, "y": 8, "width": SIZE[0], "height": SIZE[1], "scale": 1}
            shown = {"clip": clip, "captureBeyondViewport": True}
            target.write_bytes(base64.b64decode(driver.execute_cdp_cmd("Page.captureScreenshot", shown)["data"]))
    finally:
        driver.quit()


@click.command()
@click.option("--most", default=10_000_000, show_default=True, help="Events of the largest file.")
@click.option("--format", "formats", multiple=True, type=click.Choice(list(FORMATS)), help="Only these.")
@click.option("--work", type=click.Path(file_okay=False, exists=True), help="Where files lie while they are read.")
@click.option("--save", type=click.Path(dir_okay=False, path_type=Path), help="Also write the table as TOML.")
@click.option("--picture", type=click.Path(dir_okay=False, path_type=Path), help="Also draw it, as PNG.")
def main(most: int, formats: Sequence[str], work: str | None, save: Path | None, picture: Path | None) -> None:
    """Print what files of growing size take."""
    rows = []
    empty = empty_mb()
    with tempfile.TemporaryDirectory(prefix="gpuscope-growth-", dir=work) as folder:
        for name in formats or FORMATS:
            for events in (one for one in EVENTS if one <= most):
                rows.append(measured(name, events, Path(folder), empty))
                click.echo(" | ".join(rows[-1]))
    if save is not None:
        head = f"# python -m benchmarks.growth --most {most}, {datetime.now(UTC).date()}, {os.cpu_count()} cores."
        save.write_text(outcome(head, COLUMNS, rows), encoding="utf-8")
    if picture is not None:
        draw(rows, picture)


if __name__ == "__main__":
    main()

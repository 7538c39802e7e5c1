"""`python -m benchmarks.ingest`: load and analyse larger and larger traces, beside HolisticTraceAnalysis."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from multiprocessing import get_context
from pathlib import Path

import click
from rich.console import Console
from rich.table import Table

from benchmarks.ingest.compare import GPUSCOPE, Costs, Task, compare
from benchmarks.ingest.enlarge import Enlarged, Shape, enlarge_file

SAMPLE = Path(__file__).parents[2] / "sample_traces" / "ddp_healthy" / "rank0.json.gz"
SHAPES: tuple[Shape, ...] = ("few", "many")
HTA_BACKENDS = ("json", "ijson_batch_and_compress")
"""HTA's default, and the fastest it offers."""
HTA = ("HolisticTraceAnalysis==0.5.0", "ijson>=3.3")

console = Console(width=None if sys.stdout.isatty() else 160)


@click.command()
@click.argument("source", type=click.Path(exists=True, dir_okay=False, path_type=Path), default=SAMPLE)
@click.option("--size", "sizes", type=int, multiple=True, default=(100, 500), help="MB of JSON to compare at.")
@click.option("--shape", "shapes", type=click.Choice(SHAPES), multiple=True, default=SHAPES, help="Steps of the trace.")
@click.option("--task", "tasks", type=click.Choice(["load", "analyze"]), multiple=True, default=("load", "analyze"))
@click.option("--rounds", default=5, show_default=True, help="How often each contender runs.")
@click.option("--gzip/--no-gzip", "zipped", default=True, help="Compare on .json.gz too.")
@click.option("--hta/--no-hta", default=True, help="Compare with HolisticTraceAnalysis.")
@click.option("--hta-backend", "backends", type=str, multiple=True, default=HTA_BACKENDS, help="HTA's JSON parsers.")
@click.option("--work", type=click.Path(file_okay=False, path_type=Path), help="Where the large traces go.")
def main(
    source: Path,
    sizes: Sequence[int],
    shapes: Sequence[Shape],
    tasks: Sequence[Task],
    rounds: int,
    zipped: bool,
    hta: bool,
    backends: Sequence[str],
    work: Path | None,
) -> None:
    """Measure gpuscope on SOURCE enlarged, by default a sample trace of this repository."""
    with _folder(work) as folder:
        tools, hta_python = [GPUSCOPE], _python_with_hta(folder / "hta") if hta else None
        if hta:
            tools += [f"hta:{backend}" for backend in backends]
        for size in sizes:
            for shape in shapes:
                for suffix in (".json", ".json.gz") if zipped else (".json",):
                    with _enlarged(source, folder, size, shape, suffix) as trace:
                        for task in tasks:
                            _show(trace, shape, task, compare(tools, task, trace.path, rounds, hta_python, source))


def _python_with_hta(folder: Path) -> Path:
    """The Python of an environment in `folder` that has HTA, made there on first use: its dependencies are not ours."""
    python = folder / "bin" / "python"
    if not python.exists():
        subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
        subprocess.run([str(python), "-m", "pip", "install", "--quiet", *HTA], check=True)
    return python


@contextmanager
def _folder(work: Path | None) -> Iterator[Path]:
    if work is not None:
        work.mkdir(parents=True, exist_ok=True)
        yield work
        return
    with tempfile.TemporaryDirectory(prefix="gpuscope-ingest-") as folder:
        yield Path(folder)


@contextmanager
def _enlarged(source: Path, folder: Path, size: int, shape: Shape, suffix: str) -> Iterator[Enlarged]:
    """A trace of `size` MB for as long as it is needed."""
    target = folder / f"{source.name.split('.')[0]}-{size}MB-{shape}{suffix}"
    # In a process of its own: this one stays small, and memory that it never had can't be mistaken for a child's.
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        trace = pool.submit(enlarge_file, source, target, size * 1_000_000, shape).result()
    try:
        yield trace
    finally:
        target.unlink()


def _show(trace: Enlarged, shape: Shape, task: Task, costs: Sequence[Costs]) -> None:
    """Medians over the rounds; the ratios are medians of each round's own."""
    zipped = "gzipped" if trace.path.suffix == ".gz" else "plain"
    title = (
        f"{task}: {trace.size / 1e6:.0f} MB of JSON, {zipped}; {trace.events:,} events in {trace.steps} steps ({shape})"
    )
    table = Table(title=title, title_justify="left")
    table.add_column("", no_wrap=True)
    call = ("wall s", "CPU s", "MB/s", "events/s", "peak MB", "wall ×", "CPU ×", "peak ×")
    for name in (*call, "process s", "process CPU s"):
        table.add_column(name, justify="right", no_wrap=True)
    own = costs[0]
    for cost in costs:
        if cost.failure:
            table.add_row(cost.tool, "failed")
            table.caption = f"{cost.tool}: {cost.failure}"
            continue
        wall = cost.of("wall_s")
        ratios = [f"{cost.ratio(own, name):.1f}" for name in ("wall_s", "cpu_s", "peak_bytes")]
        whole = [f"{cost.of(name):.2f} ({cost.ratio(own, name):.1f} ×)" for name in ("process_wall_s", "process_cpu_s")]
        table.add_row(
            cost.tool, f"{wall:.2f}", f"{cost.of('cpu_s'):.2f}", f"{trace.size / 1e6 / wall:.0f}",
            f"{trace.events / wall:,.0f}", f"{cost.of('peak_bytes') / 1e6:.0f}", *ratios, *whole,
        )  # fmt: skip
    console.print(table)


if __name__ == "__main__":
    sys.exit(main())

"""`python -m benchmarks.nsys`: an nsys SQLite export opened and analysed, beside mere reading of the same columns."""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import tempfile
import time
from contextlib import closing
from pathlib import Path

import click

from benchmarks.nsys.synthetic_export import synthetic_export

TASKS = ("columns", "open", "analyze")


@click.command()
@click.option("--kernels", default=1_000_000, show_default=True, help="Kernels; three runtime calls for each.")
@click.option("--rounds", default=3, show_default=True)
@click.option("--one", hidden=True, type=click.Choice(TASKS))
@click.option("--file", "path", hidden=True, type=click.Path(path_type=Path))
def main(kernels: int, rounds: int, one: str | None, path: Path | None) -> None:
    """Make an export, then run each task in a fresh process, in turn."""
    if one is not None and path is not None:
        click.echo(json.dumps(_cost(one, path)))
        return
    with tempfile.TemporaryDirectory(prefix="gpuscope-nsys-") as folder:
        path = synthetic_export(Path(folder) / "synthetic.sqlite", kernels)
        click.echo(f"{kernels:,} kernels, {3 * kernels:,} runtime calls, {path.stat().st_size / 1e6:,.0f} MB")
        for _ in range(rounds):
            for task in TASKS:
                command = [sys.executable, "-m", "benchmarks.nsys", "--one", task, "--file", str(path)]
                cost = json.loads(subprocess.run(command, capture_output=True, check=True).stdout)
                click.echo(f"{task:8} {cost['wall']:7.2f} s wall {cost['cpu']:7.2f} s CPU {cost['peak']:7.0f} MB peak")


def _cost(task: str, path: Path) -> dict[str, float]:
    import gpuscope
    from gpuscope.analyzers.frame.analyzer import FileAnalyzer, analyzers_of
    from gpuscope.sources.nsys.formats.export_tables import SqliteTables
    from gpuscope.sources.nsys.rows.event_tables import _COLUMNS
    from gpuscope.sources.source import all_sources

    all_sources()
    analyzers_of(FileAnalyzer)
    wall, cpu = time.perf_counter(), time.process_time()
    kept: object
    if task == "columns":
        with closing(SqliteTables(path)) as tables:
            kept = [tables.narrow_integers(table, columns) for table, columns in _COLUMNS.items()]
    else:
        kept = gpuscope.open_trace(path) if task == "open" else gpuscope.analyze(path, advice=False)
    cost = {"wall": time.perf_counter() - wall, "cpu": time.process_time() - cpu}
    del kept
    return {**cost, "peak": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3}


if __name__ == "__main__":
    main()

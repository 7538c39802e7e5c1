"""`python -m benchmarks.measured_layouts FILE`: sets of measured layouts of which the link is not told. It is fitted to
one set, and in each other the layout that the planner then prefers has a place by its measured step."""

from __future__ import annotations

import csv
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import click

from gpuscope.analyzers.planning.candidates import sizes
from gpuscope.analyzers.planning.cluster import cluster_of
from gpuscope.analyzers.planning.plan_memory import FULL, NO, Layout, Rates, with_link
from gpuscope.analyzers.planning.step_estimate import estimate
from gpuscope.analyzers.planning.transformer import model_named

LINKS = tuple(24.0 / 2**half for half in range(12))
"""GB/s per GPU that are tried, down from a port's usual."""
BATCH, SEQUENCE = 32, 1024
"""Not told either: as few as the layouts of the largest set divide."""


@dataclass(frozen=True)
class Measured:
    """A row: its set, layout and step."""

    group: str
    layout: Layout
    seconds: float


def measured(path: Path) -> list[Measured]:
    """The rows of a file of layouts of a Llama 3 8B on hosts of four A100."""
    lines = [line for line in path.read_text(encoding="utf-8").splitlines() if not line.startswith("#")]
    return [
        Measured(
            row["set"],
            Layout(
                int(row["dp"]),
                int(row["tp"]),
                int(row["pp"]),
                zero=1,
                micro_batch=int(row["micro_batch"]),
                recompute=FULL if row["recompute"] == "True" else NO,
            ),
            float(row["step_s"]),
        )
        for row in csv.DictReader(lines)
    ]


def estimated(row: Measured, link: float) -> float:
    """Seconds with so many GB/s between hosts; tensor parallelism over hosts is sent there too."""
    own, model = row.layout, model_named("llama-3-8b", SEQUENCE)
    cluster = with_link(cluster_of(f"{own.data * own.tensor * own.pipeline // 4}x4xA100"), link)
    return estimate(model, cluster, own, max(BATCH, own.data * own.micro_batch), Rates()).seconds


def fit(rows: Sequence[Measured]) -> float:
    """The link with which the ratios of a set's steps come nearest."""

    def spread(link: float) -> float:
        errors = [math.log(estimated(row, link) / row.seconds) for row in rows]
        mean = sum(errors) / len(errors)
        return math.fsum((error - mean) ** 2 for error in errors)

    return min(LINKS, key=spread)


def place(rows: Sequence[Measured], link: float) -> tuple[int, int]:
    """The preferred layout's place by its quickest measured step, and how many layouts there are."""
    quickest: dict[tuple[int, ...], float] = {}
    for row in rows:
        quickest[sizes(row.layout)] = min(quickest.get(sizes(row.layout), math.inf), row.seconds)
    chosen = quickest[sizes(min(rows, key=lambda row: estimated(row, link)).layout)]
    return sum(seconds < chosen for seconds in quickest.values()) + 1, len(quickest)


def table(path: Path) -> list[tuple[str, ...]]:
    """Fitted to, GB/s, tested on, place."""
    sets: dict[str, list[Measured]] = {}
    for row in measured(path):
        sets.setdefault(row.group, []).append(row)
    found: list[tuple[str, ...]] = []
    for name, rows in sets.items():
        link = fit(rows)
        for other, others in sets.items():
            if other != name:
                rank, of = place(others, link)
                found.append((name, f"{link:.2f}", other, f"{rank} of {of}"))
    return found


@click.command()
@click.argument("path", type=click.Path(exists=True, path_type=Path))
def main(path: Path) -> None:
    """Print one line for each pair of sets."""
    for row in table(path):
        click.echo("  ".join(row))


if __name__ == "__main__":
    main()

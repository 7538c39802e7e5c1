"""`python -m benchmarks.planner`: published layouts beside the planner's; with `--train`, predicted beside measured."""

from __future__ import annotations

import tempfile
from pathlib import Path

import click

from benchmarks.planner import campaign, published


def table(head: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    """A Markdown table."""
    lines = [head, ("---",) * len(head), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


@click.command()
@click.option("--train", is_flag=True, help="Train six layouts on this machine and predict five from the first.")
@click.option("--steps", default=10, show_default=True, help="Recorded steps of each.")
@click.option("--keep", type=click.Path(path_type=Path), help="A folder for the runs; those it has are used again.")
def main(train: bool, steps: int, keep: Path | None) -> None:
    """Print one table."""
    if not train:
        click.echo(table(published.HEAD, published.rows()))
        return
    with tempfile.TemporaryDirectory() as folder:
        rows = campaign.run(keep or Path(folder), steps)
    click.echo(table(("layout", "predicted", "range", "measured", "error", "in range"), rows))


main()

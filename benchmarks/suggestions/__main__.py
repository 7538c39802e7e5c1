"""`python -m benchmarks.suggestions`: what is suggested for each trace, by which rule, and what has changed since.

python -m benchmarks.suggestions --save before.json          # on the older revision
python -m benchmarks.suggestions --against before.json       # what has come, gone or changed since
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import click
from rich.console import Console
from rich.table import Table

from benchmarks.suggestions.collected import ROOT, SHARED, Row, collect

DEFAULT = (ROOT / "sample_traces", SHARED)

console = Console(width=None if sys.stdout.isatty() else 200)


@click.command()
@click.argument("paths", nargs=-1, type=click.Path(exists=True, path_type=Path))
@click.option("--save", type=click.Path(path_type=Path), help="Write the rows as JSON.")
@click.option("--against", type=click.Path(exists=True, path_type=Path), help="Rows of an earlier --save.")
@click.option("--markdown", is_flag=True, help="Tables for the documentation.")
def main(paths: Sequence[Path], save: Path | None, against: Path | None, markdown: bool) -> None:
    """Analyse every run under PATHS (the shared traces and the samples) and list its suggestions."""
    rows = [row for path in paths or [one for one in DEFAULT if one.is_dir()] for row in collect(path)]
    if save is not None:
        save.write_text(json.dumps([vars(row) for row in rows], indent=1) + "\n")
    before = [Row(**row) for row in json.loads(against.read_text())] if against is not None else []
    for table in (_suggestions(rows, before, against is not None), _by_rule(rows, before)):
        if markdown:
            click.echo(_markdown(table) + "\n")
        else:
            console.print(table)


def _suggestions(rows: Sequence[Row], before: Sequence[Row], compared: bool) -> Table:
    """One row per suggestion; with an earlier run also those that have gone."""
    table = Table("trace", "rule", "code", "finding", "setting", "step", *(["change"] if compared else []))
    known = {row.key: row for row in before}
    for row in rows:
        earlier = known.pop(row.key, None)
        change = "new" if earlier is None else "" if earlier.outcome == row.outcome else f"was {earlier.outcome}"
        table.add_row(*row.cells, *([change] if compared else []))
    for row in known.values():
        table.add_row(*row.cells, "gone")
    return table


def _by_rule(rows: Sequence[Row], before: Sequence[Row]) -> Table:
    """How often each rule speaks: with a predicted step, and without."""
    table = Table("rule", *(["before", "before, gain not estimated"] if before else []), "now", "gain not estimated")
    counts = [Counter((row.rule, row.predicted) for row in some) for some in (before, rows)]
    for rule in sorted({rule for count in counts for rule, _ in count if rule}):
        cells = [str(count[rule, predicted] or "–") for count in counts for predicted in (True, False)]
        table.add_row(rule, *(cells if before else cells[2:]))
    return table


def _markdown(table: Table) -> str:
    columns = [list(column.cells) for column in table.columns]
    lines = [[str(column.header) for column in table.columns], ["---"] * len(columns)]
    lines += [[str(cell).replace("|", "\\|") for cell in cells] for cells in zip(*columns, strict=True)]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


if __name__ == "__main__":
    main()

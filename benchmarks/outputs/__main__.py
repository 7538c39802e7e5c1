"""`python -m benchmarks.outputs`: what users see of every trace at hand, to compare it across a change of the code.

python -m benchmarks.outputs --save build/before              # on the older revision
python -m benchmarks.outputs --save build/after --against build/before
"""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path

import click

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tests"))

from benchmarks.outputs.compared import changes, digest
from benchmarks.outputs.rendered import save_all


@click.command()
@click.option("--save", required=True, type=click.Path(file_okay=False, path_type=Path), help="Folder to write.")
@click.option("--against", type=click.Path(exists=True, path_type=Path), help="Folder of an earlier --save.")
@click.option("--only", multiple=True, help="Only traces whose name contains this.")
@click.option("--lines", default=12, show_default=True, help="Lines of each difference that are printed.")
def main(save: Path, against: Path | None, only: tuple[str, ...], lines: int) -> None:
    """Analyse the samples, the shared traces and the simulated jobs, and write what each front shows of them."""
    total = save_all(save, only)
    click.echo(f"{total} traces; all of it: {digest(save)}")
    if against is None:
        return
    kinds: Counter[str] = Counter()
    for name, difference in changes(against, save, only):
        kinds[Path(name).suffix] += 1
        click.echo(f"\n== {name}")
        for line in difference[:lines]:
            click.echo(f"   {line}")
    click.echo(f"\n{sum(kinds.values())} files differ: {dict(kinds)}" if kinds else "\nEvery byte is the same.")
    sys.exit(bool(kinds))


if __name__ == "__main__":
    main()

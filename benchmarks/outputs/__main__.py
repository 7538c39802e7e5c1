"""`python -m benchmarks.outputs`: what users see of every trace at hand, to compare it across a change of the code.

python -m benchmarks.outputs --save build/before              # on the older revision
python -m benchmarks.outputs --save build/after --against build/before
"""

from __future__ import annotations

import hashlib
import sys
from collections import Counter
from collections.abc import Iterator
from difflib import unified_diff
from pathlib import Path

import click

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tests"))

from benchmarks.outputs.rendered import save_all

LONGEST = 240
"""Characters of a line of a difference."""


def digest(folder: Path) -> str:
    """One hash of all files in `folder`, by name and content."""
    total = hashlib.sha256()
    for path in _files(folder).values():
        total.update(f"{path.name} {hashlib.sha256(path.read_bytes()).hexdigest()}\n".encode())
    return total.hexdigest()[:16]


def changes(before: Path, after: Path, only: tuple[str, ...] = ()) -> Iterator[tuple[str, list[str]]]:
    """Each file that differs, with the changed lines; a file that one side lacks is one line."""
    old, new = _files(before), _files(after)
    for name in sorted({*old, *new}):
        if only and not any(part in name for part in only):
            continue
        if name not in new or name not in old:
            yield name, ["gone" if name in old else "new"]
        elif old[name].read_bytes() != new[name].read_bytes():
            yield name, _lines(old[name], new[name])


def _files(folder: Path) -> dict[str, Path]:
    return {str(path.relative_to(folder)): path for path in sorted(folder.rglob("*")) if path.is_file()}


def _lines(old: Path, new: Path) -> list[str]:
    """The changed lines; of a page or a table in one line, the place where they part."""
    texts = [path.read_text(encoding="utf-8").splitlines() for path in (old, new)]
    found = [line for line in unified_diff(*texts, lineterm="", n=0) if not line.startswith(("---", "+++", "@@"))]
    return [line if len(line) <= LONGEST else f"{line[:LONGEST]}…" for line in found]


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

"""`python -m benchmarks.waits`: what a user waits for, by size and format, beside what else there is.

Whole processes, cache off and advice on unless a row says otherwise, with compiled modules as an installation has them.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

import click

from benchmarks.outcome import outcome
from benchmarks.waits.measured import Pair, in_turn
from benchmarks.waits.rows import GPUSCOPE, RANKS, ROWS, SAMPLE, Beside, Row

OTHERS = Path(__file__).with_name("others.py")
PACKAGES = {
    "hta": ("HolisticTraceAnalysis==0.5.0", "ijson>=3.3"),
    "adbc": ("adbc-driver-sqlite==1.8.0", "pyarrow>=17"),
}
COLUMNS = ("what", "beside", "wall s", "CPU s", "peak MB", "its wall s", "ratio", "its peak MB", "aim")


def python_of(tool: Beside, folder: Path) -> Path:
    """The Python of an environment with another tool, made on first use: its dependencies are not ours."""
    python = folder / f"with-{tool}" / "bin" / "python"
    if not python.exists():
        subprocess.run([sys.executable, "-m", "venv", str(python.parents[1])], check=True)
        subprocess.run([str(python), "-m", "pip", "install", "--quiet", *PACKAGES[tool]], check=True)
    return python


def measured(row: Row, folder: Path, rounds: int) -> Pair:
    """The row's command and what stands beside it, after a first look that compiles what each imports."""
    # Made in a process of its own: a child's memory would count what this one ever held.
    made = subprocess.run(
        [sys.executable, "-m", "benchmarks.waits", "--make", row.name, "--work", str(folder)],
        check=True, capture_output=True, text=True,
    )  # fmt: skip
    path = Path(made.stdout.strip())
    environment = {
        "PYTHONPYCACHEPREFIX": str(folder / "bytecode"),
        "PYTHONDONTWRITEBYTECODE": "",
        "XDG_CACHE_HOME": str(folder / "cache"),
    }
    own = [*GPUSCOPE, *row.words(path)]
    beside: list[str] | None = None
    if row.beside == "one rank":
        beside = [*GPUSCOPE, "analyze", str(min(path.iterdir())), "--no-store", "--no-cache"]
    elif row.beside is not None:
        beside = [str(python_of(row.beside, folder)), str(OTHERS), row.beside, str(path)]
    in_turn([*GPUSCOPE, "analyze", str(SAMPLE), "--no-store"], None, 1, environment)
    if row.name == "second":
        in_turn(own, None, 1, environment)
    return in_turn(own, beside, rounds, environment)


def line(row: Row, pair: Pair) -> list[str]:
    """The row as it is printed; ratios are what stands beside it over ours, median (lowest to highest of a round)."""
    own = [f"{pair.own_median(figure):.2f}" for figure in ("wall_s", "cpu_s")]
    own.append(f"{pair.own_median('peak_mb'):.0f}")
    if not pair.beside:
        return [row.what, "–", *own, "–", "–", "–", row.aim]
    swapped = Pair(pair.beside, pair.own)
    ratios = pair.ratios("wall_s") if row.beside == "hta" else swapped.ratios("wall_s")
    middle = ratios[len(ratios) // 2]
    said = f"{middle:.1f} × ({ratios[0]:.1f}–{ratios[-1]:.1f})"
    if row.beside == "hta":
        said = f"{said} as fast, memory 1/{pair.ratios('peak_mb')[len(ratios) // 2]:.1f}"
    elif row.beside == "one rank":
        said = f"{said} one rank ({RANKS / 1.8:.1f} asked for)"
    return [row.what, row.beside or "", *own, f"{swapped.own_median('wall_s'):.2f}", said,
            f"{swapped.own_median('peak_mb'):.0f}", row.aim]  # fmt: skip


@click.command()
@click.option("--row", "names", multiple=True, type=click.Choice([row.name for row in ROWS]), help="Only these rows.")
@click.option("--rounds", default=3, show_default=True)
@click.option("--work", type=click.Path(file_okay=False, path_type=Path), help="Where inputs lie and stay.")
@click.option("--make", hidden=True, help="Make a row's input and say where it lies.")
@click.option("--save", type=click.Path(dir_okay=False, path_type=Path), help="Also write the table as TOML.")
def main(names: Sequence[str], rounds: int, work: Path | None, make: str | None, save: Path | None) -> None:
    """Time whole processes, in pairs, and print a table."""
    if make is not None and work is not None:
        click.echo(next(row for row in ROWS if row.name == make).make(work))
        return
    with tempfile.TemporaryDirectory(prefix="gpuscope-waits-") as temporary:
        folder = work or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        lines = []
        for row in ROWS if not names else [row for row in ROWS if row.name in names]:
            lines.append(line(row, measured(row, folder, rounds)))
            click.echo(" | ".join(lines[-1]))
    if save is not None:
        head = f"# python -m benchmarks.waits --rounds {rounds}, {datetime.now(UTC).date()}, {os.cpu_count()} cores."
        save.write_text(outcome(head, COLUMNS, lines), encoding="utf-8")


if __name__ == "__main__":
    main()

"""`python -m benchmarks.waits`: what a user waits for, by size and format, beside what else there is.

Whole processes, cache off and advice on unless a row says otherwise, with compiled modules as an installation has them.
"""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from urllib.error import HTTPError
from urllib.parse import urljoin
from urllib.request import HTTPCookieProcessor, build_opener

import click

from benchmarks.growth import FORMATS, empty_mb
from benchmarks.growth import measured as grown
from benchmarks.outcome import outcome
from benchmarks.waits.measured import Cost, Pair, in_turn
from benchmarks.waits.rows import GPUSCOPE, RANKS, ROWS, SAMPLE, WHOLE, Beside, Row

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
        check=True,
        capture_output=True,
        text=True,
    )
    path = Path(made.stdout.strip())
    environment = {
        "PYTHONPYCACHEPREFIX": str(folder / "bytecode"),
        "PYTHONDONTWRITEBYTECODE": "",
        "XDG_CACHE_HOME": str(folder / "cache"),
    }
    if row.beside == "reading":
        inside = [sys.executable, "-m", "benchmarks.waits.inside", row.name, str(path), str(rounds)]
        said = subprocess.run(inside, check=True, capture_output=True, text=True, env={**os.environ, **environment})
        walls = zip(*json.loads(said.stdout), strict=True)
        return Pair(*([Cost(wall, math.nan, math.nan) for wall in side] for side in walls))
    own = [*GPUSCOPE, *row.words(path)]
    beside: list[str] | None = None
    if row.beside == "one rank":
        beside = [*GPUSCOPE, "analyze", str(min(path.iterdir())), *WHOLE]
    elif row.beside == "analyze":
        beside = [*GPUSCOPE, "analyze", str(path), *WHOLE]
    elif row.beside is not None:
        beside = [str(python_of(row.beside, folder)), str(OTHERS), row.beside, str(path)]
    in_turn([*GPUSCOPE, "analyze", str(SAMPLE), "--no-store"], None, 1, environment)
    environment |= row.environment
    if row.name == "second":
        in_turn(own, None, 1, environment)
    return in_turn(own, beside, rounds, environment, _dashboard_there if row.name == "dashboard" else None)


def _dashboard_there(first_line: str) -> None:
    """Wait until the dashboard whose address is said is there: until then its layout is refused."""
    address = first_line.split()[-1]
    browser = build_opener(HTTPCookieProcessor())
    browser.open(address).read()
    while True:
        try:
            browser.open(urljoin(address, "/_dash-layout")).read()
        except HTTPError as error:
            if error.code != 503:
                raise
            time.sleep(0.02)
        else:
            return


def line(row: Row, pair: Pair) -> list[str]:
    """The row as it is printed; ratios are what stands beside it over ours, median (lowest to highest of a round)."""
    own = [_said(pair.own_median(figure), 2) for figure in ("wall_s", "cpu_s")]
    own.append(_said(pair.own_median("peak_mb"), 0))
    if not pair.beside:
        return [row.what, "–", *own, "–", "–", "–", row.aim]
    swapped = Pair(pair.beside, pair.own)
    ratios = pair.ratios("wall_s") if row.beside == "hta" else swapped.ratios("wall_s")
    middle = ratios[len(ratios) // 2]
    low, middle_, high = (_said(one, 1 if middle >= 1 else 3) for one in (ratios[0], middle, ratios[-1]))
    said = f"{middle_} × ({low}–{high})"
    if row.beside == "hta":
        said = f"{said} as fast, memory 1/{pair.ratios('peak_mb')[len(ratios) // 2]:.1f}"
    elif row.beside == "one rank":
        said = f"{said} one rank ({RANKS / 1.8:.1f} asked for)"
    return [
        row.what,
        row.beside or "",
        *own,
        f"{swapped.own_median('wall_s'):.2f}",
        said,
        _said(swapped.own_median("peak_mb"), 0),
        row.aim,
    ]


def _said(figure: float, digits: int) -> str:
    return "–" if math.isnan(figure) else f"{figure:.{digits}f}"


def memory(folder: Path) -> Iterator[list[str]]:
    """Rows of memory per event above the empty process, by format."""
    empty = empty_mb()
    for name in FORMATS:
        _, events, _, wall, peak, _, per_event = grown(name, 1_000_000, folder, empty)
        yield [f"{name}, {events} events", "–", wall, "–", peak, "–", f"{per_event} B per event", "–", "≤ 80 B"]


@click.command()
@click.option(
    "--row", "names", multiple=True, type=click.Choice([*(row.name for row in ROWS), "memory"]), help="Only these rows."
)
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
        for one in memory(folder) if not names or "memory" in names else ():
            lines.append(one)
            click.echo(" | ".join(one))
    if save is not None:
        head = f"# python -m benchmarks.waits --rounds {rounds}, {datetime.now(UTC).date()}, {os.cpu_count()} cores."
        save.write_text(outcome(head, COLUMNS, lines), encoding="utf-8")


if __name__ == "__main__":
    main()

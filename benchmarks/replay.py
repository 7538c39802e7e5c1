"""`python -m benchmarks.replay`: the baseline replay error of each trace."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import median

import click
from rich.console import Console
from rich.table import Table

from gpuscope.analyzers.replay.recording import MAX_ERROR
from gpuscope.analyzers.replay.replayer import Replayer
from gpuscope.analyzers.run.runner import analyze
from gpuscope.errors import GpuscopeError
from gpuscope.words import units

ROOT = Path(__file__).parents[1]
FORMATS = (".json", ".json.gz", ".sqlite")
SHARED = ROOT.parent / "shared" / "traces"
DEFAULT = (ROOT / "sample_traces", *(SHARED / kind for kind in ("cpu_gloo", "kineto", "nsys", "ascend")))

console = Console(width=None if sys.stdout.isatty() else 140)


@click.command()
@click.argument("paths", nargs=-1, type=click.Path(exists=True, path_type=Path))
def main(paths: Sequence[Path]) -> None:
    """Replay every run under PATHS: a folder of traces is one run, or, if they don't form one, several."""
    table = Table("run", "ranks", "steps", "measured", "replayed", "error", "why not")
    errors: list[float] = []
    for root in paths or [path for path in DEFAULT if path.is_dir()]:
        for run, replayer in replayed(root):
            known = replayer.error_frac is not None
            table.add_row(
                str(run.relative_to(root.parent)),
                str(replayer.ranks),
                str(replayer.steps),
                units.duration(replayer.measured_step_ns),
                units.duration(replayer.replayed_step_ns),
                f"{replayer.error_frac:.2%}" if known else "",
                replayer.why,
            )
            if replayer.error_frac is not None:
                errors.append(replayer.error_frac)
    console.print(table)
    trusted = [error for error in errors if error <= MAX_ERROR]
    if trusted:
        console.print(
            f"{len(errors)} replayed: median error {median(errors):.2%}; {len(trusted)} within {MAX_ERROR:.0%}, "
            f"worst of these {max(trusted):.2%}; the others predict nothing"
        )


def replayed(root: Path) -> Iterator[tuple[Path, Replayer]]:
    """The runs under a folder, or the one of a file."""
    files = sorted(path for path in root.iterdir() if path.name.endswith(FORMATS)) if root.is_dir() else [root]
    whole = [root] if files and root.is_dir() else []
    for run in [*whole, *files]:
        try:
            replayer = analyze(run, advice=False, replay=True).replayer
        except GpuscopeError:
            continue  # no trace, or not a single run: try file by file
        if replayer is not None:
            yield run, replayer
            if run is root:
                return
    if root.is_dir():
        for folder in sorted(path for path in root.iterdir() if path.is_dir()):
            yield from replayed(folder)


if __name__ == "__main__":
    main()

"""`make gpu-check`: run every path of docs/trust.md and judge each by what it recorded.

`PYTHONPATH=tests python -m gpu_check [--only NAME]`. Exit code 0: nothing failed; 1: something did; 2: there is no GPU.
Traces and outcomes stay in the folder of `--out`.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from dataclasses import asdict
from pathlib import Path

import click

from gpu_check.checking import Checks, Outcome
from gpu_check.gpu_paths import PATHS


@click.command()
@click.option("--out", type=click.Path(path_type=Path), default=Path("build/gpu"), show_default=True)
@click.option("--only", multiple=True, metavar="TEXT", help="Paths with this in their name.")
@click.option("--list", "listing", is_flag=True, help="Show the paths and their commands, and run nothing.")
def main(out: Path, only: tuple[str, ...], listing: bool) -> None:
    """Check each path, one line per path."""
    chosen = [path for path in PATHS if not only or any(text in path.name for text in only)]
    if not chosen:
        raise click.UsageError(f"no path is called {', '.join(only)}; --list shows them")
    checks = Checks(out)
    if listing:
        for path in chosen:
            click.echo(f"{path.name}: {' '.join(checks.command(path.run))}")
        return
    if (why := no_gpu()) is not None:
        click.echo(f"gpu-check: {why}: nothing was checked; docs/trust.md lists what only a GPU can show", err=True)
        sys.exit(2)
    outcomes: list[Outcome] = []
    for one in checks.all(chosen):
        outcomes.append(one)
        click.echo(f"{one.state:8} {one.name}: {one.said}")
    out.mkdir(parents=True, exist_ok=True)
    (out / "checks.json").write_text(json.dumps([asdict(one) for one in outcomes], indent=1) + "\n")
    states = Counter(one.state for one in outcomes)
    click.echo(f"{states['passed']} passed, {states['failed']} failed, {states['skipped']} skipped; traces in {out}")
    sys.exit(bool(states["failed"]))


def no_gpu() -> str | None:
    """Why nothing can be checked here; None on a machine with a GPU that torch can use."""
    import torch

    if torch.version.cuda is None:
        return f"torch {torch.__version__} is built without CUDA"
    return None if torch.cuda.is_available() else "there is no NVIDIA GPU here that torch can use"


if __name__ == "__main__":
    main()

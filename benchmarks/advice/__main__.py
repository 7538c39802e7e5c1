"""`python -m benchmarks.advice`: predicted against measured step times, on this machine, now.

For every case two gloo processes run the job with the problem and the job with the change really made, in turns of
a few recorded steps. Each turn before is analysed and the change predicted from it alone; each turn after is
measured. The table holds medians over the rounds: run it on a quiet machine.
"""

from __future__ import annotations

import os
import platform
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import click

from benchmarks.advice.cases import CASES, UNSEEN
from benchmarks.advice.compare import outcome, summary, table


def record(numbers: list[int], folder: Path, rounds: int) -> None:
    """Record cases into folders named by their numbers."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "-m"]
    command += ["benchmarks.advice.worker", str(folder), str(rounds), *map(str, numbers)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "KINETO_LOG_LEVEL": "6"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(done.stderr[-3000:])


@click.command()
@click.option("--rounds", default=7, show_default=True, help="Turns of each side.")
@click.option("--case", "wanted", multiple=True, help="Part of a case's name; all without it.")
@click.option("--unseen", is_flag=True, help="The cases with which nothing was developed.")
@click.option("--keep", type=click.Path(path_type=Path), help="Folder to leave the traces in.")
@click.option("--again", is_flag=True, help="Compare what --keep holds, without recording again.")
def main(rounds: int, wanted: tuple[str, ...], unseen: bool, keep: Path | None, again: bool) -> None:
    """Print a table of predicted and measured step times."""
    import torch

    every = (*CASES, *UNSEEN)
    asked = range(len(CASES), len(every)) if unseen else range(len(every))
    numbers = [place for place in asked if not wanted or any(w in every[place].name for w in wanted)]
    with tempfile.TemporaryDirectory() as temporary:
        folder = keep or Path(temporary)
        if not again:
            record(numbers, folder, rounds)
        outcomes = [outcome(every[number], folder / str(number)) for number in numbers]
    machine = f"{platform.machine()}, {os.cpu_count()} cores"
    took = sorted({one.rounds for one in outcomes})
    counted = f"{took[0]}" if len(took) == 1 else f"{took[0]} to {took[-1]}"
    print(f"{time.strftime('%Y-%m-%d')}, torch {torch.__version__}, gloo, 2 processes, {machine}, {counted} rounds\n")
    print(table(outcomes))
    print(f"\n{summary(outcomes)}")


if __name__ == "__main__":
    main()

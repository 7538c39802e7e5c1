"""Thousands of reduced parts merged: python -m benchmarks.scale [--ranks 4096] [--keep FOLDER]

The job is synthetic (tests/helpers/synthetic_job.py): data parallelism over groups of 8 × 8 ranks of tensor and
pipeline parallelism, one rank late in every step. Each rank's trace is reduced and written as `gpuscope reduce` does;
then the parts are read, matched, attributed and replayed by one process, whose time and peak memory are printed per
collective and per rank.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import click

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

from helpers.synthetic_job import Job, simulate, trace_of

from gpuscope.analyzers.run.file_part import Options, reduce_trace
from gpuscope.analyzers.run.reduction.part_file import write_part

_MERGE = """
import json, resource, sys, time
from gpuscope.analyzers.run.runner import analyze
began = time.perf_counter(), time.process_time()
report = analyze(sys.argv[1], advice=False, replay=True).report
used = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
late = max(report["stragglers"], key=lambda entry: entry["root_wait_ns"])["rank"] if report["stragglers"] else None
print(json.dumps({
    "wall": time.perf_counter() - began[0], "cpu": time.process_time() - began[1], "mb": used / 1024, "late": late,
    "replay": report["replay"],
    "verdict": report["verdict"]["cause"],
}))
"""


def write_parts(job: Job, folder: Path) -> tuple[float, int]:
    """CPU seconds and bytes of all parts."""
    made, spent = simulate(job), 0.0
    for rank in range(job.ranks):
        trace = trace_of(job, made, rank)
        began = time.process_time()
        write_part(folder / f"rank{rank}.gsr", reduce_trace(trace, Options(files=job.ranks)), None)
        spent += time.process_time() - began
    return spent, sum(path.stat().st_size for path in folder.glob("*.gsr"))


@click.command()
@click.option("--ranks", default=4096, show_default=True, help="A multiple of 64.")
@click.option("--steps", default=3, show_default=True)
@click.option("--layers", default=2, show_default=True)
@click.option("--keep", type=click.Path(path_type=Path), help="A folder for the parts; used again if it has them.")
def main(ranks: int, steps: int, layers: int, keep: Path | None) -> None:
    """Print what the parts took, and what merging them took."""
    job = Job(dp=ranks // 64, tp=8, pp=8, layers=layers, steps=steps, kernels=2, late_rank=5)
    with tempfile.TemporaryDirectory() as temporary:
        folder = keep or Path(temporary)
        folder.mkdir(exist_ok=True, parents=True)
        if not any(folder.glob("*.gsr")):
            spent, size = write_parts(job, folder)
            click.echo(
                f"{job.ranks:,} parts: {size / 1e6:.0f} MB, {size / job.ranks / 1e3:.0f} kB each, "
                f"{1e3 * spent / job.ranks:.0f} CPU ms each to analyse and write"
            )
        told = subprocess.run([sys.executable, "-c", _MERGE, str(folder)], capture_output=True, text=True, check=True)
        found = json.loads(told.stdout)
    each = 1e3 * found["cpu"] / job.ranks
    click.echo(
        f"merged: {found['wall']:.0f} s ({found['cpu']:.0f} s of CPU), {found['mb']:.0f} MB; {each:.0f} CPU ms and "
        f"{1e3 * found['mb'] / job.ranks:.0f} kB per rank"
    )
    click.echo(f"late is rank {job.late_rank}, found {found['late']}; cause {found['verdict']}")
    click.echo(f"replay {found['replay']}")


main()

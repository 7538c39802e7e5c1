"""Many ranks on one machine: python -m benchmarks.ranks [--ranks 256] [--size 20] [--jobs 2] [--advice]

A real trace, enlarged to `--size` MB, is copied once per rank with another rank in its header; the ranks do the same at
the same time. Analysing one of them and analysing all of them run in turn, each in a fresh process. The aim is that all
cost no more than 1.3 times as many times one.
"""

from __future__ import annotations

import re
import resource
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path

import click

from benchmarks.waits.enlarge import enlarge
from benchmarks.waits.template import read_template

SAMPLE = Path(__file__).parents[1] / "sample_traces" / "ddp_healthy" / "rank0.json.gz"
_RANK = re.compile(rb'("distributedInfo"\s*:\s*\{[^{}\[\]]*?"rank"\s*:\s*)\d+')
_WORLD = re.compile(rb'("distributedInfo"\s*:\s*\{[^{}\[\]]*?"world_size"\s*:\s*)\d+')
LOOK_S = 0.2
_ANALYZE = "from gpuscope.cli import main; main()"


def copies(source: Path, folder: Path, ranks: int, size: int) -> None:
    """Write `rank0.json` and so on, of `size` bytes each."""
    enlarged = folder / "enlarged"
    enlarge(read_template(source), enlarged, size)
    text = enlarged.read_bytes()
    enlarged.unlink()
    if not _RANK.search(text):
        raise click.UsageError(f"{source}: has no distributedInfo with a rank")
    text = _WORLD.sub(rb"\g<1>%d" % ranks, text, count=1)
    for rank in range(ranks):
        (folder / f"rank{rank}.json").write_bytes(_RANK.sub(rb"\g<1>%d" % rank, text, count=1))


def analysed(path: Path, jobs: int, advice: bool) -> dict[str, float]:
    """Wall and CPU seconds of `gpuscope analyze`, and the most MB that all its processes held at once."""
    before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    words = ["analyze", str(path), "--no-store", "--no-cache", "--quiet", "--jobs", str(jobs)]
    words += [] if advice else ["--no-advice"]
    process = subprocess.Popen([sys.executable, "-c", _ANALYZE, *words], stdout=subprocess.DEVNULL)
    most = 0.0
    while process.poll() is None:
        most = max(most, held_mb(process.pid))
        time.sleep(LOOK_S)
    if process.returncode:
        raise SystemExit(process.returncode)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return {"wall": time.perf_counter() - began, "cpu": cpu, "mb": most}


def held_mb(process: int) -> float:
    """What a process and its children hold: proportional set sizes, so that what they share counts once."""
    held = 0.0
    with suppress(OSError):
        held += sum(
            int(line.split()[1]) / 1e3
            for line in Path(f"/proc/{process}/smaps_rollup").read_text().splitlines()
            if line.startswith("Pss:")
        )
        for task in Path(f"/proc/{process}/task").iterdir():
            held += sum(held_mb(int(child)) for child in (task / "children").read_text().split())
    return held


@click.command()
@click.argument("source", type=click.Path(exists=True, dir_okay=False, path_type=Path), default=SAMPLE)
@click.option("--ranks", default=256, show_default=True)
@click.option("--size", default=20, show_default=True, help="MB of JSON per rank.")
@click.option("--jobs", default=2, show_default=True, help="Processes.")
@click.option("--advice", is_flag=True, help="Replay and advise too.")
@click.option("--work", type=click.Path(file_okay=False, path_type=Path), help="Where the copies are made for a while.")
def main(source: Path, ranks: int, size: int, jobs: int, advice: bool, work: Path | None) -> None:
    """Analyse one rank, then all of them, of copies of SOURCE."""
    with tempfile.TemporaryDirectory(prefix="gpuscope-ranks-", dir=work) as name:
        folder = Path(name)
        copies(source, folder, ranks, size * 1_000_000)
        one = analysed(folder / "rank0.json", 1, advice)
        every = analysed(folder, jobs, advice)
    click.echo(f"one rank: {one}\n{ranks} ranks: {every}")
    click.echo(
        f"CPU: {every['cpu'] / (ranks * one['cpu']):.2f} times {ranks} × one rank; wall: "
        f"{every['wall'] / (ranks * one['wall'] / jobs):.2f} times {ranks} × one rank / {jobs}"
    )


if __name__ == "__main__":
    main()

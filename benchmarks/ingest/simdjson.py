"""`python -m benchmarks.ingest.simdjson TRACE`: Kineto JSON into columns, beside simdjson's on-demand parser.

The parser is the one in the source distribution of pysimdjson, compiled with the machine's g++; what it does is in
`simdjson_walk.cpp`. gpuscope reads the file into the same columns, in blocks and with every check, before rows are
ordered and linked. CPU seconds of all threads; of a gzipped trace isal's are added to simdjson's.
"""

from __future__ import annotations

import gzip
import json
import resource
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path
from statistics import median

import click

WALK = Path(__file__).with_name("simdjson_walk.cpp")
PACKAGE = "pysimdjson==7.0.2"

_COLUMNS = """
import sys, time
from pathlib import Path
from gpuscope.sources.kineto.kineto_source import SOURCE
from gpuscope.sources.source import ReadOptions
from gpuscope.trace.builder import TraceBuilder
began = time.process_time()
SOURCE.read(Path(sys.argv[1]), TraceBuilder(), ReadOptions())
print(time.process_time() - began)
"""
_ISAL = """
import sys, time
from gpuscope.sources import stream
from pathlib import Path
began = time.process_time()
for block in stream.blocks(Path(sys.argv[1])):
    pass
print(time.process_time() - began)
"""


def walker(folder: Path) -> Path:
    """The compiled walk; fetches the parser's source and compiles it on first use."""
    program = folder / "simdjson_walk"
    if not program.exists():
        folder.mkdir(parents=True, exist_ok=True)
        fetch = [
            "-m",
            "pip",
            "download",
            "--quiet",
            "--no-deps",
            "--no-binary",
            "pysimdjson",
            PACKAGE,
            "-d",
            str(folder),
        ]
        subprocess.run([sys.executable, *fetch], check=True)
        (archive,) = folder.glob("pysimdjson-*.tar.gz")
        with tarfile.open(archive) as packed:
            packed.extractall(folder, filter="data")
        (header,) = folder.glob("pysimdjson-*/simdjson/simdjson.h")
        source = [str(WALK), str(header.with_name("simdjson.cpp")), "-I", str(header.parent)]
        subprocess.run(["g++", "-O3", "-march=native", "-std=c++17", *source, "-o", str(program)], check=True)
    return program


def _python(code: str, path: Path) -> float:
    return float(subprocess.run([sys.executable, "-c", code, str(path)], stdout=subprocess.PIPE, check=True).stdout)


def _walked(program: Path, path: Path) -> tuple[dict[str, float], float]:
    """What the walk says, and the CPU seconds of its process, the reading of the file included."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    told = subprocess.run([str(program), str(path)], stdout=subprocess.PIPE, check=True).stdout
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return json.loads(told), after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


@click.command()
@click.argument("trace", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--rounds", default=5, show_default=True)
@click.option("--work", type=click.Path(file_okay=False, path_type=Path), help="Where the compiled parser is kept.")
def main(trace: Path, rounds: int, work: Path | None) -> None:
    """Time both in turn on TRACE, plain or gzipped."""
    with tempfile.TemporaryDirectory(prefix="gpuscope-simdjson-") as folder:
        program, plain = walker(work or Path(folder)), trace
        if trace.suffix == ".gz":
            plain = Path(folder) / "plain.json"
            with gzip.open(trace) as packed, plain.open("wb") as file:
                while block := packed.read(1 << 24):
                    file.write(block)
        ratios = []
        for _ in range(rounds):
            told, theirs = _walked(program, plain)
            theirs += _python(_ISAL, trace) if trace.suffix == ".gz" else 0.0
            ours = _python(_COLUMNS, trace)
            ratios.append(theirs / ours)
            size = plain.stat().st_size / 1e6
            click.echo(
                f"{told['events']:,.0f} events; simdjson {theirs:.2f} CPU s ({size / theirs:,.0f} MB/s), gpuscope "
                f"{ours:.2f} CPU s ({size / ours:,.0f} MB/s): {ratios[-1]:.2f} of its speed"
            )
    click.echo(f"median over {rounds} rounds: {median(ratios):.2f} of simdjson's speed")


if __name__ == "__main__":
    main()

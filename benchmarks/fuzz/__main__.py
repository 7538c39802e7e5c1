"""`python -m benchmarks.fuzz`: mutated traces through the native scanner, arbitrary spans through its sweeps, under
AddressSanitizer."""

from __future__ import annotations

import gzip
import subprocess
import sys
import tempfile
from pathlib import Path

import click

HERE = Path(__file__).parent
NATIVE = HERE.parents[1] / "gpuscope" / "native"
SAMPLES = HERE.parents[1] / "sample_traces"
DRIVERS = {"fuzz_scan": ("kineto_scan.c",), "fuzz_spans": ("columns.c", "nested_spans.c", "launched.c", "spans.c")}
"""And the sources that each tries."""
FLAGS = ["-std=c11", "-g", "-O1", "-fsanitize=address,undefined", "-fno-sanitize-recover=all"]


@click.command()
@click.argument("seeds", nargs=-1, type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--seconds", default=60, show_default=True, help="How long.")
@click.option("--seed", default=1, show_default=True, help="Of the random numbers.")
@click.option("--compiler", default="cc", show_default=True)
def main(seeds: tuple[Path, ...], seconds: int, seed: int, compiler: str) -> None:
    """Mutate SEEDS (by default two sample traces) and scan the pieces until the time is over or something is found;
    then the same time for spans."""
    seeds = seeds or (SAMPLES / "ddp_healthy" / "rank0.json.gz", SAMPLES / "ddp_slow_rank" / "rank1.json.gz")
    with tempfile.TemporaryDirectory(prefix="gpuscope-fuzz-") as folder:
        plain = [_plain(path, Path(folder, f"{number}.json")) for number, path in enumerate(seeds)]
        for name, sources in DRIVERS.items():
            program = Path(folder, name)
            own = [HERE / f"{name}.c", *(NATIVE / source for source in sources)]
            subprocess.run([compiler, *FLAGS, "-o", str(program), *map(str, own)], check=True)
            given = [str(seconds), str(seed), *map(str, plain)]
            done = subprocess.run([str(program), *given], check=False)
            if done.returncode:
                sys.exit(done.returncode)


def _plain(path: Path, target: Path) -> Path:
    raw = path.read_bytes()
    target.write_bytes(gzip.decompress(raw) if raw[:2] == b"\x1f\x8b" else raw)
    return target


if __name__ == "__main__":
    main()

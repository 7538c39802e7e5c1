"""`make fuzz`: hostile inputs until the time or the number is over, in processes of some hundred each.

`PYTHONPATH=tests python -m fuzzing --inputs 20000`. Results are appended to a file of JSON lines, one per process; a
process that dies or does not end is a bad outcome too.
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

import click

from fuzzing.seeds import SEEDS
from fuzzing.surfaces import SURFACES

CHUNK = 400
CHUNK_SECONDS = 1_800
MEMORY_BYTES = 4 << 30
NAMES = [*(seed.name for seed in SEEDS), *SURFACES]


@click.command()
@click.option("--inputs", default=0, help="How many in all; 0: until --hours are over.")
@click.option("--hours", default=2.0, show_default=True)
@click.option("--first", default=0, show_default=True, help="The number of the first input of each format.")
@click.option("--only", multiple=True, help="These formats alone.")
@click.option("--out", type=click.Path(path_type=Path), default=Path("build/fuzz"), show_default=True)
@click.option("--one-chunk", hidden=True, default=0)
def main(inputs: int, hours: float, first: int, only: tuple[str, ...], out: Path, one_chunk: int) -> None:
    """Run the fuzzer and print the table of outcomes; exit code 1 where any is bad."""
    names = list(only) or NAMES
    if one_chunk:
        _chunk(names[0], range(first, first + one_chunk), out)
        return
    out.mkdir(parents=True, exist_ok=True)
    end, done = time.monotonic() + hours * 3600, 0
    share = -(-inputs // len(names)) if inputs else sys.maxsize
    while done < share and time.monotonic() < end:
        count = min(CHUNK, share - done)
        for name in names:
            _run_chunk(name, first + done, count, out)
        done += count
    sys.exit(_table(out))


def _run_chunk(name: str, first: int, count: int, out: Path) -> None:
    command = [
        sys.executable,
        "-X",
        "faulthandler",
        "-m",
        "fuzzing",
        "--only",
        name,
        "--first",
        str(first),
        "--one-chunk",
        str(count),
        "--out",
        str(out),
    ]
    environment = {**os.environ, "GPUSCOPE_NO_STORE": "1", "GPUSCOPE_NO_CACHE": "1"}
    try:
        done = subprocess.run(command, env=environment, capture_output=True, timeout=CHUNK_SECONDS, check=False)
        why = "" if done.returncode == 0 else f"exit {done.returncode}: {done.stderr.decode(errors='replace')[-400:]}"
    except subprocess.TimeoutExpired:
        why = f"not done after {CHUNK_SECONDS} s"
    if why:
        _append(out, {"name": name, "first": first, "kinds": {"bad": 1}, "bad": [[name, first, "the process", why]]})


def _chunk(name: str, numbers: range, out: Path) -> None:
    from fuzzing import campaign, surfaces

    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    with tempfile.TemporaryDirectory(prefix="gpuscope-fuzz-") as folder:
        if name in SURFACES:
            tally = surfaces.run(name, Path(folder), numbers)
        else:
            tally = campaign.run(Path(folder), numbers, [name], out / "bad")
    kinds = {kind: count for (_, kind), count in tally.kinds.items()}
    _append(out, {"name": name, "first": numbers[0], "kinds": kinds, "bad": tally.bad})


def _append(out: Path, record: dict[str, object]) -> None:
    with (out / "outcomes.jsonl").open("a") as file:
        file.write(json.dumps(record) + "\n")


def _table(out: Path) -> int:
    """Print outcomes by format as Markdown; returns the exit code."""
    kinds: dict[str, Counter[str]] = {name: Counter() for name in NAMES}
    bad = []
    for line in (out / "outcomes.jsonl").read_text().splitlines():
        record = json.loads(line)
        kinds[record["name"]].update(record["kinds"])
        bad += record["bad"]
    whole = sum(kinds.values(), Counter[str]())
    click.echo("| input | all | read | told | refused | bad |\n|---|--:|--:|--:|--:|--:|")
    for name, found in [*kinds.items(), ("**all**", whole)]:
        cells = [found.total(), *(found[kind] for kind in ("read", "told", "refused", "bad"))]
        click.echo(f"| {name} | " + " | ".join(f"{cell:,}" for cell in cells) + " |")
    for name, number, what, why in bad:
        click.echo(f"bad: {name} {number} ({what}): {why}")
    return 1 if bad else 0


if __name__ == "__main__":
    main()

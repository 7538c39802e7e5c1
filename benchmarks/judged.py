"""`python -m benchmarks.judged`: what gpuscope says of each public trace, beside what was read from it by hand.

The readings are in `benchmarks/outcomes/read_by_hand.toml`; the table of docs/trust.md is written from both.
"""

from __future__ import annotations

import os
import tomllib
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.table import Table

from benchmarks.outcome import outcome
from gpuscope.analyzers.run.runner import analyze
from gpuscope.errors import GpuscopeError
from gpuscope.schema.document import Report
from gpuscope.words import units

OUTCOMES = Path(__file__).parent / "outcomes"
SHARED = Path(__file__).resolve().parents[2] / "shared" / "traces"
HEAD = """# python -m benchmarks.judged --save: what gpuscope says of each public trace, without options, beside
# read_by_hand.toml. Paths are those of the folder of public traces. docs/generate.py makes a table of it.
"""
COLUMNS = ["trace", "gpuscope", "step", "first suggestion", "by hand", "agree"]


def told(report: Report) -> tuple[str, str]:
    """Class and cause as a reading writes them."""
    verdict = report["verdict"]
    if verdict["abstained"] or verdict["bound_by"] is None:
        return "none", ""
    return verdict["bound_by"], verdict["cause"] or ("open" if verdict["cause_abstained"] else "")


def row(reading: dict[str, str]) -> list[str] | None:
    """A row of the table; None where the trace is not at hand."""
    path = SHARED / reading["trace"]
    if not path.exists():
        return None
    read = reading["class"], reading["cause"]
    by_hand = _words(*read, reading["share"])
    try:
        report = analyze(path).report
    except GpuscopeError as error:
        why = f"error: {error.message.rpartition(': ')[2]}"
        return [reading["trace"], why, "–", "–", by_hand, "not read"]
    verdict, step = report["verdict"], report["step_time"]
    found = told(report)
    said = _words(*found, f"{100 * verdict['share_frac']:.1f}")
    return [
        reading["trace"],
        said + (f" ({verdict['confidence']:.2f})" if found[0] != "none" else ""),
        units.duration(step["median_ns"]) if step else "no steps",
        _first(report),
        by_hand,
        _agree(read, found),
    ]


def _words(bound_by: str, cause: str, share: str) -> str:
    named = f"{bound_by} / {cause}" if cause else bound_by
    return f"{named}, {share} %" if share and bound_by != "none" else named


def _agree(read: tuple[str, str], found: tuple[str, str]) -> str:
    if read == found:
        return "yes"
    return "class" if read[0] == found[0] else "no"


def _first(report: Report) -> str:
    for one in report["suggestions"]:
        after = one["predicted"]["step_ns_after"] if one["predicted"] else None
        return f"`{one['code']}`" + (f" → {units.duration(after)}" if after else "")
    untried = [f"`{one['code']}`" for one in report["advice"]["unpredicted"][:2]]
    return f"gain unknown: {', '.join(untried)}" if untried else "none"


def readings() -> list[dict[str, str]]:
    """What was read by hand, a record each."""
    found: dict[str, Any] = tomllib.loads((OUTCOMES / "read_by_hand.toml").read_text(encoding="utf-8"))
    return [dict(zip(found["columns"], one, strict=True)) for one in found["rows"]]


@click.command()
@click.option("--save", is_flag=True, help="Write benchmarks/outcomes/public_traces.toml.")
def main(save: bool) -> None:
    """Analyse every public trace that was read by hand, and set both readings side by side."""
    os.environ.update(GPUSCOPE_NO_STORE="1", GPUSCOPE_NO_CACHE="1")
    rows = [made for one in readings() if (made := row(one)) is not None]
    table = Table(*COLUMNS)
    for one in rows:
        table.add_row(*one)
    counts = {word: sum(one[-1] == word for one in rows) for word in ("yes", "class", "no", "not read")}
    Console(width=200).print(table, f"{len(rows)} traces:", counts)
    if save and rows:
        (OUTCOMES / "public_traces.toml").write_text(outcome(HEAD.rstrip("\n"), COLUMNS, rows), encoding="utf-8")


if __name__ == "__main__":
    main()

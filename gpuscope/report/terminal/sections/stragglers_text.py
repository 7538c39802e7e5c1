"""Terminal sections on waiting: the ranks that others waited for, and who made whom wait in which step."""

from __future__ import annotations

from gpuscope.catalogue.straggler_sentences import CAUSED_WAIT
from gpuscope.report.terminal.screen import Writer
from gpuscope.schema.document import RankStepEntry, Report
from gpuscope.when_used import dataclass
from gpuscope.words import units

RANKS_SHOWN, STEPS_SHOWN = 8, 6
"""Of the rank × step table: the ranks that make others wait most, in the steps with most waiting."""
STRAGGLERS_SHOWN = 16


@dataclass(frozen=True)
class Heatmap:
    """The part of the rank × step table that is worth looking at."""

    steps: list[int]
    rows: list[tuple[int, list[RankStepEntry | None]]]
    """Per rank, its cell in each of `steps`."""
    left_out: str
    """What is not shown, in words; empty where nothing is."""


def heatmap(report: Report, ranks: int = RANKS_SHOWN, steps: int = STEPS_SHOWN) -> Heatmap | None:
    """The ranks and steps with most waiting, in order; None where nobody waited."""
    entries = report["rank_steps"]
    caused: dict[int, int] = {}
    suffered: dict[int, int] = {}
    waited: dict[int, int] = {}
    for entry in entries:
        caused[entry["rank"]] = caused.get(entry["rank"], 0) + entry["wait_caused_ns"]
        suffered[entry["rank"]] = suffered.get(entry["rank"], 0) + entry["wait_suffered_ns"]
        waited[entry["step"]] = waited.get(entry["step"], 0) + entry["wait_suffered_ns"]
    if not any(suffered.values()):
        return None
    shown = sorted(sorted(caused, key=lambda rank: (-caused[rank], -suffered[rank], rank))[:ranks])
    at = sorted(sorted(waited, key=lambda step: (-waited[step], step))[:steps])
    cells = {(entry["rank"], entry["step"]): entry for entry in entries}
    rows = [(rank, [cells.get((rank, step)) for step in at]) for rank in shown]
    parts = [f"{len(caused)} ranks"] * (len(shown) < len(caused)) + [f"{len(waited)} steps"] * (len(at) < len(waited))
    return Heatmap(at, rows, f"Of {' and '.join(parts)}, those with most waiting (all: --json)." if parts else "")


def section(report: Report, writer: Writer) -> None:
    """Print both."""
    _stragglers(report, writer)
    _heatmap(report, writer)


def _stragglers(report: Report, writer: Writer) -> None:
    rows = sorted(report["stragglers"], key=lambda row: -row["caused_wait_ns"])
    if not rows:
        return
    writer.heading("Ranks that others waited for")
    stepped = any(row["per_step_ns"] is not None for row in rows)
    each = [">per step"] if stepped else []
    cells = []
    for row in rows[:STRAGGLERS_SHOWN]:
        waits = [row["caused_wait_ns"], *([row["per_step_ns"]] if stepped else []), row["root_wait_ns"]]
        cells.append(
            (
                str(row["rank"]),
                *map(units.duration, waits),
                "yes" if row["recurrent"] else "no",
                row["phase"] or units.NONE,
                row["operation"] or units.NONE,
            )
        )
    writer.rows((">rank", ">caused wait", *each, ">traced to it", "<recurrent", "~late in", "~doing"), cells)
    writer.more(len(rows) - STRAGGLERS_SHOWN)
    writer.line(writer.text(CAUSED_WAIT, "dim"))


def _heatmap(report: Report, writer: Writer) -> None:
    found = heatmap(report)
    if found is None:
        return
    writer.heading("Wait caused / suffered, by rank and step")
    rows = [(str(rank), *map(cell_words, cells)) for rank, cells in found.rows]
    writer.rows((">rank", *(f">step {step}" for step in found.steps)), rows)
    if found.left_out:
        writer.line(writer.text(found.left_out, "dim"))


def cell_words(cell: RankStepEntry | None) -> str:
    """A cell as `60.48 ms / -`: the wait it caused and the one it suffered."""
    if cell is None:
        return units.NONE
    return " / ".join(units.duration(cell[key] or None) for key in ("wait_caused_ns", "wait_suffered_ns"))

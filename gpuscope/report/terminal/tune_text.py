"""What `gpuscope tune` found, on the terminal: the step before and after, what was tried, what to take along."""

from __future__ import annotations

from collections.abc import Sequence

from gpuscope.report.terminal.columns import Columns
from gpuscope.report.terminal.screen import Writer
from gpuscope.schema.tune_document import TriedChange, TuneDocument
from gpuscope.words import units

ENDED = {
    "done": "nothing is left to try",
    "nothing_applicable": "no suggestion can be followed from outside the script",
    "no_advice": "the run under the profiler, or its analysis, failed: its log is beside it",
    "budget": "the budget is used up",
    "interrupted": "interrupted",
}
LOSSES = {
    "equal": "runs with the same settings have equal losses, so a change of what is trained shows",
    "within_noise": "the losses of runs with the same settings differ by themselves: a change of what is trained shows "
    "only beyond that (a seed would help)",
    "seen_once": "losses were seen in one run only: what runs differ by themselves is not known",
    "not_seen": "no losses were seen: whether a change alters what is trained was not checked",
}


def headline(found: TuneDocument) -> str:
    """`Step 51.20 ms → 20.10 ms, -60.7 % (-62.1 to -59.3 %): 2 changes kept of 5 tried`."""
    many = kept(found)
    tried = f"{units.plural(len(found['changes']), 'change')} tried"
    before = units.duration(found["baseline_step_ns"])
    if not many:
        return f"Step {before}: nothing kept, {tried}"
    return (
        f"Step {before} → {units.duration(found['best_step_ns'])}, "
        f"{_percent(found['best_step_ns'] / found['baseline_step_ns'])}{_interval(found)}: {many} kept, {tried}"
    )


def kept(found: TuneDocument) -> int:
    """How many changes were."""
    return sum(row["kept"] for row in found["changes"])


def facts(found: TuneDocument) -> list[str]:
    """What the result rests on."""
    spent = units.long_duration(found["seconds"] * 1e9)
    known = found["noise_frac"]
    noise = "no settings ran twice, so what runs differ by was assumed"
    if known is not None:
        noise = f"two runs with the same settings differ by {units.share(known)} (standard deviation)"
    told = [
        f"{ENDED[found['ended']]}; {units.plural(found['runs'], 'run')} in {spent} (budget {found['budget']}): "
        f"{_took(found['seconds_of_runs'])} of the command, {_took(found['seconds_of_analysis'])} of analysis",
        f"{noise}; {LOSSES[found['losses']]}",
        f"recordings: {found['folder']}",
    ]
    if found["written"]:
        told.append(f"changed in the working directory meanwhile: {', '.join(found['written'])}")
    return told


def render(found: TuneDocument, writer: Writer) -> None:
    """Print the page."""
    writer.line(writer.text(headline(found), "bold green" if kept(found) else "bold yellow"))
    for line in facts(found):
        writer.line(line, indent=2, hang=2)
    if found["changes"]:
        writer.heading("Tried")
        writer.show(tried(found["changes"], writer))
        for row in found["changes"]:
            writer.line(writer.text(row["code"], "bold"), f"  {_settings(row)}: {_range(row)}{row['why']}", hang=2)
    if found["take"]:
        writer.heading("Take along")
        for line in found["take"]:
            writer.console.print(writer.text(line), soft_wrap=True)  # to be copied as it is
    if found["by_hand"]:
        writer.heading("By hand")
        for one in found["by_hand"]:
            writer.line(writer.text(one["code"], "bold"), f"  {one['action']}", hang=2)
            writer.line(f"{one['setting']}: {one['why']}", indent=2, hang=2)


def tried(rows: Sequence[TriedChange], writer: Writer) -> Columns:
    """The table of changes, also while it grows."""
    table = writer.table("<change", ">before", ">predicted", ">measured", ">ratio, 95 %", "<")
    for row in rows:
        times = (units.duration(row[key]) for key in ("before_ns", "predicted_ns", "measured_ns"))
        cells = (row["code"], *times, ratio(row))
        table.add_row(*map(writer.text, cells), writer.text(mark(row), "green" if row["kept"] else "dim"))
    return table


def mark(row: TriedChange) -> str:
    """What became of a change, in a word: what chance or the budget left open may be tried again."""
    if row["outcome"] in ("not_beyond_chance", "budget"):
        return "not settled"
    return "kept" if row["kept"] else "rolled back"


def _took(seconds: float) -> str:
    return units.long_duration(seconds * 1e9)


def _settings(row: TriedChange) -> str:
    return ", ".join(f"{one['name']}={one['value']}" for one in row["changes"])


def _range(row: TriedChange) -> str:
    low, high = (units.duration(row[key]) for key in ("low_ns", "high_ns"))
    return "" if row["low_ns"] is None else f"{low} to {high} predicted; "


def _percent(ratio: float) -> str:
    return units.signed(ratio - 1)


def _interval(found: TuneDocument) -> str:
    low, high = found["ratio_low"], found["ratio_high"]
    return "" if low is None or high is None else f" ({_percent(low)} to {_percent(high)})"


def ratio(row: TriedChange) -> str:
    """The 95 % interval of measured / before."""
    low, high = row["ratio_low"], row["ratio_high"]
    return units.NONE if low is None or high is None else f"{low:.3f}–{high:.3f}"

"""A comparison of two runs on the terminal: the verdict first, what is uncertain last."""

from __future__ import annotations

from collections.abc import Callable

from gpuscope.catalogue.cause_table import cause_label, cause_words
from gpuscope.report.terminal import platform_text
from gpuscope.report.terminal.screen import Writer
from gpuscope.schema.diff_document import CollectiveSide, Diff, DiffSide, Proof
from gpuscope.words import units
from gpuscope.words.vocabulary import BOUND, CLASSES, PARTS

SHOWN = 10
_STYLE = {
    "improvement": "bold green",
    "regression": "bold red",
    "neutral": "bold yellow",
    "different_jobs": "bold yellow",
}


def verdict_line(diff: Diff) -> str:
    """`Regression: step 100.0 ms → 110.0 ms, +10.0 % (+8.1 to +11.9 %)`."""
    verdict, step = diff["verdict"], diff["step"]
    word = verdict["result"].replace("_", " ").capitalize()
    if verdict["result"] == "neutral" and not verdict["conclusive"]:
        word = "Neutral (not conclusive)"
    if step["basis"] == "none":
        return word
    what = "step" if step["basis"] == "steps" else "window"
    times = f"{what} {units.duration(step['before_ns'])} → {units.duration(step['after_ns'])}"
    moved = f", {units.signed(step['change_frac'])}" if step["change_frac"] is not None else ""
    low, high = step["low_frac"], step["high_frac"]
    if verdict["result"] == "different_jobs":
        return f"Different jobs: {times}"
    bounds = f" ({units.signed(low)} to {units.signed(high)})" if low is not None and high is not None else ""
    return f"{word}: {times}{moved}{bounds}"


def render(diff: Diff, writer: Writer) -> None:
    """Print a comparison."""
    writer.line(writer.text(verdict_line(diff), _STYLE[diff["verdict"]["result"]]))
    writer.line(diff["verdict"]["why"], indent=2)
    writer.line("")
    for word, side in (("before", diff["before"]), ("after", diff["after"])):
        writer.line(f"{word:<8}", side_line(side), hang=8)
    _proofs(diff, writer)
    elsewhere = platform_text.platform_of(diff)
    if elsewhere is not None:
        platform_text.render(diff, elsewhere, writer)
    _breakdown(diff, writer)
    _causes(diff, writer)
    _collectives(diff, writer)
    if elsewhere is None or elsewhere["device_before"] == elsewhere["device_after"] or not elsewhere["comparable"]:
        _kernels(diff, writer)
        _operators(diff, writer)
    if diff["caveats"]:
        writer.heading("Differences between the runs")
        for caveat in diff["caveats"]:
            writer.line(caveat, hang=2)


def side_line(side: DiffSide) -> str:
    """One of the runs on a line: name, ranks, steps, verdict."""
    pieces = [units.crop(side["name"], 60), f"rank {units.ranks(side['ranks'])}" if side["ranks"] else "no ranks"]
    if side["step_ns"] is not None:
        bounds = ""
        if side["low_ns"] is not None and side["high_ns"] is not None:
            half = (side["high_ns"] - side["low_ns"]) / 2
            bounds = f" ± {units.duration(half)}"
        pieces.append(f"{units.plural(side['steps'], 'step')} of {units.duration(side['step_ns'])}{bounds}")
    bound = BOUND[side["bound_by"]].lower() if side["bound_by"] else "no verdict"
    pieces.append(bound.replace("cpu", "CPU") + (f": {cause_words(side['cause'])}" if side["cause"] else ""))
    return " · ".join(pieces)


def _proofs(diff: Diff, writer: Writer) -> None:
    if not diff["suggestions"]:
        return
    writer.heading("Predicted vs. measured")
    for proof in diff["suggestions"]:
        _proof(proof, writer)
    if all(proof["applied"] is None for proof in diff["suggestions"]):
        writer.line(writer.text("Which suggestion was applied is not recorded; name it with --suggestion.", "dim"))


_HELD = {
    "inside": "inside the range",
    "faster": "faster than the range",
    "slower": "slower than the range",
    None: "no step measured",
}


def _proof(proof: Proof, writer: Writer) -> None:
    mark = "applied: " if proof["applied"] else ""
    writer.line(mark, writer.text(proof["code"], "bold"), f"  {proof['action']}", hang=2)
    low, high = units.duration(proof["low_ns"]), units.duration(proof["high_ns"])
    writer.line(
        f"predicted {units.duration(proof['predicted_ns'])} ({low} to {high}), measured "
        f"{units.duration(proof['measured_ns'])}: {_HELD[proof['held']]}; predicted gain "
        f"{units.change(proof['predicted_gain_ns'])}, measured gain {units.change(proof['gained_ns'])}",
        indent=2,
    )


def _breakdown(diff: Diff, writer: Writer) -> None:
    if not diff["breakdown"]:
        return
    summed = diff["step"]["basis"] != "steps"
    writer.heading("What moved, all ranks summed" if summed else "What moved, per step and rank")
    rows = []
    labels = {part.key: part.label for part in PARTS}
    for row in diff["breakdown"]:
        before, after = (
            (row["total_before_ns"], row["total_after_ns"]) if summed else (row["before_ns"], row["after_ns"])
        )
        low, high = row["low_ns"], row["high_ns"]
        bounded = low is not None and high is not None
        interval = f"{units.change(low)} to {units.change(high)}" if bounded else units.NONE
        label = next(text for key, text in labels.items() if key == row["part"])
        rows.append((label, units.duration(before), units.duration(after), units.change(after - before), interval))
    writer.rows(("<part", ">before", ">after", ">change", ">95 % interval"), rows)


def _causes(diff: Diff, writer: Writer) -> None:
    rows = [row for row in diff["causes"] if row["change_ns"]][:SHOWN]
    if rows:
        writer.heading(f"Causes, per {_unit(diff)} and rank")
        cells = [
            (
                CLASSES[row["class"]] if row["class"] else units.NONE,
                cause_label(row["cause"]),
                units.duration(row["before_ns"]),
                units.duration(row["after_ns"]),
                units.change(row["change_ns"]),
            )
            for row in rows
        ]
        writer.rows(("<class", "<cause", ">before", ">after", ">change"), cells)
    for word, codes in (
        ("New findings", diff["findings"]["new"]),
        ("Findings gone", diff["findings"]["gone"]),
        ("Findings with higher severity", diff["findings"]["worse"]),
        ("Findings with lower severity", diff["findings"]["better"]),
    ):
        if codes:
            writer.line(f"{word}: {', '.join(codes)}", hang=2)


def _collectives(diff: Diff, writer: Writer) -> None:
    rows = diff["collectives"][:SHOWN]
    if not rows:
        return
    writer.heading(f"Collectives, per {_unit(diff)}")
    cells = []
    for row in rows:
        sides = row["before"], row["after"]
        cells.append(
            (
                row["op"],
                row["group"] or units.NONE,
                _pair(sides, lambda side: f"{side['count']:.4g}"),
                _pair(sides, lambda side: units.duration(side["wait_ns"])),
                _pair(sides, lambda side: units.duration(side["transfer_ns"])),
            )
        )
    writer.rows(("~operation", "~group", ">count", ">wait", ">transfer"), cells)


def _kernels(diff: Diff, writer: Writer) -> None:
    rows = [row for row in diff["kernels"] if row["change_ns"]]
    if not rows:
        return
    writer.heading(f"Kernels that moved most, per {_unit(diff)} and rank")
    cells = [
        (
            units.duration(row["before_ns"]),
            units.duration(row["after_ns"]),
            units.change(row["change_ns"]),
            units.both(f"{row['before_count']:.4g}", f"{row['after_count']:.4g}"),
            row["name"],
        )
        for row in rows[:SHOWN]
    ]
    writer.rows((">before", ">after", ">change", ">count", "~kernel"), cells)
    writer.more(len(rows) - SHOWN)


def _operators(diff: Diff, writer: Writer) -> None:
    rows = [row for row in diff.get("operators", []) if row["change_ns"]]
    if not rows:
        return
    on_device = all(row["before_device_ns"] is not None and row["after_device_ns"] is not None for row in rows)
    place = "device" if on_device else "host"
    writer.heading(f"Operators that moved most, on the {place}, per {_unit(diff)} and rank")
    cells = []
    for row in rows[:SHOWN]:
        counts = units.both(f"{row['before_count']:.4g}", f"{row['after_count']:.4g}")
        before, after = (
            (row["before_device_ns"], row["after_device_ns"])
            if on_device
            else (row["before_host_ns"], row["after_host_ns"])
        )
        change = units.change(row["change_ns"])
        cells.append((units.duration(before), units.duration(after), change, counts, row["name"]))
    writer.rows((">before", ">after", ">change", ">calls", "~operator"), cells)
    writer.more(len(rows) - SHOWN)


def _unit(diff: Diff) -> str:
    return "step" if diff["step"]["basis"] == "steps" else "window"


def _pair(sides: tuple[CollectiveSide | None, CollectiveSide | None], of: Callable[[CollectiveSide], str]) -> str:
    before, after = (of(side) if side else units.NONE for side in sides)
    return units.both(before, after)

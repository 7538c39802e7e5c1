"""A comparison of two runs on the terminal: the verdict first, what is uncertain last."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from gpuscope.catalogue.suggestion import cause_label, cause_words
from gpuscope.report.terminal.screen import ReportConsole, Writer
from gpuscope.schema.diff_document import (
    CollectiveSide,
    Diff,
    DiffSide,
    ExplainedChange,
    OperatorPair,
    OperatorSide,
    PlatformChange,
    Proof,
)
from gpuscope.words import units
from gpuscope.words.vocabulary import BOUND, CLASSES, PARTS

# Two platforms compared by operator, on the terminal: what explains the difference, then operator by operator.

PLATFORM_TEXT_SHOWN = 12
_SMALL = 0.0005
"""Share of the step below which rows are summed up in one."""
_WHAT = {
    "unmatched": "operators of one run only",
    "overlap": "kernels beside each other",
    "exposed_communication": "exposed communication",
    "exposed_memory": "exposed memory",
    "idle": "idle",
}
_EXPLAINED = ("what", "before", "after", "change", "work", "peak", "speed")
NOTE = "work: how much there is to do; peak: what the devices' peaks alone would change; speed: the rest"


def platform_of(diff: Diff) -> PlatformChange | None:
    """The comparison by operator, where the platform changed: else kernels keep their names and tell more."""
    found = diff.get("platform")
    return found if found is not None and found["changed"] else None


def heading_line(platform: PlatformChange) -> str:
    """`NVIDIA H100 80GB HBM3 → AMD Instinct MI300X VF · before: cuda runtime 12.4 · after: hip runtime 6.4`."""
    devices = [platform["device_before"], platform["device_after"]]
    pieces = [" → ".join(device or "device not recorded" for device in dict.fromkeys(devices))]
    rows = platform["versions"]
    pieces += [f"{row['name']} {row['before']} → {row['after']}" for row in rows if row["before"] and row["after"]]
    for word, own, other in (("before", "before", "after"), ("after", "after", "before")):
        alone = [f"{row['name']} {row[own]}" for row in rows if not row[other]]  # type: ignore[literal-required]
        pieces += [f"{word}: {', '.join(alone)}"] if alone else []
    return " · ".join(pieces)


def basis_line(platform: PlatformChange) -> str:
    """What operators are matched by, and what limits that."""
    if not platform["comparable"]:
        return f"The runs can't be compared by operator: {platform['why']}"
    said = f"Matched by {', '.join(platform['by'])}: {units.share(platform['matched_frac'])} of the compute time"
    return said + (f"; {platform['why']}" if platform["why"] else "")


def explained_rows(diff: Diff, platform: PlatformChange) -> list[ExplainedChange]:
    """The largest first; what is too small to be read is summed up in the last, so that all still sum to the change."""
    least = _SMALL * max(diff["step"]["before_ns"] or 0, diff["step"]["after_ns"] or 0)
    shown = [row for row in platform["explained"] if abs(row["change_ns"]) >= least]
    small = [row for row in platform["explained"] if abs(row["change_ns"]) < least]
    if small:
        before, after = (sum(row[key] for row in small) for key in ("before_ns", "after_ns"))
        shown.append(
            {
                "what": "operators",
                "category": f"{len(small)} smaller",
                "before_ns": before,
                "after_ns": after,
                "change_ns": after - before,
                "work_ns": None,
                "peak_ns": None,
                "speed_ns": None,
            }
        )
    return shown


def explained_table(diff: Diff, platform: PlatformChange) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """Titles and rows: what, before, after, change, and of its three parts those that any row has."""
    cells = [_explained(row) for row in explained_rows(diff, platform)]
    told = [place for place in range(len(_EXPLAINED)) if any(row[place] != units.NONE for row in cells)]
    return tuple(_EXPLAINED[place] for place in told), [tuple(row[place] for place in told) for row in cells]


def _explained(row: ExplainedChange) -> tuple[str, ...]:
    label = row["category"] or "other" if row["what"] == "operators" else _WHAT[row["what"]]
    parts = (units.change(row[key]) if row[key] else units.NONE for key in ("work_ns", "peak_ns", "speed_ns"))
    return (
        label,
        units.duration(row["before_ns"]),
        units.duration(row["after_ns"]),
        units.change(row["change_ns"]),
        *parts,
    )


PAIRS = ("before", "after", "% step", "achieved", "% peak", "calls", "operator")
"""Titles of the cells of `pair_cells`."""


def pair_cells(pair: OperatorPair) -> tuple[str, ...]:
    """An operator in both runs."""
    sides = pair["before"], pair["after"]
    kinds = {side["bound"] for side in sides if side and side["bound"]}
    return (
        *(units.duration(side["dur_ns"]) if side else units.NONE for side in sides),
        units.both(*(_percent(side and side["share_frac"]) for side in sides)),
        units.both(*(_rate(side, kinds == {"bytes"}) if side else units.NONE for side in sides)),
        units.both(*(_percent(side and side["peak_frac"]) for side in sides)),
        units.both(*(f"{side['calls']:.4g}" if side else "0" for side in sides)),
        pair_name(pair),
    )


def pair_name(pair: OperatorPair) -> str:
    """`Linear mm 8944×1024, 1024×2816`."""
    if pair["matched_by"] == "module":
        return f"{pair['module']}: other operators"
    inside = f"{pair['module']} " if pair["module"] else ""
    return f"{inside}{pair['operator'].removeprefix('aten::') or 'no operator recorded'} {pair['shapes']}".rstrip()


def platform_text_render(diff: Diff, platform: PlatformChange, writer: Writer) -> None:
    """Print the comparison by operator."""
    writer.heading("Another platform")
    writer.line(heading_line(platform), hang=2)
    writer.line(basis_line(platform), hang=2)
    if not platform["comparable"]:
        return
    writer.heading(f"What explains {units.change(diff['step']['change_ns'])}, per step and rank")
    titles, rows = explained_table(diff, platform)
    writer.rows((f"<{titles[0]}", *(f">{title}" for title in titles[1:])), rows)
    writer.line(writer.text(NOTE, "dim"), hang=2)
    writer.heading("Operators, the largest change first")
    writer.rows(
        (*(f">{title}" for title in PAIRS[:-1]), f"~{PAIRS[-1]}"),
        map(pair_cells, platform["pairs"][:PLATFORM_TEXT_SHOWN]),
    )
    writer.more(len(platform["pairs"]) - PLATFORM_TEXT_SHOWN)


def _rate(side: OperatorSide, by_bytes: bool) -> str:
    value = side["bytes_per_s" if by_bytes else "flops_per_s"]
    if value is None:
        return units.NONE
    scale, unit = (1e12, "T") if value >= 1e12 else (1e9, "G")
    return f"{value / scale:.3g} {unit}{'B/s' if by_bytes else 'FLOP/s'}"


def _percent(frac: float | None) -> str:
    return units.NONE if frac is None else f"{100 * frac:.0f}"


# The terminal form of `gpuscope info`.

_NAMES = {"device_name": "model", "host": "host", "backend": "backend"}
"""Names of a rank, where any rank has them."""


def info_text_render(facts: dict[str, Any], writer: Writer | None = None) -> None:
    """Print the facts of a trace: sources, ranks, tables, what is missing, what went wrong."""
    writer = writer or Writer(ReportConsole())
    for source in facts["sources"]:
        version = f" {source['format_version']}" if source["format_version"] else ""
        events = units.plural(source["events"], "event")
        writer.line(f"{source['path']}: {source['format']}{version}, {events}", hang=2)
    _ranks(facts["ranks"], writer)
    rows = ", ".join(f"{units.count(count)} {name}" for name, count in facts["tables"].items() if count)
    writer.line("")
    writer.line(f"Tables: {rows or 'none'}", hang=2)
    _list("Missing", facts["missing"], writer)
    problems = [f"{p['severity']} {p['code']} ({units.count(p['count'])}): {p['message']}" for p in facts["problems"]]
    _list("Problems", problems, writer)


def _ranks(ranks: list[dict[str, Any]], writer: Writer) -> None:
    told = [key for key in _NAMES if any(entry[key] for entry in ranks)]
    rows = []
    for entry in ranks:
        steps = entry["steps"]
        device = ("CPU" if entry["device_events"] else units.NONE) if entry["device"] is None else str(entry["device"])
        rows.append(
            (
                str(entry["rank"]),
                device,
                *(entry[key] or units.NONE for key in told),
                units.count(entry["device_events"]),
                units.duration(entry["window_ns"]),
                f"{len(steps)} ({steps[0]}..{steps[-1]})" if steps else "none",
            )
        )
    writer.line("")
    writer.rows((">rank", ">device", *(f"~{_NAMES[key]}" for key in told), ">events", ">window", ">steps"), rows)
    for basis in sorted({entry["steps_basis"] for entry in ranks if entry["steps_basis"]}):
        writer.line(f"Steps from {basis}.")


def _list(title: str, lines: list[str], writer: Writer) -> None:
    if lines:
        writer.line("")
        writer.line(title)
        for line in lines:
            writer.line("- ", line, indent=2, hang=2)


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
    elsewhere = platform_of(diff)
    if elsewhere is not None:
        platform_text_render(diff, elsewhere, writer)
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

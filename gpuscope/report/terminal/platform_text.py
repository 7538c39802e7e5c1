"""Two platforms compared by operator, on the terminal: what explains the difference, then operator by operator."""

from __future__ import annotations

from gpuscope.report.terminal.screen import Writer
from gpuscope.schema.diff_document import Diff, ExplainedChange, OperatorPair, OperatorSide, PlatformChange
from gpuscope.words import units

SHOWN = 12
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


def render(diff: Diff, platform: PlatformChange, writer: Writer) -> None:
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
    writer.rows((*(f">{title}" for title in PAIRS[:-1]), f"~{PAIRS[-1]}"), map(pair_cells, platform["pairs"][:SHOWN]))
    writer.more(len(platform["pairs"]) - SHOWN)


def _rate(side: OperatorSide, by_bytes: bool) -> str:
    value = side["bytes_per_s" if by_bytes else "flops_per_s"]
    if value is None:
        return units.NONE
    scale, unit = (1e12, "T") if value >= 1e12 else (1e9, "G")
    return f"{value / scale:.3g} {unit}{'B/s' if by_bytes else 'FLOP/s'}"


def _percent(frac: float | None) -> str:
    return units.NONE if frac is None else f"{100 * frac:.0f}"

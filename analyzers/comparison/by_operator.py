"""Two runs on different GPUs or software, matched by module, operator and input shapes: kernels have other names
there, and other operators may stand for the same work."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Literal

from gpuscope import when_used
from gpuscope.hardware.device_peaks import memory_bandwidth
from gpuscope.schema.call_tree_section import OperatorWorkEntry
from gpuscope.schema.diff_document import (
    Change,
    ExplainedChange,
    OperatorPair,
    OperatorSide,
    PartChange,
    PlatformChange,
    VersionChange,
)
from gpuscope.schema.document import Report
from gpuscope.sources.run_manifest import recorded_command
from gpuscope.when_used import dataclass
from gpuscope.words import units

# Whether two reports are of one job: by its size, the kind of program, and the work that its steps repeat.
#
# A change of precision, compilation or fusion renames kernels, and a parallelism operators; the same model under a
# change
# still shares much of one or the other. Jobs that share little of both run other work.

DIFFERENT, ALIKE = 1 / 3, 1 / 2
"""Runs that share less than the one of their work by time are of different jobs; from the other on they are alike
enough to be compared unasked."""
_ARGUMENTS = when_used.pattern(r"[<(]")


def differences(one: Report, other: Report, *, one_command: bool = False) -> list[str]:
    """What makes two runs different jobs; empty where they may be one. Runs of `one_command` do the same work, though
    little of it may be in both traces: what moves to loader workers leaves them."""
    found = []
    sizes = [_recorded_size(report) for report in (one, other)]
    if None not in sizes and sizes[0] != sizes[1]:
        found.append(f"{sizes[0]} ranks before, {sizes[1]} after")
    programs = [report["trace"].get("program") for report in (one, other)]
    if None not in programs and programs[0] != programs[1]:
        found.append(f"a {programs[0]} program before, a {programs[1]} one after")
    shared = shared_work(one, other)
    if shared is not None and shared < DIFFERENT and not one_command:
        found.append(f"they share {units.share(shared)} of their work by time (kernels and operators)")
    return found


def same_command(one: Report, other: Report) -> bool:
    """Whether the run folders of both name the same command."""
    named = [
        recorded_command([Path(source["path"]) for source in report["trace"]["sources"]]) for report in (one, other)
    ]
    return bool(named[0]) and named[0] == named[1]


def is_alike(one: Report, other: Report) -> bool:
    """Whether nothing speaks against one job, and what is known of their work for it."""
    shared = shared_work(one, other)
    return not differences(one, other) and (shared is None or shared >= ALIKE)


def shared_work(one: Report, other: Report) -> float | None:
    """The share of their time in compute kernels that two runs spend in the same ones, or in operators if that is more;
    None where neither can be compared."""
    kernels = [
        _shares(
            (_ARGUMENTS.split(row["name"].removeprefix("void "))[0], row["dur_ns"])
            for row in report["kernels"]
            if row["category"] not in ("communication", "memory")
        )
        for report in (one, other)
    ]
    operators = [
        _shares((row["name"], row["host_self_ns"]) for row in report.get("operators", [])) for report in (one, other)
    ]
    found = [_overlap(*pair) for pair in (kernels, operators) if all(pair)]
    return max(found, default=None)


def _recorded_size(report: Report) -> int | None:
    """Ranks of the job, where that is recorded and not assumed."""
    trace = report["trace"]
    return None if trace.get("world_basis") == "assumed" else trace["world_size"]


def _shares(spent: Iterable[tuple[str, int]]) -> dict[str, float]:
    found: dict[str, float] = {}
    for name, ns in spent:
        found[name] = found.get(name, 0.0) + ns
    whole = sum(found.values())
    return {name: ns / whole for name, ns in found.items()} if whole else {}


def _overlap(one: Mapping[str, float], other: Mapping[str, float]) -> float:
    return sum(min(share, other.get(name, 0.0)) for name, share in one.items())


MatchedBy = Literal["operator", "within", "module"]
_Key = tuple[str, ...]


@dataclass(frozen=True)
class _Side:
    """A run's operators, and what makes their sums times per step and rank."""

    rows: tuple[OperatorWorkEntry, ...]
    ranks: int
    scale: float
    step: int
    device: str | None

    def time(self, rows: Iterable[OperatorWorkEntry]) -> int:
        return round(sum(row["dur_ns"] for row in rows) * self.scale)


@dataclass(frozen=True)
class _Match:
    """Rows that stand for the same work; one side is empty where only the other run has it."""

    by: MatchedBy | None
    before: tuple[OperatorWorkEntry, ...]
    after: tuple[OperatorWorkEntry, ...]


def platform(before: Report, after: Report, step: Change, breakdown: Sequence[PartChange]) -> PlatformChange | None:
    """The comparison by operator; None where a report has no kernels by operator."""
    old, new = _side(before, step["before_ns"]), _side(after, step["after_ns"])
    if old is None or new is None or step["change_ns"] is None:
        return None
    modules, shapes = (all(any(row[key] for row in side.rows) for side in (old, new)) for key in ("module", "shapes"))
    matches = _matched(old.rows, new.rows, modules, shapes)
    share = min(
        _share(old, [match.before for match in matches if match.by]),
        _share(new, [match.after for match in matches if match.by]),
    )
    comparable = share >= DIFFERENT
    versions = _versions(before, after)
    updated = any(row["before"] and row["after"] for row in versions)
    pairs = [_pair(match, old, new) for match in matches] if comparable else []
    return {
        "changed": updated or bool(old.device and new.device and old.device != new.device),
        "device_before": old.device,
        "device_after": new.device,
        "versions": versions,
        "by": [name for name, known in _recorded(modules, shapes) if known],
        "matched_frac": share,
        "comparable": comparable,
        "why": _why(old, new, share, shapes),
        "explained": _explained(matches, old, new, step["change_ns"], breakdown) if comparable else [],
        "pairs": sorted(pairs, key=lambda pair: -abs(pair["change_ns"])),
    }


def _recorded(modules: bool, shapes: bool) -> tuple[tuple[Literal["module", "operator", "shapes"], bool], ...]:
    return ("module", modules), ("operator", True), ("shapes", shapes)


def _side(report: Report, step: int | None) -> _Side | None:
    entries, rows = report.get("compute", []), report.get("operator_work", [])
    mean = sum(entry["window_ns"] / entry["steps"] for entry in entries)
    if not rows or not step or not mean:
        return None
    devices = sorted({entry["device_name"] for entry in entries if entry["device_name"]})
    return _Side(tuple(rows), len(entries), step / mean, step, ", ".join(devices) or None)


def _versions(before: Report, after: Report) -> list[VersionChange]:
    old, new = (report["trace"].get("setup", {}).get("versions", {}) for report in (before, after))
    return [
        {"name": name, "before": old.get(name), "after": new.get(name)}
        for name in sorted({*old, *new})
        if old.get(name) != new.get(name)
    ]


def _why(old: _Side, new: _Side, share: float, shapes: bool) -> str:
    bare = [word for word, side in (("before", old), ("after", new)) if not any(row["operator"] for row in side.rows)]
    if bare:
        return (
            f"the run {' and the run '.join(bare)} recorded no operators: record with the CPU activity of "
            "torch.profiler, or emit_nvtx under nsys"
        )
    how = "" if shapes else "shapes are not recorded in both (record_shapes=True), so operators are matched by name"
    if share >= DIFFERENT:
        return how
    reason = how or "another model, batch or sequence length"
    return f"only {units.share(share)} of the compute time is in operators that both runs have: {reason}"


def _share(side: _Side, matched: Iterable[tuple[OperatorWorkEntry, ...]]) -> float:
    whole = sum(row["dur_ns"] for row in side.rows)
    return sum(row["dur_ns"] for rows in matched for row in rows) / whole if whole else 0.0


def _matched(
    old: Sequence[OperatorWorkEntry], new: Sequence[OperatorWorkEntry], modules: bool, shapes: bool
) -> list[_Match]:
    """By ever coarser keys, each of what the finer ones left; the last are of one run alone."""

    def key(*names: str) -> Callable[[OperatorWorkEntry], _Key | None]:
        recorded = [name for name in names if (modules or name != "module") and (shapes or "shapes" not in name)]

        def of(row: OperatorWorkEntry) -> _Key | None:
            # What an operator runs in may be a module in one run only; without a name nothing is the same.
            found = tuple(row[name] or "" for name in recorded)  # type: ignore[literal-required]
            named = [name for name in recorded if "shapes" not in name]
            return found if row[named[-1]] else None  # type: ignore[literal-required]

        return of

    own, around = ("operator", "shapes"), ("within", "within_shapes")
    levels: list[tuple[MatchedBy, Callable[[OperatorWorkEntry], _Key | None]]] = [
        ("operator", key("module", *around, *own)),
        ("operator", key(*around, *own)),
        ("within", key("module", *around)),
        ("within", key(*around)),
        ("operator", key(*own)),
    ]
    if modules:
        levels.append(("module", key("module")))
    found: list[_Match] = []
    left = list(old), list(new)
    for by, of in levels:
        groups: dict[_Key, tuple[list[OperatorWorkEntry], list[OperatorWorkEntry]]] = defaultdict(lambda: ([], []))
        rest: tuple[list[OperatorWorkEntry], list[OperatorWorkEntry]] = [], []
        for place, rows in enumerate(left):
            for row in rows:
                name = of(row)
                (rest[place] if name is None else groups[name][place]).append(row)
        for first, second in groups.values():
            if first and second:
                found.append(_Match(by, tuple(first), tuple(second)))
            else:
                rest[0].extend(first)
                rest[1].extend(second)
        left = rest
    return [*found, *(_Match(None, (row,), ()) for row in left[0]), *(_Match(None, (), (row,)) for row in left[1])]


def _pair(match: _Match, old: _Side, new: _Side) -> OperatorPair:
    longest = max(match.before or match.after, key=lambda row: row["dur_ns"])
    whole = match.by == "within"
    name = longest["within"] if whole else longest["operator"]
    return {
        "module": longest["module"],
        "operator": name or "",
        "shapes": longest["within_shapes" if whole else "shapes"],
        "category": longest["category"],
        "matched_by": match.by,
        "before": _operator(match.before, old),
        "after": _operator(match.after, new),
        "change_ns": new.time(match.after) - old.time(match.before),
    }


def _operator(rows: tuple[OperatorWorkEntry, ...], side: _Side) -> OperatorSide | None:
    if not rows:
        return None
    spent, flops, moved = (sum(row[key] for row in rows) for key in ("dur_ns", "flops", "bytes"))
    needed, dur, bandwidth = _needed(rows), side.time(rows), memory_bandwidth(side.device or "")
    by_bytes = not flops or (needed and bandwidth and moved / bandwidth * 1e9 >= 0.999 * needed)
    return {
        "calls": sum(row["calls"] for row in rows) / side.ranks,
        "kernels": sum(row["kernels"] for row in rows) / side.ranks,
        "kernel": max(rows, key=lambda row: row["dur_ns"])["kernel"],
        "dur_ns": dur,
        "share_frac": dur / side.step,
        "flops_per_s": flops / spent * 1e9 if flops and spent else None,
        "bytes_per_s": moved / spent * 1e9 if moved and spent else None,
        "bound": "bytes" if moved and by_bytes else "flops" if flops else None,
        "peak_frac": needed / spent if needed is not None and spent else None,
    }


def _needed(rows: Iterable[OperatorWorkEntry]) -> int | None:
    """ns at the device's peaks; None where that is not known of a row."""
    found = [row["peak_ns"] for row in rows]
    return None if None in found else sum(one or 0 for one in found) or None


def _reasons(match: _Match, old: _Side, new: _Side) -> tuple[int, int] | None:
    """What more work and another peak changed; None where it can't be told."""
    need = _needed(match.before), _needed(match.after)
    done: list[float] = []
    for key in ("flops", "bytes", *(["calls"] if match.by == "operator" else [])):
        done = [
            sum(row[key] for row in rows) / side.ranks  # type: ignore[literal-required]
            for rows, side in ((match.before, old), (match.after, new))
        ]
        if all(done):
            break
    else:
        return None
    before, more = old.time(match.before), done[1] / done[0]
    if need[0] is None or need[1] is None:
        return round(before * (more - 1)), 0
    slower = need[1] / new.ranks / (need[0] / old.ranks) / more
    return round(before * (more - 1)), round(before * more * (slower - 1))


def _explained(
    matches: Sequence[_Match], old: _Side, new: _Side, change: int, breakdown: Sequence[PartChange]
) -> list[ExplainedChange]:
    """Sums exactly to the change: what is left of it is how much more of the kernels' time overlaps."""
    rows: dict[tuple[str, str | None], ExplainedChange] = {}
    for match in matches:
        category = max(match.before or match.after, key=lambda row: row["dur_ns"])["category"] if match.by else None
        what: Literal["operators", "unmatched"] = "operators" if match.by else "unmatched"
        _add(rows, what, category, old.time(match.before), new.time(match.after), _reasons(match, old, new))
    for part in breakdown:
        if part["part"] != "compute":
            _add(rows, part["part"], None, part["before_ns"], part["after_ns"], None)  # type: ignore[arg-type]
    before = sum(row["before_ns"] for row in rows.values())
    after = sum(row["after_ns"] for row in rows.values())
    _add(rows, "overlap", None, old.step - before, old.step - before + change - (after - before), None)
    return sorted(
        (row for row in rows.values() if row["before_ns"] or row["after_ns"]), key=lambda row: -abs(row["change_ns"])
    )


def _add(
    rows: dict[tuple[str, str | None], ExplainedChange],
    what: Literal["operators", "unmatched", "overlap", "exposed_communication", "exposed_memory", "idle"],
    category: str | None,
    before: int,
    after: int,
    reasons: tuple[int, int] | None,
) -> None:
    empty: ExplainedChange = {
        "what": what,
        "category": category,
        "before_ns": 0,
        "after_ns": 0,
        "change_ns": 0,
        "work_ns": None,
        "peak_ns": None,
        "speed_ns": None,
    }
    row = rows.setdefault((what, category), empty)
    row["before_ns"] += before
    row["after_ns"] += after
    row["change_ns"] += after - before
    if what == "operators":
        work, peak = reasons or (0, 0)
        row["work_ns"] = (row["work_ns"] or 0) + work
        row["peak_ns"] = (row["peak_ns"] or 0) + peak
        row["speed_ns"] = (row["speed_ns"] or 0) + after - before - work - peak

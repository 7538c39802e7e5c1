"""Where ranks compile unlike one another."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

from gpuscope.schema.compilation_section import CompileEntry, DivergenceEntry
from gpuscope.trace.trace import Trace
from gpuscope.words import units

Place = tuple[str, int, str]
"""File, line and name of a compiled function."""


def divergences(
    trace: Trace, compiles: Sequence[CompileEntry], stage_of: Mapping[int, int | None]
) -> list[DivergenceEntry]:
    """Functions that ranks of one pipeline stage compile unlike one another, collectives that differ first."""
    by_stage: dict[int | None, set[int]] = defaultdict(set)
    for one in compiles:
        by_stage[stage_of.get(one["rank"])].add(one["rank"])
    schedules = _schedules(trace)
    found: list[DivergenceEntry] = []
    for ranks in by_stage.values():
        found += _unlike("schedule", schedules, ranks, needs_all=False)
        found += _unlike("compilations", _reasons(compiles), ranks, needs_all=True)
    return sorted(found, key=lambda one: (one["kind"] != "schedule", one["file"] or "", one["line"] or 0))


def _reasons(compiles: Sequence[CompileEntry]) -> dict[Place, dict[int, str]]:
    """Per function and rank how often it was compiled, and why again."""
    told: dict[Place, dict[int, list[str]]] = defaultdict(lambda: defaultdict(list))
    for one in compiles:
        place = (one["file"] or "", one["line"] or 0, one["function"] or "")
        told[place][one["rank"]].append(one["failed"] or one["reason"] or "first")
    return {place: {rank: _counted(reasons) for rank, reasons in own.items()} for place, own in told.items()}


def _counted(reasons: Sequence[str]) -> str:
    return f"{units.plural(len(reasons), 'compilation')}: {'; '.join(dict.fromkeys(reasons))}"


def _schedules(trace: Trace) -> dict[Place, dict[int, str]]:
    """Per function and rank the collectives of its compiled code, where they were logged."""
    found: dict[Place, dict[int, str]] = defaultdict(dict)
    for row in trace.rows("compilations"):
        if row["schedule"] is not None:
            own = found[row["file"] or "", row["line"] or 0, row["function"] or ""]
            before = own.get(row["rank"])
            own[row["rank"]] = f"{before} then {row['schedule']}" if before else row["schedule"]
    return found


def _unlike(
    kind: str, told: Mapping[Place, Mapping[int, str]], ranks: Iterable[int], needs_all: bool
) -> list[DivergenceEntry]:
    """Entries of the functions that not all of some ranks have alike; with `needs_all` one that lacks it differs."""
    found: list[DivergenceEntry] = []
    for (file, line, function), own in told.items():
        groups: dict[str, list[int]] = defaultdict(list)
        for rank in sorted(ranks):
            if rank in own or needs_all:
                groups[own.get(rank, "never compiled")].append(rank)
        if len(groups) > 1:
            ordered = sorted(groups.items(), key=lambda item: (-len(item[1]), item[1]))
            found.append({
                "kind": kind, "file": file or None, "line": line or None, "function": function or None,
                "groups": [group for _, group in ordered], "what": [what for what, _ in ordered],
            })  # fmt: skip
    return found

"""Whether two reports are of one job: by its size, the kind of program, and the work that its steps repeat.

A change of precision, compilation or fusion renames kernels, and a parallelism operators; the same model under a change
still shares much of one or the other. Jobs that share little of both run other work.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

from gpuscope import when_used
from gpuscope.schema.document import Report
from gpuscope.sources.run_manifest import recorded_command
from gpuscope.words import units

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

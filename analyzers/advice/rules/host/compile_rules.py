"""torch.compile: what makes it compile again, what breaks its graphs, ranks that compile unlike one another."""

from __future__ import annotations

from collections.abc import Iterator

from gpuscope import when_used
from gpuscope.analyzers.advice.framework_settings import config, python
from gpuscope.analyzers.advice.rule import Case, Proposal, Rule
from gpuscope.analyzers.advice.settings import torch_settings
from gpuscope.catalogue.suggestion import Suggestion
from gpuscope.report.view.per_step import per_step_ns
from gpuscope.schema.compilation_section import CompileEntry, GraphBreakEntry
from gpuscope.schema.document import FindingEntry, Setting
from gpuscope.when_used import dataclass
from gpuscope.words import units
from gpuscope.words.compiled_frames import frame_place, in_library


@dataclass(frozen=True)
class StableGuard(Suggestion):
    """What a guard is about no longer changes, or is dynamic."""

    code = "stable_guard"
    answers = ("recompiling",)
    sets = "`torch._dynamo.mark_dynamic`, `torch.compile(dynamic=True)`, `torch._dynamo.config.specialize_float`"
    action = "Compile {place} once for what changes there"
    why = "its guard failed: {guard}; compiling again took {took}"
    why_not = "{bound}"
    risk = "code for dynamic sizes may run more slowly; padding to a few sizes adds computation"
    verify = "record again with --compile-logs: the finding `recompiling` is gone"

    place: str
    guard: str
    took_ns: int
    saved_ns: int

    @property
    def took(self) -> str:
        return units.duration(self.took_ns)

    @property
    def bound(self) -> str:
        if not self.saved_ns:
            return "no judged step compiles again: what it takes of others is no part of the step"
        return f"no more than the {units.duration(self.saved_ns)} that it takes of a judged step can be saved"


@dataclass(frozen=True)
class WholeGraph(Suggestion):
    """Code that torch.compile can take as one graph."""

    code = "whole_graph"
    answers = ("graph_break",)
    sets = "the setting or the change that torch's hint for the break names"
    action = "Keep the compiled graph whole at {place}"
    why = "it breaks there: {reason}; {explanation}"
    why_not = "{bound}; what fusing over the break saves is not known"
    risk = "what is moved behind the compiled call runs later"
    verify = "record again with --compile-logs: no graph break there"

    place: str
    reason: str
    explanation: str
    idle_ns: int | None

    @property
    def subject(self) -> str:
        return self.place

    @property
    def bound(self) -> str:
        if self.idle_ns is None:
            return "without ranges of compiled regions in a trace its cost is not known"
        if not self.idle_ns:
            return "the device does not idle there: fusion alone can gain"
        return f"no more than the {units.duration(self.idle_ns)} per step that the device idles there can be saved"


@dataclass(frozen=True)
class AlikeCompiled(Suggestion):
    """All ranks compile the same code at the same time."""

    code = "alike_compiled"
    answers = ("compile_divergence",)
    sets = "the same inputs and the same branches on all ranks before compiling"
    action = "Make all ranks compile {place} alike"
    why = "{message}"
    why_not = "a rank that compiles alone makes the others wait, or hang; the replay does not know steps without it"
    risk = "padding every rank's batch to the largest adds computation"
    verify = "record again with --compile-logs on all ranks: the finding `compile_divergence` is gone"

    place: str


def propose(case: Case, finding: FindingEntry) -> Iterator[Proposal]:
    """What answers the finding, by the guard that failed or the reason of the break."""
    section = case.report.get("compilation")
    if section is None:
        return
    if finding["code"] == "compile_divergence":
        first = section["divergence"][0]
        place = frame_place(first["function"], first["file"], first["line"])
        yield Proposal(finding, AlikeCompiled(place), config("inputs and branches", "the same on all ranks"))
    elif finding["code"] == "recompiling":
        again = [one for one in section["compiles"] if one["recompiled"] and one["reason"]]
        if again:
            yield _stable(case, finding, again)
    else:
        for one in _worth(section["graph_breaks"])[:MOST]:
            place = frame_place(None, one["file"], one["line"])
            told = WholeGraph(place, one["reason"], one["explanation"] or "", one["idle_ns_per_step"])
            yield Proposal(finding, told, _for_break(one, place))


def _worth(breaks: list[GraphBreakEntry]) -> list[GraphBreakEntry]:
    """Those that somebody can mend: not those of libraries at which nothing idles."""
    return [one for one in breaks if one["idle_ns_per_step"] or not in_library(one["file"])]


MOST = 3
"""Lines at which graphs break that have a suggestion of their own."""


def _stable(case: Case, finding: FindingEntry, again: list[CompileEntry]) -> Proposal:
    # Inner frames fail on what outer ones computed: the first guard in time is about the user's own input.
    first = min(again, key=lambda one: (in_library(one["file"]), one["start_ns"] or 0))
    place, guard = frame_place(first["function"], first["file"], first["line"]), first["reason"] or ""
    took = sum(one["dur_ns"] or 0 for one in again)
    saved = per_step_ns(finding["share_frac"], case.step_ns) or 0
    return Proposal(finding, StableGuard(place, guard, took, saved), _for_guard(guard))


_SIZE = when_used.pattern(r"tensor '(?P<name>\w+)' size mismatch at index (?P<axis>\d+)")
_FLOAT = when_used.pattern(r"== -?\d*\.\d+|<class 'float'>")


def _for_guard(guard: str) -> Setting:
    """What keeps a guard from failing, by what it is about."""
    found = _SIZE.search(guard)
    if found and not found["name"].startswith("_"):
        return torch_settings.MARK_DYNAMIC.to(f"{found['name']}, {found['axis']}")
    if _FLOAT.search(guard):
        return torch_settings.SPECIALIZE_FLOAT.to("False")
    if "grad_mode" in guard:
        return torch_settings.NO_GRAD.to("around every call of it, or around none")
    if "dtype mismatch" in guard or "requires_grad mismatch" in guard:
        return python("inputs", "always of the same dtype and requires_grad")
    return torch_settings.COMPILE_DYNAMIC.to("True")


_HINTED = when_used.pattern(r"`(?P<name>torch\._dynamo\.config\.\w+) = (?P<value>\w+)`")
_BUILTIN = when_used.pattern(r"builtin(?: operator)? `(?P<name>[\w.]+?)\.?`")


def _for_break(one: GraphBreakEntry, place: str) -> Setting:
    """What keeps a graph whole: the setting that torch's hint names, else what answers the usual reasons."""
    if found := _HINTED.search(one["hint"] or ""):
        return python(found["name"], found["value"])
    if "logging" in one["reason"]:
        return torch_settings.IGNORE_LOGGING.to("the logger's method, added")
    builtin = _BUILTIN.search(f"{one['reason']} {one['explanation'] or ''}")
    if builtin and builtin["name"] == "print":
        return torch_settings.REORDER_LOGGING.to("print, added")
    if "branching" in one["reason"].lower():
        return torch_settings.WHERE.to(f"or torch.cond, in place of the branch at {place}")
    if "graph_break()" in one["reason"]:
        return torch_settings.GRAPH_BREAK.to(f"taken out at {place}")
    if builtin:
        return python(builtin["name"], f"called outside of the compiled function, not at {place}")
    return config(place, (one["hint"] or "the code there outside of the compiled function").rstrip("."))


RULE = Rule("compile", (StableGuard, WholeGraph, AlikeCompiled), propose, place=105)

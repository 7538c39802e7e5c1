"""The section `compilation` in words: what torch.compile took of each rank, where graphs break, what differs."""

from __future__ import annotations

from gpuscope.report.terminal.screen import Writer
from gpuscope.schema.compilation_section import CompilationSection, CompileEntry, DivergenceEntry
from gpuscope.schema.document import Report
from gpuscope.when_used import dataclass
from gpuscope.words import units
from gpuscope.words.compiled_frames import frame_place

ROWS = 10


@dataclass(frozen=True)
class Line:
    """What happened at one place, over all ranks and times."""

    kind: str
    place: str
    ranks: list[int]
    times: int
    cost: str
    why: str


def section(report: Report, writer: Writer) -> None:
    """Nothing without logs of torch.compile."""
    if "compilation" not in report:
        return
    compilation = report["compilation"]
    writer.heading("torch.compile")
    for sentence in sentences(compilation):
        writer.line(sentence, hang=2)
    found = lines(compilation)
    rows = [
        (line.kind, line.place, units.ranks(line.ranks), str(line.times), line.cost, line.why) for line in found[:ROWS]
    ]
    writer.rows(("<what", "<where", "<ranks", ">times", ">cost", "~why"), rows)
    if len(found) > ROWS:
        writer.line(writer.text(f"and {units.plural(len(found) - ROWS, 'more line')} (--html, --json)", "dim"))


def sentences(compilation: CompilationSection) -> list[str]:
    """How much was compiled, and how ranks differ."""
    ranks = compilation["ranks"]
    longest = max(ranks, key=lambda one: one["compile_ns"])
    inside = [one["in_steps_ns"] for one in ranks if one["in_steps_ns"] is not None]
    of_rank = f", most on rank {longest['rank']}" if len(ranks) > 1 else ""
    compiles = units.plural(sum(one["compiles"] for one in ranks), "compilation")
    took = f"{compiles} on {units.rank_words([one['rank'] for one in ranks])}: {units.duration(longest['compile_ns'])}"
    within = f"; {units.duration(max(inside))} within recorded steps" if inside else ""
    told = [took + of_rank + within]
    return told + [_unlike(one) for one in compilation["divergence"]]


def _unlike(one: DivergenceEntry) -> str:
    pairs = zip(one["groups"], one["what"], strict=True)
    groups = "; ".join(f"{units.rank_words(group)}: {what}" for group, what in pairs)
    what = "The collectives of" if one["kind"] == "schedule" else "The compilations of"
    return f"{what} {frame_place(one['function'], one['file'], one['line'])} differ: {groups}"


def lines(compilation: CompilationSection) -> list[Line]:
    """Graph breaks, then recompilations and failures, each place once, the costliest first."""
    found = [
        Line(
            "graph break",
            frame_place(None, one["file"], one["line"]),
            one["ranks"],
            len(one["compile_ids"]) if one["per_step"] is None else round(one["per_step"]),
            units.NONE if one["idle_ns_per_step"] is None else f"{units.duration(one['idle_ns_per_step'])} a step",
            one["reason"],
        )
        for one in compilation["graph_breaks"]
    ]
    again: dict[tuple[str, str], list[CompileEntry]] = {}
    for one in compilation["compiles"]:
        kind = "failed" if one["failed"] else "recompiled" if one["recompiled"] else "compiled"
        again.setdefault((kind, frame_place(one["function"], one["file"], one["line"])), []).append(one)
    ordered = sorted(again.items(), key=lambda item: (item[0][0] == "compiled", -_spent(item[1])))
    return found + [
        Line(
            kind,
            where,
            sorted({one["rank"] for one in own}),
            len(own),
            units.duration(_spent(own)),
            own[-1]["failed"] or own[-1]["reason"] or (f"cache {own[-1]['cache']}" if own[-1]["cache"] else ""),
        )
        for (kind, where), own in ordered
    ]


def _spent(own: list[CompileEntry]) -> int:
    return sum(one["dur_ns"] or 0 for one in own)

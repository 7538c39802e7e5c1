"""The section `experts` in words: how unevenly tokens go to ranks, what that costs, and what another routing gives."""

from __future__ import annotations

from gpuscope.catalogue.prediction_sentences import step_change
from gpuscope.report.terminal.screen import Writer
from gpuscope.schema.document import Report
from gpuscope.schema.experts_section import ExpertGain, ExpertsSection
from gpuscope.words import units

PASSES_SHOWN = 12
RANKS_SHOWN = 8


def section(report: Report, writer: Writer) -> None:
    """Nothing without all-to-alls of known sizes."""
    if "experts" not in report:
        return
    experts = report["experts"]
    writer.heading("Experts")
    for sentence in sentences(experts):
        writer.line(sentence, hang=2)
    table = writer.table(">pass", ">bytes", ">busiest", ">rank", ">experts", ">imbalance", ">straggler", ">transfers")
    passes = sorted(experts["passes"], key=lambda one: -one["imbalance_ns"])
    for one in passes[:PASSES_SHOWN]:
        cells = (
            str(one["number"]), units.memory(one["bytes"]), f"{one['imbalance']:.2f}×", str(one["busiest"]),
            units.duration(one["experts_ns"]), units.duration(one["imbalance_ns"]),
            units.duration(one["straggler_ns"]), units.duration(one["dispatch_ns"] + one["combine_ns"]),
        )  # fmt: skip
        table.add_row(*map(writer.text, cells))
    writer.show(table)
    if len(passes) > PASSES_SHOWN:
        more = units.plural(len(passes) - PASSES_SHOWN, "more pass", "more passes")
        writer.line(writer.text(f"and {more} (--html, --json)", "dim"))


def sentences(experts: ExpertsSection) -> list[str]:
    """Load by rank, cost, gains, and what could not be divided."""
    cost = experts["cost"]
    heaviest = sorted(experts["ranks"], key=lambda one: -one["load"])
    shown = ", ".join(f"rank {one['rank']} {one['load']:.2f}" for one in heaviest[:RANKS_SHOWN])
    more = f" and {len(heaviest) - RANKS_SHOWN} more" if len(heaviest) > RANKS_SHOWN else ""
    told = [
        f"load, times the mean: {shown}{more}",
        f"per step, passes added up: uneven routing {units.duration(cost['imbalance_ns'])}, slow ranks "
        f"{units.duration(cost['straggler_ns'])}, transfers with even loads {units.duration(cost['network_ns'])}",
        *(f"{routing(one)}: {outcome(one)}" for one in experts["gains"]),
    ]
    if experts["left_out"]:
        all_to_alls = units.plural(experts["left_out"], "all-to-all")
        told.append(f"{all_to_alls} left out: no dispatch with its combine (overlapping micro-batches, cut steps)")
    return told + ([experts["not_separable"]] if "not_separable" in experts else [])


def routing(gain: ExpertGain) -> str:
    """`even routing`, or `capacity factor 1.25, which drops 3.2 % of the tokens`."""
    if gain["capacity_factor"] is None:
        return "even routing"
    return f"capacity factor {gain['capacity_factor']:g}, which drops {units.share(gain['dropped_frac'])} of the tokens"


def outcome(gain: ExpertGain) -> str:
    """What is predicted, or why nothing is."""
    told = gain["predicted"]
    return gain["why_not"] if told is None else f"{step_change(told)}; {told['basis']}"

"""The section `experts` in words: how unevenly tokens go to ranks, what that costs, and what another routing gives."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain

from gpuscope.averages import fmean
from gpuscope.catalogue.prediction_sentences import step_change
from gpuscope.report.terminal.screen import Writer
from gpuscope.schema.document import Report
from gpuscope.schema.experts_section import ExpertGain, ExpertPassEntry, ExpertsSection
from gpuscope.schema.nccl_sections import BandwidthEntry
from gpuscope.words import units

PASSES_SHOWN = 12
RANKS_SHOWN = 8
EXPERTS_SHOWN = 3


def section(report: Report, writer: Writer) -> None:
    """Nothing without all-to-alls of known sizes."""
    if "experts" not in report:
        return
    experts = report["experts"]
    writer.heading("Experts")
    for sentence in sentences(experts, report.get("bandwidth", [])):
        writer.line(sentence, hang=2)
    passes = sorted(experts["passes"], key=lambda one: -one["imbalance_ns"])
    rows = [
        (
            str(one["number"]),
            units.memory(one["bytes"]),
            f"{one['imbalance']:.2f}×",
            str(one["busiest"]),
            units.duration(one["experts_ns"]),
            units.duration(one["imbalance_ns"]),
            units.duration(one["straggler_ns"]),
            units.duration(one["dispatch_ns"] + one["combine_ns"]),
        )
        for one in passes[:PASSES_SHOWN]
    ]
    writer.rows((">pass", ">bytes", ">busiest", ">rank", ">experts", ">imbalance", ">straggler", ">transfers"), rows)
    if len(passes) > PASSES_SHOWN:
        more = units.plural(len(passes) - PASSES_SHOWN, "more pass", "more passes")
        writer.line(writer.text(f"and {more} (--html, --json)", "dim"))


def sentences(experts: ExpertsSection, bandwidth: Sequence[BandwidthEntry] = ()) -> list[str]:
    """Load by rank and of the busiest experts, cost, what of transfers lies open, gains, and what could not be
    divided."""
    cost = experts["cost"]
    heaviest = sorted(experts["ranks"], key=lambda one: -one["load"])
    shown = ", ".join(f"rank {one['rank']} {one['load']:.2f}" for one in heaviest[:RANKS_SHOWN])
    more = f" and {len(heaviest) - RANKS_SHOWN} more" if len(heaviest) > RANKS_SHOWN else ""
    told = [
        f"load, times the mean: {shown}{more}",
        *_busiest_experts(experts["passes"]),
        f"per step, passes added up: uneven routing {units.duration(cost['imbalance_ns'])}, slow ranks "
        f"{units.duration(cost['straggler_ns'])}, transfers with even loads {units.duration(cost['network_ns'])}",
        "dispatch and combine with nothing else running beside them, waiting included: "
        f"{units.duration(sum(one['exposed_ns'] for one in experts['passes']))} per step and rank",
        *_rates(experts["passes"], bandwidth),
        *(f"{routing(one)}: {outcome(one)}" for one in experts["gains"]),
    ]
    if experts["overlapping"]:
        told.append(
            f"{units.plural(experts['overlapping'], 'pass', 'passes')} beside another: micro-batches overlap "
            "(DualPipe, two-batch overlap)"
        )
    if experts["left_out"]:
        all_to_alls = units.plural(experts["left_out"], "all-to-all")
        told.append(f"{all_to_alls} left out: no dispatch with its combine (weights of tokens, cut steps)")
    return told + ([experts["not_separable"]] if "not_separable" in experts else [])


def _busiest_experts(passes: Sequence[ExpertPassEntry]) -> Iterator[str]:
    """`expert 3 of pass 0 has 2.10 times the mean of its layer's tokens`, of the three with most."""
    ratios = [
        (tokens / fmean(chain(*one["tokens"])), one["number"], place * len(own) + expert)
        for one in passes
        if "tokens" in one and any(map(any, one["tokens"]))
        for place, own in enumerate(one["tokens"])
        for expert, tokens in enumerate(own)
    ]
    if ratios:
        most = sorted(ratios, key=lambda one: -one[0])[:EXPERTS_SHOWN]
        shown = ", ".join(f"{ratio:.2f} (expert {expert}, pass {number})" for ratio, number, expert in most)
        yield f"busiest experts, times the mean: {shown}"


def _rates(passes: Sequence[ExpertPassEntry], bandwidth: Sequence[BandwidthEntry]) -> Iterator[str]:
    """Bus bandwidth of the all-to-alls of experts' groups, and the link's peak where one is known."""
    groups = {one["group"] for one in passes}
    own = [one for one in bandwidth if one["tool"] == "trace" and one["op"] == "all_to_all" and one["group"] in groups]
    rates = [(one["busbw_gbps"], one["bytes"], one["peak_gbps"]) for one in own if one["busbw_gbps"] is not None]
    if rates:
        rate, nbytes, peak = max(rates, key=lambda one: one[1])
        of = f", {units.share(rate / peak)} of the link's {peak:.4g} GB/s" if peak else ""
        yield f"all-to-alls of {units.memory(nbytes)}: {rate:.3g} GB/s on the bus{of}"


def routing(gain: ExpertGain) -> str:
    """`even routing`, or `capacity factor 1.25, which drops 3.2 % of the tokens`."""
    if gain["kind"] == "capacity":
        dropped = units.share(gain["dropped_frac"])
        return f"capacity factor {gain['capacity_factor']:g}, which drops {dropped} of the tokens"
    return _KINDS[gain["kind"]]


_KINDS = {
    "even": "even routing",
    "placement": "experts placed by their tokens",
    "redundant": "so, and a copy of a busy expert on each rank",
}


def outcome(gain: ExpertGain) -> str:
    """What is predicted, or why nothing is."""
    told = gain["predicted"]
    return gain["why_not"] if told is None else f"{step_change(told)}; {told['basis']}"

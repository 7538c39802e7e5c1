"""Mixtures of experts: how unevenly tokens go to ranks, what that costs, and what another routing would give."""

from __future__ import annotations

import heapq
import json
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from gpuscope.analyzers.base.analyzer import EVIDENCE, FileAnalyzer, Need, Result, any_of
from gpuscope.analyzers.base.evidence import shown_by
from gpuscope.analyzers.base.lanes import EXPERTS, LaneView
from gpuscope.analyzers.experts.exchanges import Exchange, Pace, exchanges, paces
from gpuscope.analyzers.facts.clocks import rows_by_lane
from gpuscope.analyzers.facts.run_facts import RunFacts, WhatIf, WhatIfAnalyzer
from gpuscope.analyzers.what_if_changes import ExpertLoads, Predicted
from gpuscope.catalogue.finding import made
from gpuscope.catalogue.findings.network import ExpertImbalance
from gpuscope.report.view.report_rows import per_step_ns
from gpuscope.schema.document import FindingEntry
from gpuscope.schema.provenance import (
    ExpertCost,
    ExpertGain,
    ExpertPassEntry,
    ExpertRankEntry,
    ExpertsSection,
    GainKind,
)
from gpuscope.trace.intervals import measure_within
from gpuscope.trace.name_pool import item_bytes
from gpuscope.trace.schema import NA, SCHEMAS
from gpuscope.trace.table import Array, Table, Times
from gpuscope.trace.trace import Trace
from gpuscope.welch import fmean
from gpuscope.when_used import dataclass
from gpuscope.words import units

# Tokens per expert, from the shapes of the products that follow an all-to-all: the table `expert_tokens`.

_FIRST_OPERAND = {"aten::mm": 0, "aten::addmm": 1}
"""Operators that multiply [tokens, in] by an expert's weight, and which input the tokens are."""

Counts = Mapping[int, Array]
"""By place in a list of passes, tokens per rank and expert, shape (ranks, experts of a rank)."""


def expert_tokens_run(trace: Trace, lanes: Sequence[LaneView]) -> Result:  # noqa: ARG001 - of all that was recorded
    """The table `expert_tokens`: where each expert multiplies its own tokens, one product after the other, empty ones
    too. Grouped products and those padded to a capacity hold no tokens per expert."""
    table, schema = trace["collectives"], SCHEMAS["expert_tokens"]
    result = Result(EXPERT_TOKENS_ANALYZER.name)
    sent = np.flatnonzero((table["op"] == trace.names.find("all_to_all")) & (table["received"] != NA))
    if not len(sent) or not len(trace["shapes"]):
        return result
    called, products = _called(trace, sent), _products(trace)
    found: list[tuple[int, int, int, int]] = []
    for rank, own in products.items():
        mine = np.flatnonzero(table["rank"][sent] == rank)
        mine = mine[np.argsort(called[mine], kind="stable")]
        bounds = np.searchsorted(own[:, 0], [*called[mine].tolist(), np.iinfo(np.int64).max])
        for low, high, row in zip(bounds[:-1].tolist(), bounds[1:].tolist(), sent[mine].tolist(), strict=True):
            item = item_bytes(trace.names[int(table["dtype"][row])]) if table["dtype"][row] >= 0 else NA
            tokens = first_layer(own[low:high, 1:], int(table["received"][row]), item) if item != NA else None
            if tokens is not None:
                found += [(rank, int(table["end"][row]), expert, n) for expert, n in enumerate(tokens.tolist())]
    columns = np.array(sorted(found), np.int64).reshape(-1, 4).T
    named = dict(zip(("rank", "arrival", "expert", "tokens"), columns, strict=True))
    result.tables[schema.name] = Table.build(schema, len(found), named)
    return result


def _called(trace: Trace, rows: Times) -> Times:
    """When the host called each collective, ns; where that is not recorded, its start."""
    table, host = trace["collectives"], trace["host_events"]
    event = table["host_event"][rows]
    if len(trace["device_events"]):
        on_device = table["event"][rows]
        launched = trace["device_events"].at("launch", np.maximum(on_device, 0))
        event = np.where((event == NA) & (on_device != NA), launched, event)
    return np.where(event == NA, table["start"][rows], host["start"][np.maximum(event, 0)])


def _products(trace: Trace) -> Mapping[int, Times]:
    """By rank, in order of start: start, rows and columns of the first operand, columns of the second."""
    host, shapes, names = trace["host_events"], trace["shapes"], trace.names
    operand = {names.find(name): place for name, place in _FIRST_OPERAND.items()}
    sizes: dict[tuple[int, int], tuple[int, int, int] | None] = {}
    found: dict[int, list[tuple[int, int, int, int]]] = defaultdict(list)
    events = shapes["event"]
    columns = (host["name"][events], shapes["dims"], host["rank"][events], host["start"][events])
    chosen = np.isin(columns[0], list(operand))
    for name, dims, rank, start in zip(*(column[chosen].tolist() for column in columns), strict=True):
        if (name, dims) not in sizes:
            sizes[name, dims] = _sizes(names[dims], operand[name])
        if (size := sizes[name, dims]) is not None:
            found[rank].append((start, *size))
    return {rank: np.array(sorted(own), np.int64) for rank, own in found.items()}


def _sizes(dims: str, place: int) -> tuple[int, int, int] | None:
    shapes = json.loads(dims)[place : place + 2]
    if len(shapes) < 2 or any(len(shape) != 2 for shape in shapes) or shapes[0][1] != shapes[1][0]:
        return None
    return shapes[0][0], shapes[0][1], shapes[1][1]


def first_layer(products: Times, received: int, item: int) -> Times | None:
    """Tokens of each expert, from products (tokens, width in, width out) of one pass on one rank that received so many
    bytes in elements of `item`; None where they do not add up.

    Of one weight's shape the tokens of all experts add up to what was received, twice where two weights (gate and up)
    are alike.
    """
    for width, out in dict.fromkeys((width, out) for _, width, out in products.tolist()):
        own: Times = products[(products[:, 1] == width) & (products[:, 2] == out), 0]
        tokens, rest = divmod(received, item * width)
        if rest:
            continue
        if own.sum() == tokens:
            return own
        half = len(own) // 2
        if own.sum() == 2 * tokens and len(own) == 2 * half:
            if (own[::2] == own[1::2]).all():
                return own[::2]
            if (own[:half] == own[half:]).all():
                return own[:half]
    return None


def counts_of(trace: Trace, found: Sequence[Exchange]) -> dict[int, Array]:
    """The tokens of each pass's experts; empty where ranks hold unlike many. Of passes in one step whose ranks receive
    the same, all have those of the first: a backward takes the experts in another order, or records no shapes."""
    table, tokens = trace["collectives"], trace["expert_tokens"]
    own: dict[tuple[int, int], list[int]] = defaultdict(list)
    for rank, arrival, many in zip(*(tokens[name].tolist() for name in ("rank", "arrival", "tokens")), strict=True):
        own[rank, arrival].append(many)
    counts: dict[int, Array] = {}
    first: dict[tuple[int, int, bytes], Array] = {}
    for place, one in enumerate(found):
        arrivals = table["end"][one.dispatch].tolist()
        told = [own.get(key, []) for key in zip(one.ranks.tolist(), arrivals, strict=True)]
        same = first.get((one.group, one.step, one.load.tobytes()))
        if all(told) and len(set(map(len, told))) == 1:
            counts[place] = np.array(told, np.int64)
        if same is not None and (place not in counts or (np.sort(counts[place]) == np.sort(same)).all()):
            counts[place] = same
        if place in counts:
            first.setdefault((one.group, one.step, one.load.tobytes()), counts[place])
    return counts if len({of.shape for of in counts.values()}) == 1 else {}


EXPERT_TOKENS_ANALYZER = FileAnalyzer(
    "expert tokens",
    expert_tokens_run,
    (
        Need(
            "shapes",
            "torch.profiler's record_shapes=True tells how many tokens an expert multiplies",
            any_of("shapes"),
            optional=True,
        ),
    ),
)


IMBALANCED = 1.2
"""Times the mean that the busiest rank receives from which it is worth a line: routers balance to within 10–20 %
(GShard, arXiv:2006.16668, capacity factors of 1.0 to 1.25)."""
CAPACITIES = (1.0, 1.25, 1.5, 2.0)
"""Capacity factors that are tried: those of GShard and Switch Transformers (arXiv:2101.03961, section 2.2)."""
LEAST_DROPPED = 0.001
"""A capacity that drops less changes nothing."""

_Paces = Mapping[tuple[int, int], Pace]


@dataclass(frozen=True)
class _Routed:
    """The passes of judged steps and what is known of them."""

    facts: RunFacts
    passes: Sequence[Exchange]
    pace: _Paces
    tokens: Counts


def run(facts: RunFacts, what_if: WhatIf) -> Result:
    """The section `experts`; findings `expert_imbalance`, by group."""

    result = Result(EXPERTS_ANALYZER.name)
    found, left_out = exchanges(facts)
    unsized = _unsized(facts)
    if not found:
        result.status, result.why = "skipped", unsized or "no dispatch with its combine in a judged step"
        return result
    routed = _Routed(facts, found, paces(found), counts_of(facts.trace, found))
    passes = _passes(routed)
    section: ExpertsSection = {
        "passes": passes,
        "ranks": _ranks(found),
        "cost": _cost(passes),
        "gains": _gains(routed, what_if),
        "overlapping": sum(one.overlaps for one in found),
        "left_out": left_out,
    }
    result.sections[EXPERTS] = section
    if unsized:
        section["not_separable"] = unsized
    for group in sorted({one.group for one in found}):
        own = [one for one in found if one.group == group]
        if (
            finding := _finding(facts, own, [one for one in passes if one["group"] == _name(facts, group)])
        ) is not None:
            result.findings.append(finding)
    return result


def _name(facts: RunFacts, group: int) -> str:
    return facts.trace.names[group] if group >= 0 else "one group"


def _unsized(facts: RunFacts) -> str:
    """All-to-alls whose kernels hold no sizes, in words; empty where there are none."""
    table, names = facts.trace["collectives"], facts.trace.names
    rows = np.flatnonzero(
        (table["op"] == names.find("all_to_all")) & (table["received"] == NA) & (table["event"] != NA)
    )
    if not len(rows):
        return ""
    device = facts.trace["device_events"]
    kernels = Counter(names[int(code)] for code in device["name"][table["event"][rows]]) if len(device) else Counter()
    took = int((table["end"][rows] - table["start"][rows]).sum())
    shown = ", ".join(name.partition("(")[0][:60] for name, _ in kernels.most_common(2)) or "all-to-alls"
    return (
        f"{units.plural(len(rows), 'all-to-all')} without sizes ({shown}): {units.duration(took)} of waiting and "
        "transferring in one, not separable"
    )


def _saved(one: Exchange, pace: Pace) -> tuple[float, float]:
    """ns that even routing saves of a pass: of the busiest rank's experts, and of both transfers."""
    busiest, mean = float(pace.time(float(one.load.max()))), float(pace.time(one.mean))
    transfers = (one.dispatch_ns + one.combine_ns) * (1 - 1 / one.imbalance)
    return max(busiest - mean, 0.0), transfers


def _passes(routed: _Routed) -> list[ExpertPassEntry]:
    facts, exposed = routed.facts, _exposed(routed.facts)
    own: dict[tuple[int, int], list[int]] = defaultdict(list)
    for place, one in enumerate(routed.passes):
        own[one.group, one.number].append(place)
    entries: list[ExpertPassEntry] = []
    for (group, number), places in sorted(own.items()):
        line, each = routed.pace[group, number], [routed.passes[place] for place in places]
        saved = [_saved(one, line) for one in each]
        slowest = [float(one.experts.max()) for one in each]
        expected = [float(line.time(float(one.load.max()))) for one in each]
        busiest = Counter(int(one.ranks[int(one.load.argmax())]) for one in each)
        entries.append(
            {
                "group": _name(facts, group),
                "number": number,
                "bytes": round(fmean(one.mean for one in each)),
                "imbalance": fmean(one.imbalance for one in each),
                "busiest": busiest.most_common(1)[0][0],
                "ranks": each[0].ranks.tolist(),
                "loads": np.mean([one.load / one.mean for one in each], axis=0).tolist(),
                "experts_ns": round(fmean(slowest)),
                "imbalance_ns": round(fmean(map(sum, saved))),
                "straggler_ns": round(fmean(max(t - e, 0.0) for t, e in zip(slowest, expected, strict=True))),
                "dispatch_ns": round(fmean(one.dispatch_ns for one in each)),
                "combine_ns": round(fmean(one.combine_ns for one in each)),
                "exposed_ns": round(
                    fmean(float((exposed[one.dispatch] + exposed[one.combine]).mean()) for one in each)
                ),
            }
        )
        if all(place in routed.tokens for place in places):
            entries[-1]["tokens"] = np.mean([routed.tokens[place] for place in places], axis=0).tolist()
    return entries


def _exposed(facts: RunFacts) -> Times:
    """Per row of `collectives`, what no other work of its lane covers of it, ns."""
    table = facts.trace["collectives"]
    found = np.zeros(len(table), np.int64)
    for lane, rows in rows_by_lane(facts.trace, facts.lanes):
        found[rows] = measure_within(lane.exposed_communication, table["start"][rows], table["end"][rows])
    return found


def _ranks(found: Sequence[Exchange]) -> list[ExpertRankEntry]:
    steps = len({one.step for one in found})
    load: dict[int, list[float]] = defaultdict(list)
    received: Counter[int] = Counter()
    experts: Counter[int] = Counter()
    for one in found:
        columns = (one.ranks.tolist(), one.load.tolist(), one.experts.tolist())
        for rank, own, took in zip(*columns, strict=True):
            load[rank].append(own / one.mean)
            received[rank] += own
            experts[rank] += took
    return [
        {
            "rank": rank,
            "load": fmean(load[rank]),
            "bytes_per_step": received[rank] // steps,
            "experts_ns_per_step": experts[rank] // steps,
        }
        for rank in sorted(load)
    ]


def _cost(passes: Sequence[ExpertPassEntry]) -> ExpertCost:
    return {
        "imbalance_ns": sum(one["imbalance_ns"] for one in passes),
        "straggler_ns": sum(one["straggler_ns"] for one in passes),
        "network_ns": round(sum((one["dispatch_ns"] + one["combine_ns"]) / one["imbalance"] for one in passes)),
    }


_After = Callable[[int], Array]
"""Bytes that each rank receives after a change, by the pass's place."""


def _gains(routed: _Routed, what_if: WhatIf) -> list[ExpertGain]:
    """Even routing, placements that even loads out, capacity factors that drop something; none where routing is
    even."""
    found = routed.passes
    if max(one.imbalance for one in found) < 1 + LEAST_DROPPED:
        return []
    told = "every rank's experts with the mean of the tokens"
    gains = [_gain(routed, what_if, "even", lambda place: np.full(len(found[place].load), found[place].mean), told)]
    placements: tuple[tuple[GainKind, int, str], ...] = (
        ("placement", 0, "experts placed anew by their tokens"),
        ("redundant", 1, "experts placed anew by their tokens, those with most on one more rank each"),
    )
    for kind, copies, what in placements:
        after = _placed(routed, copies)
        if after and sum(own.max() for own in after) < sum(float(one.load.max()) for one in found):
            gains.append(_gain(routed, what_if, kind, after.__getitem__, what))
    sent = sum(float(one.load.sum()) for one in found)
    for factor in CAPACITIES:
        limited = [np.minimum(one.load, factor * one.mean) for one in found]
        dropped = 1 - sum(float(own.sum()) for own in limited) / sent
        if dropped >= LEAST_DROPPED:
            told = f"no rank's experts with more than {factor:g} times the mean of the tokens"
            gains.append(_gain(routed, what_if, "capacity", limited.__getitem__, told, factor, dropped))
    return gains


def _placed(routed: _Routed, copies: int) -> list[Array]:
    """Loads of the passes with the experts of each layer placed by their mean tokens, `copies` more on each rank;
    empty where tokens per expert are not known."""
    if len(routed.tokens) < len(routed.passes):
        return []
    own: dict[tuple[int, int], list[int]] = defaultdict(list)
    for place, one in enumerate(routed.passes):
        own[one.group, one.number].append(place)
    after: dict[int, Array] = {}
    for places in own.values():
        mean = np.mean([routed.tokens[place] for place in places], axis=0)
        held = placed(mean.ravel(), len(mean), copies * len(mean))
        for place in places:
            after[place] = loads(routed.tokens[place], held) * routed.passes[place].load.sum()
    return [after[place] for place in range(len(routed.passes))]


def _gain(
    routed: _Routed,
    what_if: WhatIf,
    kind: GainKind,
    after: _After,
    what: str,
    capacity: float | None = None,
    dropped: float = 0.0,
) -> ExpertGain:
    gain: ExpertGain = {
        "kind": kind,
        "capacity_factor": capacity,
        "dropped_frac": dropped,
        "predicted": None,
        "why_not": "",
    }
    if any(one.overlaps for one in routed.passes):
        return {**gain, "why_not": "micro-batches overlap: which of them an instant's computing belongs to is unknown"}
    outcome = what_if.predict(rerouted(routed, after, what))
    if not isinstance(outcome, Predicted):
        return {**gain, "why_not": outcome.why}
    gain["predicted"] = {
        "step_ns_before": outcome.before,
        "step_ns_after": outcome.after,
        "low_ns": outcome.low,
        "high_ns": outcome.high,
        "basis": outcome.basis,
        "provenance": outcome.provenance,
    }
    return gain


def rerouted(routed: _Routed, after: _After, what: str) -> ExpertLoads:
    """The change to loads `after`: experts take what their pace says, what is slow for another reason stays as slow,
    and transfers shrink with the largest load."""
    table = routed.facts.trace["collectives"]
    windows: list[tuple[int, int, int, float]] = []
    transfers: list[tuple[int, int, int, float]] = []
    for number, one in enumerate(routed.passes):
        line, then = routed.pace[one.group, one.number], after(number)
        factors = np.maximum(1 + (line.time(then) - line.time(one.load)) / np.maximum(one.experts, 1), 0.0)
        shorter = float(then.max()) / float(one.load.max())
        for place, rank in enumerate(one.ranks.tolist()):
            sent, back = int(one.dispatch[place]), int(one.combine[place])
            windows.append((rank, int(table["end"][sent]), int(table["start"][back]), float(factors[place])))
            transfers += [(rank, int(table["start"][row]), int(table["end"][row]), shorter) for row in (sent, back)]
    return ExpertLoads(tuple(windows), tuple(transfers), f"{what}; time by tokens from the recorded passes")


def _finding(facts: RunFacts, found: Sequence[Exchange], passes: Sequence[ExpertPassEntry]) -> FindingEntry | None:
    """What one group's ranks received, where it differs; None where it does not."""
    entries = _ranks(found)
    most = max(one["load"] for one in entries)
    if most < IMBALANCED:
        return None
    busiest = [one["rank"] for one in entries if one["load"] >= IMBALANCED]
    table = facts.trace["collectives"]
    rows = sorted((int(row) for one in found for row in one.dispatch), key=lambda row: -int(table["received"][row]))
    evidence = [
        shown_by(facts.trace, "collectives", row, f"receives {units.memory(int(table['received'][row]))}")
        for row in rows[:EVIDENCE]
    ]
    steps = len({one.step for one in found})
    cost, step = sum(one["imbalance_ns"] for one in passes), facts.step_ns
    mean = round(fmean(one["bytes_per_step"] for one in entries))
    share = min(cost / step, 1.0) if step else 0.0
    words = ExpertImbalance(_name(facts, found[0].group), busiest, most, mean, per_step_ns(share, step) or cost)
    return made(words, ranks=busiest, share=share, cost_ns=cost * steps, mean_ns=cost, evidence=evidence)


EXPERTS_ANALYZER = WhatIfAnalyzer(
    "experts",
    run,
    (
        Need(
            "all-to-alls",
            "mixtures of experts exchange tokens by them",
            lambda trace: bool((trace["collectives"]["op"] == trace.names.find("all_to_all")).any()),
            optional=True,
        ),
    ),
    (EXPERTS,),
)


def placed(tokens: Array, ranks: int, redundant: int) -> list[list[int]]:
    """Which experts each rank holds: `redundant` ranks hold one expert more each, a copy of one with most tokens (a
    copy of an expert takes its share). As in DeepSeek's EPLB: copies go where tokens per copy are most, then experts in
    the order of their tokens to the rank with fewest that has room (longest processing time first)."""
    copies = np.ones(len(tokens), np.int64)
    for _ in range(redundant):
        copies[int((tokens / copies).argmax())] += 1
    each = tokens / copies
    room = [len(tokens) // ranks + (1 if rank < redundant else 0) for rank in range(ranks)]
    held: list[list[int]] = [[] for _ in range(ranks)]
    free = [(0.0, rank) for rank in range(ranks)]
    for expert in sorted(np.repeat(np.arange(len(tokens)), copies).tolist(), key=lambda expert: -each[expert]):
        load, rank = heapq.heappop(free)
        held[rank].append(expert)
        if len(held[rank]) < room[rank]:
            heapq.heappush(free, (load + float(each[expert]), rank))
    return held


def loads(counts: Array, held: Sequence[Sequence[int]]) -> Array:
    """Part of a pass's tokens that each rank gets, where `counts` is (ranks, experts of a rank)."""
    tokens = counts.ravel().astype(np.float64)
    copies = np.zeros(len(tokens))
    for own in held:
        np.add.at(copies, list(own), 1)
    each = tokens / np.maximum(copies, 1) / max(tokens.sum(), 1)
    return np.array([float(each[list(own)].sum()) for own in held])


ANALYZERS = (EXPERT_TOKENS_ANALYZER, EXPERTS_ANALYZER)

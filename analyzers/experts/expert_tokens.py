"""Tokens per expert, from the shapes of the products that follow an all-to-all: the table `expert_tokens`."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Mapping, Sequence

import numpy as np

from gpuscope.analyzers.base.analyzer import FileAnalyzer, Result
from gpuscope.analyzers.base.lanes import LaneView
from gpuscope.analyzers.base.needs import Need, any_of
from gpuscope.analyzers.experts.exchanges import Exchange
from gpuscope.trace.columns.table import Array, Table, Times
from gpuscope.trace.naming.dtypes import item_bytes
from gpuscope.trace.schema import NA, SCHEMAS
from gpuscope.trace.trace import Trace

_FIRST_OPERAND = {"aten::mm": 0, "aten::addmm": 1}
"""Operators that multiply [tokens, in] by an expert's weight, and which input the tokens are."""

Counts = Mapping[int, Array]
"""By place in a list of passes, tokens per rank and expert, shape (ranks, experts of a rank)."""


def run(trace: Trace, lanes: Sequence[LaneView]) -> Result:  # noqa: ARG001 - of all that was recorded
    """The table `expert_tokens`: where each expert multiplies its own tokens, one product after the other, empty ones
    too. Grouped products and those padded to a capacity hold no tokens per expert."""
    table, schema = trace["collectives"], SCHEMAS["expert_tokens"]
    result = Result(ANALYZER.name)
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


ANALYZER = FileAnalyzer(
    "expert tokens",
    run,
    (
        Need(
            "shapes",
            "torch.profiler's record_shapes=True tells how many tokens an expert multiplies",
            any_of("shapes"),
            optional=True,
        ),
    ),
)

"""What a collective of a replay would cost at another size, speed or number of ranks: α–β, as fitted or assumed."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, replace

import numpy as np

from gpuscope.analyzers.collectives.message_cost import CostModel, assume, fit
from gpuscope.analyzers.nccl.cost.fixed_part import fixed_part
from gpuscope.analyzers.replay.graph import Call, Graph, Node
from gpuscope.analyzers.replay.link_sharing import Reach
from gpuscope.analyzers.replay.rewrite import Setting, nodes_by_call
from gpuscope.hardware.bus_bandwidth import busbw_factor
from gpuscope.schema.provenance import Provenance
from gpuscope.trace.columns.table import Array, Times

ASSUMED_ERROR = 0.5
"""Relative error of a model that rests on a link's assumed figures: real links reach half to all of their peak, and
fixed costs differ as much between machines."""

MIN_RANGE_OF_TWO = 2.0
"""By which two sizes must differ for a line through them."""
AGREEMENT = 2.0
"""Factor within which transfers must take what a benchmark measured for their size, for its line to be theirs."""
TWO_SIZES_ERROR = 0.1
"""Relative error of such a line, which nothing checks."""


@dataclass(frozen=True)
class Costs:
    """Models per (operation, group), and per call the part of its time that is transfer."""

    models: dict[tuple[str, str], CostModel]
    transfer: Times
    """ns per call: its measured transfer; where the last arrival is not known, at most what the model expects."""

    def model(self, graph: Graph, call: int) -> CostModel:
        """The model of a call."""
        return self.models[graph.calls[call].op, graph.calls[call].group]

    def error(self, graph: Graph, call: int) -> float:
        """Relative error of its model."""
        found = self.model(graph, call).error
        return ASSUMED_ERROR if found is None else found

    def provenance(self, graph: Graph, calls: Iterable[int]) -> Provenance:
        """`assumed` where the model of any of the calls is."""
        return "assumed" if any(self.model(graph, call).assumed for call in calls) else "inferred"

    def lacking(self, graph: Graph, calls: Iterable[int]) -> str:
        """What to record so that the models of these calls are known; empty where they are as well as they can be."""
        undivided = {graph.calls[call].op for call in calls if not self.model(graph, call).divided}
        if not undivided:
            return ""
        return (
            f"which part of a transfer is fixed cost is unknown: every {', '.join(sorted(undivided))} has one size; "
            "record some steps with another size, or analyse the trace together with a table of nccl-tests or of "
            "`gpuscope bench collectives`"
        )

    def basis(self, graph: Graph, calls: list[int]) -> str:
        """What the models of some calls rest on."""
        found = sorted({self.model(graph, call).basis for call in calls})
        estimated = sorted({graph.calls[call].size_basis for call in calls} - {""})
        sizes = f"; message sizes estimated from {' and '.join(estimated)}" if estimated else ""
        return "transfer times " + ", ".join(found) + sizes


def bus_bytes(graph: Graph, call: int, nbytes: float | None = None, members: int | None = None) -> float | None:
    """Bytes on the bus of a call, or of one like it with other bytes or ranks; None where they are not recorded."""
    own = graph.calls[call]
    size = own.bytes if nbytes is None else nbytes
    factor = busbw_factor(own.op, members or own.group_size or 2)
    return None if size is None or factor is None else size * factor


def costs(graph: Graph, setting: Setting, alike: bool = False) -> Costs:
    """Fit the models to the replayed calls' transfers. `alike`: ranks that are missing arrive when these do."""
    node = nodes_by_call(graph, Node.TRANSFER)
    dur = graph.nodes["dur"][node] if len(node) else np.empty(0, np.int64)
    known = _joined(graph, node) | alike
    of: dict[tuple[str, str], list[int]] = defaultdict(list)
    for place, call in enumerate(graph.calls):
        of[call.op, call.group].append(place)
    models: dict[tuple[str, str], CostModel] = {}
    transfer = dur.copy()
    for key, places in of.items():
        sizes = np.array([bus_bytes(graph, place) or 0.0 for place in places])
        rows = np.array([place for place in places if known[place]], np.int64)
        fitted = fit(sizes[known[places]], dur[rows]) if len(rows) else None
        members = graph.calls[places[0]].group_size
        assumed = assume(setting.backend, setting.gpu, members or 2)
        taken = sizes[known[places]]
        if setting.gpu:
            models[key] = fitted or _split(graph.calls[places[0]], assumed, taken, dur[rows], setting)
        else:
            calibrated = _slowed if setting.one_host else _calibrated
            models[key] = fitted or calibrated(assumed, taken, dur[rows])
        for place, size in zip(places, sizes.tolist(), strict=True):
            if not known[place] and size:
                transfer[place] = min(int(dur[place]), models[key].expected(size))
    return Costs(models, transfer)


def _calibrated(assumed: CostModel, sizes: Array, taken: Times) -> CostModel:
    """The assumed fixed cost with the bandwidth that the transfers (ns) of `sizes` bytes showed.

    Fixed costs differ far less between machines than links do: what goes beyond them is the bytes'.
    """
    beyond = float(taken.sum()) - assumed.alpha * len(taken)
    if not len(taken) or beyond <= 0 or sizes.sum() <= 0:
        return assumed
    basis = f"with the fixed cost {assumed.basis} and the bandwidth as measured"
    return CostModel(assumed.alpha, beyond / float(sizes.sum()), None, basis, provenance="assumed")


def _split(call: Call, assumed: CostModel, sizes: Array, taken: Times, setting: Setting) -> CostModel:
    """A line through the transfers (ns) of too few sizes for a fit: through the shortest of two, else through one, as a
    benchmark divides it or as far as links allow (`nccl/cost/fixed_part.py`). `call` is one of them."""
    kept = (sizes > 0) & (taken > 0)
    each = np.unique(sizes[kept])
    if not len(each):
        return assumed
    shortest = np.array([taken[kept & (sizes == size)].min() for size in each.tolist()], np.float64)
    if len(each) > 1 and each[-1] >= MIN_RANGE_OF_TWO * each[0]:
        beta = float((shortest[-1] - shortest[0]) / (each[-1] - each[0]))
        alpha = float(shortest[0] - beta * each[0])
        if beta > 0 and alpha > 0:
            basis = f"on the line through {len(each)} message sizes"
            return CostModel(alpha, beta, TWO_SIZES_ERROR, basis, provenance="inferred")
    whole = float(np.average(taken[kept], weights=sizes[kept]))
    size = float(np.average(sizes[kept], weights=sizes[kept]))
    ranks = call.group_size or 2
    measured = setting.measured.get((call.op, ranks))
    if measured is not None and 1 / AGREEMENT <= measured.expected(size) / whole <= AGREEMENT:
        scale = whole / measured.expected(size)
        basis = f"of one size, divided as a benchmark's: {measured.basis}"
        return replace(measured, alpha=measured.alpha * scale, beta=measured.beta * scale, basis=basis)
    reach = setting.reach.get((call.rank, call.group), Reach.UNKNOWN)
    inside = None if reach == Reach.UNKNOWN else reach == Reach.INSIDE
    part = fixed_part(whole, size, call.op, ranks, setting.gpu, inside)
    alpha = {-1: part.most, 0: part.expected, 1: part.least}[setting.bias]
    basis = "of one size, whose fixed part is not in the trace: anything that the links there can be allow"
    return CostModel(alpha, (whole - alpha) / size, 0.0, basis, provenance="assumed", divided=False)


def _slowed(assumed: CostModel, sizes: Array, taken: Times) -> CostModel:
    """The assumed cost as many times as the transfers (ns) of `sizes` bytes took.

    Within a host there is no link: its cores carry out the fixed part and the bytes, and are as busy for both.
    """
    expected = sum(assumed.expected(size) for size in sizes.tolist())
    if not expected or not taken.sum():
        return assumed
    scale = float(taken.sum()) / expected
    basis = f"{assumed.basis}, scaled {scale:.1f} times to the measured transfers"
    return CostModel(assumed.alpha * scale, assumed.beta * scale, None, basis, provenance="assumed")


def _joined(graph: Graph, node: Times) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    """Per call, whether its time is known to begin with the last arrival."""
    join = graph.of(Node.JOIN)
    behind = np.zeros(len(graph), np.bool_)
    behind[graph.edges["dst"][join[graph.edges["src"]]]] = True
    alone = np.array([(call.group_size or 2) <= 1 for call in graph.calls], np.bool_)
    return np.asarray((behind[node] if len(node) else alone) | alone)

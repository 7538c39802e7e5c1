"""What a collective of a replay would cost at another size, speed or number of ranks: α–β, as fitted or assumed."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

import numpy as np

from gpuscope.analyzers.replay.graph import Graph, Node
from gpuscope.analyzers.replay.link_sharing import Reach
from gpuscope.analyzers.replay.rewrite import Setting, nodes_by_call
from gpuscope.collective_costs.bus_bandwidth import bus_bytes as bytes_on_bus
from gpuscope.collective_costs.message_cost import CostModel, assume, fit
from gpuscope.collective_costs.partial_fits import divided, scaled, with_measured_bandwidth
from gpuscope.schema.provenance import Provenance
from gpuscope.trace.columns.table import Times
from gpuscope.when_used import dataclass

ASSUMED_ERROR = 0.5
"""Relative error of a model that rests on a link's assumed figures: real links reach half to all of their peak, and
fixed costs differ as much between machines."""


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
    return None if size is None else bytes_on_bus(own.op, size, members or own.group_size or 2)


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
        call = graph.calls[places[0]]
        ranks = call.group_size or 2
        assumed = assume(setting.backend, setting.gpu, ranks)
        taken = sizes[known[places]]
        if setting.gpu:
            reach = setting.reach.get((call.rank, call.group), Reach.UNKNOWN)
            inside = None if reach == Reach.UNKNOWN else reach == Reach.INSIDE
            measured = setting.measured.get((call.op, ranks))
            split = divided(taken, dur[rows], measured, call.op, ranks, setting.gpu, inside, setting.bias)
            models[key] = fitted or split or assumed
        else:
            calibrated = scaled if setting.one_host else with_measured_bandwidth
            models[key] = fitted or calibrated(assumed, taken, dur[rows])
        for place, size in zip(places, sizes.tolist(), strict=True):
            if not known[place] and size:
                transfer[place] = min(int(dur[place]), models[key].expected(size))
    return Costs(models, transfer)


def _joined(graph: Graph, node: Times) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    """Per call, whether its time is known to begin with the last arrival."""
    join = graph.of(Node.JOIN)
    behind = np.zeros(len(graph), np.bool_)
    behind[graph.edges["dst"][join[graph.edges["src"]]]] = True
    alone = np.array([(call.group_size or 2) <= 1 for call in graph.calls], np.bool_)
    return np.asarray((behind[node] if len(node) else alone) | alone)

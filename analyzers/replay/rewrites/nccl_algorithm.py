"""Collectives by another of NCCL's algorithms or protocols, or over more channels."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace

import numpy as np

from gpuscope.analyzers.changes import Algorithm, Refused
from gpuscope.analyzers.nccl.predicted_cost import Estimate, changed, chosen_unasked, has_algorithms, predict
from gpuscope.analyzers.replay.collective_costs import Costs, bus_bytes, costs
from gpuscope.analyzers.replay.graph import Graph, UnreplayableError
from gpuscope.analyzers.replay.rewrite import Rewritten, Setting
from gpuscope.analyzers.replay.rewrites.transfer_cost import rescaled
from gpuscope.collective_costs.message_cost import CostModel, fit
from gpuscope.collective_costs.nccl_model import Choice, Place


def algorithm(graph: Graph, change: Algorithm, setting: Setting) -> Rewritten:
    """Each transfer times what NCCL's cost model says of the other choice, held to the costs fitted to the run.

    Refused as a whole where it is unknown for one of the calls: half a change can't be set.
    """
    found = costs(graph, setting)
    models = _models(graph, found, setting)
    ratio: dict[int, float] = {}
    basis: set[str] = set()
    for call, own in enumerate(graph.calls):
        size = bus_bytes(graph, call)
        if (change.op is not None and own.op != change.op) or not size or not own.bytes or (own.group_size or 0) < 2:
            continue
        if change.unasked and not has_algorithms(own.op):
            continue
        if setting.nccl is None:
            raise UnreplayableError("NCCL's choices are not recorded: record with NCCL_DEBUG=INFO")
        place = setting.nccl.place(own.group_size or 0)
        if isinstance(place, Refused):
            raise UnreplayableError(place.why)
        now = setting.nccl.choice(own.op, own.bytes, own.group_size or 0)
        model = models[call]
        predicted = _predicted(own.op, own.bytes, place, now, change, model)
        if isinstance(predicted, Refused):
            raise UnreplayableError(predicted.why)
        ratio[call] = {-1: predicted.low, 0: predicted.ns, 1: predicted.high}[setting.bias] / max(
            model.expected(size), 1
        )
        basis.add(predicted.basis)
    if not ratio:
        raise UnreplayableError(f"the replayed steps hold no {change.op or 'collective'} of known size")
    return Rewritten(rescaled(graph, found, ratio), "; ".join(sorted(basis)))


def _predicted(
    op: str, nbytes: int, place: Place, now: Choice | None, change: Algorithm, model: CostModel
) -> Estimate | Refused:
    """What an operation takes after the change."""
    if now is None or not change.unasked:
        return predict(op, nbytes, place, now, None if now is None else changed(now, change), model)
    return predict(op, nbytes, place, now, chosen_unasked(op, nbytes, place, now, model), model, forced=False)


def _models(graph: Graph, found: Costs, setting: Setting) -> dict[int, CostModel]:
    """The cost model of each call: fitted to the calls of its operation and group with the same choice of NCCL."""
    by_choice: dict[tuple[str, str, str], list[int]] = defaultdict(list)
    for call, own in enumerate(graph.calls):
        now = setting.nccl.choice(own.op, own.bytes or 0, own.group_size or 0) if setting.nccl is not None else None
        by_choice[own.op, own.group, f"{now.algorithm}/{now.protocol}" if now else ""].append(call)
    models: dict[int, CostModel] = {}
    for (op, group, _), calls in by_choice.items():
        model = found.models[op, group]
        if sum(key[:2] == (op, group) for key in by_choice) > 1:
            sizes = np.array([bus_bytes(graph, call) or 0.0 for call in calls])
            model = fit(sizes, found.transfer[np.array(calls)]) or replace(model, error=None, provenance="assumed")
        models |= dict.fromkeys(calls, model)
    return models

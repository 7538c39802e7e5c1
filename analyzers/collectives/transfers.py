"""When each collective stops waiting and starts transferring, and whether latency or bandwidth limits the transfer."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from gpuscope.analyzers.facts.waits import Waits
from gpuscope.catalogue.cause import UNDIVIDED_COMMUNICATION
from gpuscope.collective_costs.bus_bandwidth import busbw_factor
from gpuscope.collective_costs.message_cost import CostModel, assume, fit
from gpuscope.trace.columns.distinct import distinct
from gpuscope.trace.columns.table import Array, Mask, Times
from gpuscope.trace.naming.kinds import POINT_TO_POINT
from gpuscope.trace.schema import NA
from gpuscope.trace.trace import Trace
from gpuscope.when_used import dataclass

BUBBLE = "pipeline_bubble"
CAUSES = ("bandwidth", "latency", BUBBLE, "straggler", UNDIVIDED_COMMUNICATION)
"""Causes of exposed communication. Where several operations cover an instant the first counts: moving data
before waiting (but for waits that no transfer brings), known before unknown."""
_BANDWIDTH, _LATENCY, _BUBBLE, _STRAGGLER, _UNKNOWN = range(len(CAUSES))


SURELY_BANDWIDTH, SURELY_LATENCY = 4, 2
"""Fixed costs from which, and up to which, bytes, and the fixed cost, limit a transfer of unknown size."""


@dataclass(frozen=True)
class Attribution:
    """Per row of `collectives`: the instants at which waiting turns into transferring and that is over, on the row's
    own clock, and the cause (place in `CAUSES`) of the time before and after the first. What is left of a row then
    is a message that has arrived and is not waited for yet."""

    turn: Times
    over: Times
    before: Array
    after: Array
    exchanged: Mask
    """Whether the row is a message of an exchange among equals: waiting there is for a late rank, as in collectives."""
    models: Sequence[CostModel]
    """The cost models of operations and groups."""


def attribute_transfers(trace: Trace, measured: Waits, exchanged: Mask) -> Attribution:
    """Attribute the time of each collective to waiting and transferring.

    Matched ones are divided at the last arrival; unmatched ones can't be divided, for that takes all ranks.
    """
    table = trace["collectives"]
    start, end, matched = table["start"], table["end"], measured.arrived != NA
    after = np.full(len(table), _UNKNOWN, np.int8)
    turn, bus = end.copy(), bus_bytes(trace)
    width = int(table["group"].max(initial=0)) + 2
    _, key = distinct(table["op"].astype(np.int64) * width + table["group"] + 1)
    order = np.argsort(key, kind="stable")
    bounds = np.searchsorted(key[order], np.arange(int(key.max(initial=-1)) + 2))
    models: list[CostModel] = []
    for low, high in zip(bounds[:-1].tolist(), bounds[1:].tolist(), strict=True):
        own = order[low:high]
        models.append(_model(trace, own, bus[own], measured.arrived))
        sized = own[np.isfinite(bus[own])]
        small = models[-1].latency_bound(bus[sized], _shortest(bus[sized], measured.transfer[sized], matched[sized]))
        after[sized] = np.where(small, _LATENCY, _BANDWIDTH)
        sizeless = own[matched[own] & ~np.isfinite(bus[own])]
        after[sizeless] = _by_time(measured.transfer[sizeless], models[-1].alpha)
    after[~matched] = _UNKNOWN
    after[(table["op"] == trace.names.find("barrier")) & ~np.isfinite(bus)] = _LATENCY  # moves nothing: all fixed cost
    turn[matched] = np.clip(measured.arrived[matched], start[matched], end[matched])
    staged = trace.names.matching(POINT_TO_POINT.__contains__)[table["op"]] & ~exchanged
    before = np.where(matched, np.where(staged, _BUBBLE, _STRAGGLER), _UNKNOWN).astype(np.int8)
    return Attribution(turn, np.maximum(turn, measured.over), before, after, exchanged, models)


def _shortest(size: Array, transfer: Times, matched: Mask) -> Times:
    """Per row, the shortest matched transfer of its size, which is what the link can do; 0 where there is none."""
    most = np.iinfo(np.int64).max
    _, same = np.unique(size, return_inverse=True)
    found = np.full(int(same.max(initial=-1)) + 1, most)
    np.minimum.at(found, same[matched], transfer[matched])
    return np.asarray(np.where(matched & (found[same] < most), found[same], 0))


def _by_time(transfer: Times, alpha: float) -> Array:
    """The cause of transfers whose sizes are not recorded, by how they compare with the fixed cost `alpha`, ns."""
    small = np.where(transfer < SURELY_LATENCY * alpha, _LATENCY, _UNKNOWN)
    return np.where(transfer >= SURELY_BANDWIDTH * alpha, _BANDWIDTH, small).astype(np.int8)


def bus_bytes(trace: Trace) -> Array:
    """Per row of `collectives`, bytes on the bus: size × nccl-tests' factor; NaN where size or factor is unknown."""
    table = trace["collectives"]
    members = np.where(table["group_size"] == NA, 2, table["group_size"])
    width = int(members.max(initial=0)) + 1
    pairs, pair = distinct(table["op"].astype(np.int64) * width + members)
    factors = [busbw_factor(trace.names[key // width], key % width) for key in pairs.tolist()]
    factor = np.array([np.nan if value is None else value for value in factors])[pair]
    return np.where(table["bytes"] == NA, np.nan, table["bytes"] * factor)


def _model(trace: Trace, rows: Times, bus: Array, arrived: Times) -> CostModel:
    """The cost model of the rows of one operation and group: fitted where sizes vary, else assumed."""
    table, ranks = trace["collectives"], trace["ranks"]
    begin = np.maximum(table["start"][rows], arrived[rows])  # NA, the lowest integer, leaves the start
    fitted = fit(np.where(np.isfinite(bus), bus, 0.0), table["end"][rows] - begin)
    if fitted is not None:
        return fitted
    first = int(np.searchsorted(ranks["rank"], table["rank"][rows[0]]))
    members = int(table["group_size"][rows[0]])
    return assume(
        trace.names[int(ranks["backend"][first])],
        trace.names[int(ranks["device_name"][first])] if int(ranks["device"][first]) != NA else "",
        members if members != NA else 2,
    )

"""Which sends and receives are an exchange among equals (a ring, a halo, gossip) and not messages between stages."""

from __future__ import annotations

from collections import defaultdict

import numpy as np

from gpuscope.analyzers.facts.process_groups import Groups
from gpuscope.analyzers.step_graph.pipeline_messages import of_ring_attention
from gpuscope.trace.columns.name_pool import NO_NAME
from gpuscope.trace.columns.table import Mask
from gpuscope.trace.naming.kinds import POINT_TO_POINT
from gpuscope.trace.naming.process_groups import is_pipeline_group
from gpuscope.trace.schema import NA, MessageOrder
from gpuscope.trace.trace import Trace


def exchanged(trace: Trace, groups: Groups) -> Mask:
    """Per row of `collectives`, whether it is a message of an exchange (definitions: «Stalls»).

    Ranges around a pipeline's computations, and groups that are called pipelines, say more than the order of messages.
    Where members are in no file, no more is told of a group than what those at hand show.
    """
    table, names = trace["collectives"], trace.names
    message = np.asarray(names.matching(POINT_TO_POINT.__contains__)[table["op"]], np.bool_)
    ring = message & of_ring_attention(trace)
    staged = bool((trace["operations"]["global_chunk"] != NA).any())
    if staged or not len(trace["message_orders"]):
        return ring
    found = ring.copy()
    orders = trace["message_orders"]
    of_member = dict(
        zip(
            zip(orders["rank"].tolist(), orders["group"].tolist(), strict=True),
            orders["order"].tolist(),
            strict=True,
        )
    )
    rows_of: dict[int, list[int]] = defaultdict(list)
    for row in np.flatnonzero(message & ~ring).tolist():
        rows_of[int(groups.of_row[row])].append(row)
    for group, rows in rows_of.items():
        described = int(table["group_description"][rows[0]])
        named = described != NO_NAME and is_pipeline_group(names[described])
        members = {(int(table["rank"][row]), int(table["group"][row])) for row in rows}
        seen = [of_member[member] for member in members if member in of_member]
        absent = bool(groups.absent(np.array([group]))[0])
        found[rows] = not named and len(seen) == len(members) and _is_exchange(seen, absent)
    return found


def _is_exchange(orders: list[int], absent: bool) -> bool:
    """Whether members of such orders exchange messages: none needs a neighbour's before it sends, or, as with a
    parameter server, those that send first send what their backward pass left, or are more than those that wait."""
    waiting = orders.count(MessageOrder.NEEDS_INPUT)
    if not waiting:
        return not absent
    return MessageOrder.SENDS_GRADIENTS in orders or (not absent and len(orders) - waiting > waiting)

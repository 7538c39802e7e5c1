"""Tells what could not be matched over the ranks, by reason."""

from __future__ import annotations

from analyzers.base import Result
from analyzers.matching import Matched


def tell_unmatched(result: Result, matched: Matched) -> None:
    """One problem per reason; `count` is rows of `collectives`, one per rank and operation."""
    count = matched.unmatched
    if count.get("ranks_missing"):
        result.problem(
            "info",
            "collectives_ranks_missing",
            count["ranks_missing"],
            "collectives not matched: ranks of their group are in none of the files; add the traces of all ranks",
        )
    if count.get("outside_window"):
        result.problem(
            "info",
            "collectives_outside_window",
            count["outside_window"],
            "collectives not matched: another rank's capture does not hold them; let all ranks record the same steps",
        )
    if count.get("disagree"):
        result.problem(
            "info",
            "collectives_disagree",
            count["disagree"],
            "collectives not matched: ranks disagree on operation, size or count under one sequence number",
        )
    if count.get("order_untold"):
        result.problem(
            "info",
            "collectives_order_untold",
            count["order_untold"],
            "collectives not matched: without sequence numbers, the order of the ranks fits in no or in several ways",
        )
    if count.get("group_untold"):
        result.problem(
            "info",
            "collectives_group_untold",
            count["group_untold"],
            "collectives not matched: which ranks belong to their group is not recorded",
        )
    if count.get("peer_untold"):
        result.problem(
            "info",
            "messages_peer_untold",
            count["peer_untold"],
            "sends and receives not matched: the rank at the other end is not recorded",
        )

"""Errors of the network in NCCL's log: who did not answer whom, and whether the link ever worked.

A queue pair whose first message is never acknowledged (status 12, «transport retry counter exceeded») was set up with
addresses between which nothing gets through; one that breaks after work is another matter: a link, a switch, a peer.
"""

from __future__ import annotations

from collections.abc import Mapping

from gpuscope import when_used
from gpuscope.catalogue import hang_reasons as words
from gpuscope.schema.hang_section import HangCause
from gpuscope.trace.trace import Trace
from gpuscope.when_used import dataclass

_PEER = when_used.pattern(r"from peer \[?([0-9a-fA-F:.]+?|[\w.-]+)\]?<\d+>")
_PROCESS = when_used.pattern(r"(?:\[[^\]]*\] )?([\w.-]+):\d+:\d+ \[")
_NO_ANSWER = when_used.pattern(
    r"(?:error|status) ?=? ?(?:12\b|IBV_WC_RETRY_EXC_ERR)|RETRY_EXC_ERR|transport retry counter exceeded|RETRY_EXC"
)


@dataclass(frozen=True)
class Network:
    """What the logs say of the network, and whether the job ever worked."""

    roce: bool = False
    gid_index: str = ""
    """NCCL_IB_GID_INDEX, where it is set."""
    hosts: Mapping[str, str] | None = None
    """Hosts by address."""
    host_of: Mapping[int, str] | None = None
    """By rank."""
    peers: Mapping[int, frozenset[int]] | None = None
    """Ranks on other hosts that a rank sends to or receives from."""
    ran: bool = False

    def peer(self, rank: int | None, text: str) -> str:
        """`10.0.0.2 (node1, rank 2)`; empty where the line names none."""
        match = _PEER.search(text)
        if match is None:
            return ""
        host = (self.hosts or {}).get(match[1], "")
        there = sorted(
            peer
            for peer in (self.peers or {}).get(-1 if rank is None else rank, ())
            if host and (self.host_of or {}).get(peer) == host
        )
        return words.peer(match[1], host, there)


def read(trace: Trace, worked: bool) -> Network:
    """What the sources of a trace say; `worked` where logs show a step or a completed operation."""
    facts = [source.facts for source in trace.sources]
    variables = dict(pair for one in facts for pair in one.get("nccl_environment", ()))
    communicators = trace.rows("communicators")
    largest = max((row["size"] or 0 for row in communicators), default=0)
    peers: dict[int, set[int]] = {}
    for row in trace.rows("connections"):
        if row["transport"].startswith("NET/") and row["rank"] is not None and row["peer"] is not None:
            peers.setdefault(row["rank"], set()).add(row["peer"])
            peers.setdefault(row["peer"], set()).add(row["rank"])
    done = bool((trace["flight_records"]["done"] == 1).any())
    return Network(
        roce="RoCE" in {layer for one in facts for layer in one.get("ports", {}).values()},
        gid_index=variables.get("NCCL_IB_GID_INDEX", ""),
        hosts={address: host for one in facts for address, host in one.get("addresses", {}).items()},
        host_of={row["rank"]: row["host"] or "" for row in communicators if row["size"] == largest},
        peers={rank: frozenset(own) for rank, own in peers.items()},
        ran=worked or done or len(trace["measurements"]) > 0,
    )


def cause(network: Network, rank: int, text: str) -> HangCause:
    """A rank that logged an error of the network, and what to do about it."""
    why, remedy = told(network, rank, text)
    return {
        "rank": rank,
        "kind": "network",
        "certain": False,
        "why": why,
        "reason": "network",
        "reason_certain": False,
        "remedy": remedy,
    }


def told(network: Network, rank: int | None, text: str) -> tuple[str, str]:
    """What a line says, of a rank or of a process whose rank is unknown, and what to do about it."""
    no_answer = _NO_ANSWER.search(text) is not None
    at_start = no_answer and not network.ran
    why = words.logged(text)
    if no_answer and (peer := network.peer(rank, text)):
        process = _PROCESS.match(text)
        own = (network.host_of or {}).get(-1 if rank is None else rank, "") or (process[1] if process else "")
        why = f"{words.no_answer(own, peer, at_start=at_start)}; {why}"
    remedy = words.REMEDIES["network"]
    if at_start:
        remedy = words.unreachable(roce=network.roce, gid_index=network.gid_index)
    return why, remedy

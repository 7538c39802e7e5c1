"""NCCL between hosts: queue pairs, sockets, chunks of sends, and which card a group goes over.

Names, defaults and versions after NVIDIA/nccl docs/userguide/source/env.rst and troubleshooting/performance_and_tuning
.rst (2.32). How fast a network is with another setting no trace can say: each proposal carries the commands that do.
"""

from __future__ import annotations

from collections.abc import Iterator

from gpuscope.analyzers.advice.framework_settings import config, cost, env, python
from gpuscope.analyzers.advice.logged_nccl import at_best, costliest, variable
from gpuscope.analyzers.advice.rule import Case, Knob, Proposal, Rule
from gpuscope.analyzers.frame.changes import Refused
from gpuscope.analyzers.nccl.trial_commands import Variant, comparison
from gpuscope.report.schema.document import FindingEntry
from gpuscope.report.schema.nccl_sections import Nccl

QUEUE_PAIRS = 4
BOTH = "nccl-tests at the job's sizes with and without it, as the suggestion's command does; then the job's busbw"
CHUNK = 256 << 10
"""Twice NCCL_P2P_NET_CHUNKSIZE's default: «the next value» of the user guide."""
_SOCKETS_RISK = "four helper threads per connection want cores; on AWS and gVNIC the defaults are higher already"
_QUEUE_PAIRS_RISK = "more queue pairs cost memory of the card, and small messages may take longer"
_CHUNKS_RISK = "larger buffers on every connection"
LARGE = 1 << 20
_SENT = ("send_recv", "all_to_all")
"""Operations that NCCL carries out by sends."""
_MEASURE = "a trace of one setting can't predict another: the commands under «verify» measure both"


def propose(case: Case, finding: FindingEntry) -> Iterator[Proposal]:
    """By what NCCL's log shows of the network."""
    if finding["code"] == "rails_crossed":
        yield _rails(finding)
        return
    if finding["code"] == "network_congestion":
        yield _congestion(finding)
        return
    if "nccl" not in case.report:
        return
    nccl = case.report["nccl"]
    between = {one["transport"] for one in nccl["transports"] if one["same_node"] is False}
    if any(transport.startswith("NET/Socket") for transport in between):
        yield from _sockets(case, finding, nccl)
    elif any(transport.startswith("NET/IB") for transport in between):
        yield from _rdma(case, finding, nccl)


def _sockets(case: Case, finding: FindingEntry, nccl: Nccl) -> Iterator[Proposal]:
    """More threads and sockets per connection, where there is no RDMA to use instead."""
    names = ("NCCL_SOCKET_NTHREADS", "NCCL_NSOCKS_PERTHREAD")
    if any(port["link_layer"] for port in nccl["ports"]) or any(variable(case, name) is not None for name in names):
        return
    yield _network(
        case, finding, nccl, "nccl_sockets", dict.fromkeys(names, "4"),
        action="Send over several sockets and threads between hosts",
        why="one TCP stream fills no fast network; NCCL's defaults are 1 and 1",
        risk=_SOCKETS_RISK,
    )  # fmt: skip


def _rdma(case: Case, finding: FindingEntry, nccl: Nccl) -> Iterator[Proposal]:
    roce = any(port["link_layer"] == "RoCE" for port in nccl["ports"])
    if roce and variable(case, "NCCL_IB_QPS_PER_CONNECTION") is None:
        yield _network(
            case, finding, nccl, "nccl_queue_pairs", {"NCCL_IB_QPS_PER_CONNECTION": str(QUEUE_PAIRS)},
            action=f"Use {QUEUE_PAIRS} queue pairs per connection (RoCE)",
            why="switches spread flows over their links by queue pair, and one flow takes one link; the default is 1",
            risk=_QUEUE_PAIRS_RISK,
        )  # fmt: skip
    row = costliest(case)
    large = row is not None and row["op"] in _SENT and row["bytes"] >= LARGE
    if row is not None and large and variable(case, "NCCL_P2P_NET_CHUNKSIZE") is None:
        yield _network(
            case, finding, nccl, "nccl_chunks", {"NCCL_P2P_NET_CHUNKSIZE": str(CHUNK)},
            action=f"Send {row['op']} between hosts in chunks of 256 KiB",
            why="larger messages fill a fast network with fewer operations; the default is 128 KiB",
            risk=_CHUNKS_RISK,
        )  # fmt: skip


def _network(
    case: Case, finding: FindingEntry, nccl: Nccl, code: str, settings: dict[str, str], *, action: str, why: str,
    risk: str,
) -> Proposal:  # fmt: skip
    """Variables to set together, with the commands that measure the job's costliest operation with and without them."""
    ranks = max((one["size"] for one in nccl["communicators"]), default=2)
    row = costliest(case)
    op, size = (row["op"], row["bytes"]) if row is not None else ("all_reduce", 64 << 20)
    (first, value), *others = settings.items()
    return Proposal(
        code=code,
        action=action,
        why=f"{cost(finding)}; {why}",
        setting=env(first, " ".join([value, *(f"{name}={own}" for name, own in others)])),
        risk=risk,
        verify=comparison(op, [size], ranks, [Variant("as_is", {}), Variant(code, settings)]),
        outcome=Refused(_MEASURE + at_best(case)),
    )


def _congestion(finding: FindingEntry) -> Proposal:
    return Proposal(
        code="nccl_traffic_class",
        action="Send NCCL's messages in the class that the switches keep lossless, or by routes that avoid each other",
        why=f"Counters of congestion while the job ran: {finding['message']}",
        setting=config("NCCL_IB_TC", "the traffic class of the lossless queue (default 0); NCCL_IB_SL its level"),
        risk="another class may be slower or dropped where switches don't know it: ask who runs them",
        verify="record again with nsys --nic-metrics=lf: the counters of congestion stay at 0",
        outcome=Refused("how fast the network is without congestion is not recorded"),
    )


def _rails(finding: FindingEntry) -> Proposal:
    return Proposal(
        code="rail_placement",
        action="Give each group that crosses hosts the same GPU of every host",
        why=finding["message"] + "; where each card has a switch of its own (rails), other pairs go over the spine",
        setting=python("init_device_mesh.mesh_dim_names", '("dp", "tp")  # and ranks numbered by host, then by GPU'),
        risk="checkpoints sharded by the old layout must be resharded; no gain where all cards share one switch",
        verify="record again: the group's busbw; NCCL then keeps to rails by itself (NCCL_CROSS_NIC=2, PXN)",
        outcome=Refused("whether the network has rails is not recorded: compare nccl-tests in both orders of ranks"),
    )


RULE = Rule(
    "nccl_network",
    (
        Knob(
            "nccl_sockets",
            ("bandwidth", "slow_transport", "low_busbw"),
            "`NCCL_SOCKET_NTHREADS=4`, `NCCL_NSOCKS_PERTHREAD=4`, between hosts without RDMA (since 2.4.8, default 1)",
            risk=_SOCKETS_RISK,
            verify=BOTH,
        ),
        Knob(
            "nccl_queue_pairs",
            ("bandwidth", "low_busbw"),
            "`NCCL_IB_QPS_PER_CONNECTION`, over RoCE (since 2.10, default 1)",
            risk=_QUEUE_PAIRS_RISK,
            verify=BOTH,
        ),
        Knob(
            "nccl_chunks",
            ("bandwidth", "low_busbw"),
            "`NCCL_P2P_NET_CHUNKSIZE`, for large sends and all-to-alls between hosts (since 2.14, default 128 KiB)",
            risk=_CHUNKS_RISK,
            verify=BOTH,
        ),
        Knob("nccl_traffic_class", ("network_congestion",), "`NCCL_IB_TC`, `NCCL_IB_SL` (since 2.1.15, default 0)"),
        Knob("rail_placement", ("rails_crossed",), "the order of ranks: each group the same GPU of every host"),
    ),
    propose,
    ("pytorch", "jax", "native"),
)

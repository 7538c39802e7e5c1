"""What speaks against taking the ranks at hand for a whole job (definitions: «World size»)."""

from __future__ import annotations

import numpy as np

from gpuscope import when_used
from gpuscope.analyzers.facts.call_order import clock_of
from gpuscope.trace.columns.name_pool import NO_NAME
from gpuscope.trace.schema import NA, Kind
from gpuscope.trace.trace import Trace
from gpuscope.trace.world import recorded_world

_LOOPBACK = when_used.pattern(r"localhost$|localhost\.|127\.|::1$|0\.0\.0\.0$")
_OTHER_NODES = when_used.pattern(r"(?i)inter_?node(?![a-z])")
_SENT = when_used.pattern(r"(?i)xmit|transmit|\bsent\b|\btx\b|bytes sent")
NETWORK_SHARE = 0.01
"""Bytes that a host's network ports sent, over those of its collectives, from which these go over the network."""


def against_whole_job(trace: Trace) -> str:
    """The first thing that says that ranks are missing, as part of a sentence; empty where nothing does."""
    size = recorded_world(trace).size
    if size is not None and size != len(trace.ranks):
        return f"the job has {size} ranks, and {len(trace.ranks)} are at hand"
    return devices_missing(trace) or _more_nodes(trace) or _over_the_network(trace)


def all_at_hand(trace: Trace) -> bool:
    """Whether the devices of every host are listed and all of them are there, and nothing speaks against the ranks at
    hand being all: then those that share a communicator are its members."""
    return bool(trace["ranks"].known("host_devices").all()) and not against_whole_job(trace)


def devices_missing(trace: Trace) -> str:
    """Which host has devices that no rank at hand uses; empty where all are there, as far as they are listed."""
    table, names = trace["ranks"], trace.names
    host_of = clock_of(trace)
    there: dict[int, set[tuple[int, int]]] = {}
    listed: dict[int, set[str]] = {}
    label: dict[int, str] = {}
    columns = ("rank", "device", "device_id", "host", "host_devices")
    for rank, device, identity, host, devices in zip(*(table[name].tolist() for name in columns), strict=True):
        node = host_of[rank]
        label[node] = names[host] if host != NO_NAME else "the host of rank " + str(rank)
        if device != NA:
            there.setdefault(node, set()).add((NO_NAME, identity) if identity != NO_NAME else (rank, device))
        if devices != NO_NAME:
            listed.setdefault(node, set()).update(names[devices].split(","))
    for node, devices in listed.items():
        used = len(there.get(node, ()))
        if used < len(devices):
            return f"of the {len(devices)} devices of {label[node]} only {used} are in the files"
    return ""


def _more_nodes(trace: Trace) -> str:
    """What the environment of the recorded programs says of nodes that are in no file."""
    table = trace["ranks"]
    hosts = {trace.names[code] for code in table["host"][table.known("host")].tolist()}
    told = [job for source in trace.sources if isinstance(job := source.facts.get("job"), dict)]
    here = len(set(clock_of(trace).values()))
    nodes = max((job.get("nodes", 0) for job in told), default=0)
    if nodes > here:
        return f"the environment names {nodes} nodes, and {here} {'is' if here == 1 else 'are'} in the files"
    masters = sorted({job["master"] for job in told if "master" in job and job.get("nodes", 0) != here})
    own = {name.partition(".")[0].lower() for name in hosts}
    for master in masters:
        if not _LOOPBACK.match(master) and master.partition(".")[0].lower() not in own:
            return f"MASTER_ADDR is {master}, which is no host in the files"
    return ""


def _over_the_network(trace: Trace) -> str:
    """What shows that the ranks of one host communicate over a network."""
    if len(set(clock_of(trace).values())) != 1:
        return ""
    transports = trace["connections"]["transport"]
    if any(trace.names[code].startswith("NET") for code in np.unique(transports).tolist()):
        return "NCCL's log has connections over the network"
    device = trace["device_events"]
    codes = np.unique(device["name"][device["kind"] == Kind.COMMUNICATION])
    if any(_OTHER_NODES.search(trace.names[code]) for code in codes.tolist()):
        return "kernels communicate with other nodes"
    return "the host's network ports send what its collectives do" if _ports_send(trace) else ""


def _ports_send(trace: Trace) -> bool:
    counters, names = trace["counters"], trace.names
    if not len(counters):
        return False
    sent = names.matching(lambda name: _SENT.search(name) is not None)[counters["counter"]]
    sent &= names.matching(lambda name: "byte" in name.lower())[counters["unit"]]
    sent &= ~names.matching(lambda name: name.startswith("GPU"))[counters["place"]]
    moved = trace["collectives"]["bytes"]
    return bool(sent.any()) and float(counters["value"][sent].sum()) > NETWORK_SHARE * float(moved[moved != NA].sum())

"""NCCL's collectives as torch's Flight Recorder has them, in the form of `collective_log`."""

from __future__ import annotations

import ast
import math
import re
from collections.abc import Mapping
from typing import Any

from gpuscope.instrumented_runtime.record.gloo.collective_log import Collective, Group

_PEERS = re.compile(r"(send|recv) (\d+)(->|<-)(\d+)")


def collectives_in(dump: Mapping[str, Any]) -> tuple[list[Group], list[Collective]]:
    """The groups and collectives of a dump; gloo's entries hold too little and are skipped.

    The recorder has no element size, so `item_bytes` is 0.
    """
    groups = {
        name: Group(name, config.get("desc", ""), tuple(ast.literal_eval(config.get("ranks") or "[]")))
        for name, config in dump.get("pg_config", {}).items()
        if name
    }
    collectives = []
    for entry in dump.get("entries", []):
        if entry["profiling_name"].startswith("gloo:"):
            continue
        name, description = entry["process_group"]
        group = groups.setdefault(name, Group(name, description, ()))
        collectives.append(_collective(entry, group))
    return [groups[name] for name in groups], collectives


def _collective(entry: Mapping[str, Any], group: Group) -> Collective:
    op = entry["profiling_name"].partition(":")[2]
    src = dst = None
    peers = _PEERS.match(op)
    if peers is not None:
        op, first, _, second = peers.groups()
        src, dst = (int(first), int(second)) if op == "send" else (int(second), int(first))
        if group.ranks:
            src, dst = group.ranks[src], group.ranks[dst]
    done = entry["state"] == "completed" or entry.get("retired")
    return Collective(
        op=op,
        group=group,
        seq=0 if peers else entry["collective_seq_id"],
        p2p_seq=entry["p2p_seq_id"] if peers else 0,
        elements_in=sum(math.prod(size) for size in entry["input_sizes"]),
        elements_out=sum(math.prod(size) for size in entry["output_sizes"]),
        dtype=(entry.get("input_dtypes") or [""])[0],
        item_bytes=0,
        sizes_in=entry["input_sizes"],
        sizes_out=entry["output_sizes"],
        src=src,
        dst=dst,
        issued_ns=entry["time_created_ns"],
        started_ns=entry.get("time_discovered_started_ns"),
        completed_ns=(entry.get("time_discovered_completed_ns") or entry["time_created_ns"]) if done else None,
    )

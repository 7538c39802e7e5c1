"""How many ranks a job has, as its files record it (definitions: «World size»).

Where nothing records it, `gpuscope.analyzers.facts.assumed_world` may still take the ranks at hand for all.
"""

from __future__ import annotations

from typing import Literal, get_args

import numpy as np

from gpuscope.trace.columns.name_pool import NO_NAME
from gpuscope.trace.columns.table import Array, Table
from gpuscope.trace.schema import NA
from gpuscope.trace.trace import Trace
from gpuscope.when_used import dataclass

WorldBasis = Literal["asked", "distributed_info", "communicators", "environment", "manifest", "files", "assumed"]
"""Where a world size comes from, the most trustworthy first; `asked`: from the user."""
_RECORDED: tuple[WorldBasis, ...] = get_args(WorldBasis)[:-1]
_SOURCE = {
    "asked": "--world-size",
    "distributed_info": "distributedInfo",
    "communicators": "the largest recorded communicator",
    "environment": "the environment of the recorded program (WORLD_SIZE)",
    "manifest": "the manifest of the run",
    "files": "the number of files, of which some could not be read",
}


@dataclass(frozen=True)
class World:
    """The number of ranks of a job."""

    size: int | None
    """None where it is neither recorded nor may be assumed."""
    provenance: WorldBasis | None
    why: str
    """A sentence without a full stop: where the size comes from, or why there is none."""

    @property
    def assumed(self) -> bool:
        """Whether nothing records it: then what rests on it is less certain."""
        return self.provenance == "assumed"


NOT_RECORDED = World(None, None, "the number of ranks of the job is not recorded")


def with_world_size(trace: Trace, size: int, basis: WorldBasis) -> Trace:
    """The trace with this number of ranks as that of its job."""
    ranks = trace["ranks"]
    columns: dict[str, Array] = {
        "world_size": np.full(len(ranks), size, np.int64),
        "world_basis": np.full(len(ranks), trace.names.code(basis), np.int32),
    }
    return trace.with_table(Table(ranks.schema, {**ranks.columns, **columns}))


def recorded_world(trace: Trace) -> World:
    """The first of distributedInfo, communicator records, environment and manifest that gives the size.

    A communicator smaller than what the environment or the manifest says is one of a group of the ranks, and a number
    below that of the ranks at hand (WORLD_SIZE set to the number of nodes, say) is not theirs: both are passed over.
    """
    found = _candidates(trace)
    launched = max(found.get("environment", 0), found.get("manifest", 0))
    for provenance in _RECORDED:
        size = found.get(provenance)
        if size is None or (provenance not in ("asked", "distributed_info") and size < len(trace.ranks)):
            continue
        if provenance != "communicators" or size >= launched:
            return World(size, provenance, f"the world size, {size}, is from {_SOURCE[provenance]}")
    return NOT_RECORDED


def _candidates(trace: Trace) -> dict[WorldBasis, int]:
    """The largest size by where it was recorded."""
    found: dict[WorldBasis, int] = {}
    ranks = trace["ranks"]
    known = ranks.known("world_size")
    for size, basis in zip(ranks["world_size"][known].tolist(), ranks["world_basis"][known].tolist(), strict=True):
        provenance = trace.names[basis] if basis != NO_NAME else "distributed_info"
        for name in _RECORDED:
            if name == provenance:
                found[name] = max(size, found.get(name, 0))
    for table, column in (("communicators", "size"), ("groups", "size"), ("collectives", "group_size")):
        largest = int(trace[table][column].max(initial=NA))
        if largest > 0:
            found["communicators"] = max(largest, found.get("communicators", 0))
    return found

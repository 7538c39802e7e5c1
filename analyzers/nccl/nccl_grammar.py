"""What NCCL accepts as values of its environment variables; a value it would refuse is never suggested.

`NCCL_ALGO` and `NCCL_PROTO` after `parseList` of NVIDIA/nccl 2.29, src/graph/tuning.cc (the grammar by
operation since 2.24): lists of names, `^` before a list for all but these, `operation:` before it for one
operation, `;` between lists, of which only the first may be without an operation. Names in any case. Since
2.24 an operation that is left without any algorithm fails instead of falling back to a ring. The other
variables after NCCL's user guide («Environment Variables»), integers as `strtoll` reads them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial

OPERATIONS = ("Broadcast", "Reduce", "AllGather", "ReduceScatter", "AllReduce")
ALGORITHMS = ("Tree", "Ring", "CollNetDirect", "CollNetChain", "NVLS", "NVLSTree", "PAT")
PROTOCOLS = ("LL", "LL128", "Simple")
UNSET = "unset"
"""As a value: take the variable away, so that NCCL's default holds."""
MOST_CTAS = 64
"""MAXCHANNELS since 2.25; 32 before."""


_CARRIES_OUT = {
    "Broadcast": {"Ring"},
    "Reduce": {"Ring"},
    "AllGather": {"Ring", "NVLS"},
    "ReduceScatter": {"Ring", "NVLS"},
    "AllReduce": {"Ring", "Tree", "NVLS"},
}
"""NVLS only where switches reduce: whoever suggests it must know. What needs the network's help does not count."""


def parse_list(value: str, names: Sequence[str]) -> Mapping[str, frozenset[str]] | str:
    """Per operation that a value speaks of, the names it enables; else what is wrong with it."""
    known = {name.lower(): name for name in names}
    enabled: dict[str, frozenset[str]] = {}
    for place, entry in enumerate(part for part in value.split(";") if part):
        prefix, colon, listed = entry.partition(":")
        if not colon:
            if place:
                return f"all entries except the first need an operation: {entry!r}"
            prefix, listed = "", prefix
        operations = [op for op in OPERATIONS if not prefix or op.lower() == prefix.lower()]
        if not operations:
            return f"unrecognized operation {prefix!r}"
        given = [name for name in listed.removeprefix("^").split(",") if name]
        if unknown := [name for name in given if name.lower() not in known]:
            return f"unrecognized name {unknown[0]!r}"
        chosen = frozenset(known[name.lower()] for name in given)
        enabled |= dict.fromkeys(operations, frozenset(names) - chosen if listed.startswith("^") else chosen)
    return enabled


def only(value: str | None, names: Sequence[str], op: str) -> str | None:
    """The one name that a value enables for an operation of a report (`all_reduce`); None where there are several."""
    enabled = parse_list(value, names) if value else {}
    if isinstance(enabled, str):
        return None
    left = next((found for name, found in enabled.items() if name.lower() == op.replace("_", "")), frozenset())
    return next(iter(left)) if len(left) == 1 else None


def logged_name(name: str) -> str:
    """An algorithm as reports have it: `NVLSTree` → `nvls_tree`, `CollNetDirect` → `collnet_direct`."""
    return {"collnetdirect": "collnet_direct", "collnetchain": "collnet_chain", "nvlstree": "nvls_tree"}.get(
        name.lower(), name.lower()
    )


def _algorithms(value: str) -> str:
    enabled = parse_list(value, ALGORITHMS)
    if isinstance(enabled, str):
        return enabled
    wanting = [op for op, names in enabled.items() if not names & _CARRIES_OUT[op]]
    return f"leaves {', '.join(wanting)} without an algorithm" if wanting else ""


def _protocols(value: str) -> str:
    enabled = parse_list(value, PROTOCOLS)
    if isinstance(enabled, str):
        return enabled
    # NCCL's own judgement of where LL128 is safe holds only for operations that a value leaves alone: `^LL` too
    # switches LL128 on everywhere.
    if any("LL128" in names for names in enabled.values()):
        return "forces LL128 on, which corrupts data where the platform does not support it"
    empty = [op for op, names in enabled.items() if not names]
    return f"leaves {', '.join(empty)} without a protocol" if empty else ""


def _integer(value: str, low: int, high: int) -> str:
    try:
        number = int(value, 0)
    except ValueError:
        return f"no integer: {value!r}"
    return "" if low <= number <= high else f"{number} is not within {low} to {high}"


def _word(value: str, words: Sequence[str]) -> str:
    return "" if value in words else f"{value!r} is none of {', '.join(words)}"


CHECKS: Mapping[str, Callable[[str], str]] = {
    "NCCL_ALGO": _algorithms,
    "NCCL_PROTO": _protocols,
    "NCCL_MIN_CTAS": partial(_integer, low=1, high=MOST_CTAS),
    "NCCL_DEBUG_SUBSYS": partial(_word, words=("INIT,ENV,TUNING", "INIT,ENV")),
}


def wrong(name: str, value: str) -> str:
    """What NCCL (or caution) has against a value; empty where it is good. Unknown variables are wrong."""
    if value == UNSET:
        return "" if name.startswith("NCCL_") else f"{name} is no variable of NCCL"
    check = CHECKS.get(name)
    return check(value) if check else f"{name} is no variable that this project suggests"


def for_operation(op: str, names: str) -> str:
    """A value for one operation of a report: `all_reduce`, `Tree` → `allreduce:Tree`."""
    return f"{op.replace('_', '')}:{names}"


def protocol_name(given: str) -> str:
    """NCCL's spelling of a protocol as reports have it: `simple` → `Simple`."""
    return next(name for name in PROTOCOLS if name.lower() == given)


def algorithm_name(given: str) -> str:
    """NCCL's spelling of an algorithm as reports have it: `nvls_tree` → `NVLSTree`."""
    return next(name for name in ALGORITHMS if name.lower() == given.replace("_", ""))

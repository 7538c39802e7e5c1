"""Memory, power and usual network of a GPU, read from `boards.toml` beside this file (data sheets)."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import TypeVar

from gpuscope.when_used import dataclass

# What vendors of networks and clouds set for NCCL: forced on purpose, and not to be undone.


@dataclass(frozen=True)
class Recipe:
    """The settings of one network."""

    name: str
    networks: tuple[str, ...]
    """How the names begin by which NCCL calls it (`NCCL_NET`, «Using network …»), in lower case."""
    sets: frozenset[str]
    """Of its variables those that choose for NCCL, which elsewhere is left to it."""
    source: str
    prefixes: tuple[str, ...] = ()
    """How the names of variables begin that it alone has."""
    marks: tuple[tuple[str, str], ...] = ()
    """(variable, a part of its value) that show it too."""


RECIPES = (
    Recipe(
        "Google GPUDirect-TCPX",
        ("gpudirecttcpx",),
        frozenset({"NCCL_ALGO", "NCCL_PROTO", "NCCL_NET", "NCCL_NET_GDR_LEVEL", "NCCL_CROSS_NIC", "NCCL_IB_DISABLE"}),
        "cloud.google.com/kubernetes-engine/docs/how-to/gpu-bandwidth-gpudirect-tcpx",
        prefixes=("NCCL_GPUDIRECTTCPX_",),
    ),
    Recipe(
        "Google GPUDirect-TCPXO",
        ("fastrak",),
        frozenset(
            {
                "NCCL_ALGO",
                "NCCL_PROTO",
                "NCCL_NET",
                "NCCL_NET_GDR_LEVEL",
                "NCCL_CROSS_NIC",
                "NCCL_IB_DISABLE",
                "NCCL_NVLS_ENABLE",
            }
        ),
        "AI-Hypercomputer/gpu-recipes src/helm-charts/a3mega; nccl-env-profile.sh of the plugin",
        prefixes=("NCCL_FASTRAK_",),
    ),
    Recipe(
        "Google gIB",
        ("gib",),
        frozenset({"NCCL_NET", "NCCL_NET_GDR_LEVEL", "NCCL_CROSS_NIC"}),
        "set_nccl_env.sh of the plugin (/usr/local/gib/scripts)",
        marks=(("NCCL_TUNER_CONFIG_PATH", "/gib/"),),
    ),
    Recipe(
        "HPE Slingshot by aws-ofi-nccl",
        (),
        frozenset({"NCCL_PROTO", "NCCL_NET", "NCCL_NET_GDR_LEVEL", "NCCL_CROSS_NIC", "NCCL_IB_DISABLE"}),
        "docs.cscs.ch/software/communication/nccl; argonne-lcf/user-guides, NCCL on Polaris",
        marks=(("NCCL_SOCKET_IFNAME", "hsn"),),
    ),
    Recipe(
        "AWS EFA by aws-ofi-nccl",
        ("aws", "ofi", "libfabric"),
        frozenset({"NCCL_PROTO", "NCCL_NET", "NCCL_IB_DISABLE", "NCCL_NVLS_ENABLE"}),
        "aws/aws-ofi-nccl README and src/platform-aws.c",
        marks=(("NCCL_NET_PLUGIN", "ofi"),),
    ),
    Recipe(
        "Azure ND",
        (),
        frozenset({"NCCL_NET_GDR_LEVEL", "NCCL_PXN_DISABLE"}),
        "Azure/azhpc-images topology/ and /etc/nccl.conf of its images",
        marks=(("NCCL_TOPO_FILE", "ndv"), ("NCCL_TOPO_FILE", "/opt/microsoft/")),
    ),
)


def kept_by_vendors(variables: Mapping[str, str], networks: Collection[str]) -> dict[str, Recipe]:
    """Of the variables those that a recognised recipe sets, with that recipe."""
    named = [name.lower() for name in (variables.get("NCCL_NET", ""), *networks)]
    if "socket" in named:  # the job does without the vendor's network
        return {}
    return {
        name: recipe
        for recipe in RECIPES
        if _is_used(recipe, variables, named)
        for name in variables
        if name in recipe.sets
    }


def _is_used(recipe: Recipe, variables: Mapping[str, str], named: Collection[str]) -> bool:
    return (
        any(name.startswith(recipe.networks) for name in named)
        or any(name.startswith(recipe.prefixes) for name in variables)
        or any(part in variables.get(name, "").lower() for name, part in recipe.marks)
    )


# The lines of a file for NCCL's example tuner plugin (NVIDIA/nccl plugins/tuner/example/plugin.c, 2.30).

Choice = TypeVar("Choice")

OPERATIONS = {
    "broadcast": "broadcast",
    "reduce": "reduce",
    "all_gather": "allgather",
    "reduce_scatter": "reducescatter",
    "all_reduce": "allreduce",
}
"""The plugin's five operations by ours; it has no all-to-all."""
ANY = -1
"""In the plugin's file: matches any number of nodes or ranks."""
LARGEST = (1 << 64) - 1
"""The largest size_t: no message lies beyond."""
HEAD = (
    "# For NCCL's example tuner plugin (NCCL_TUNER_PLUGIN); NCCL_TUNER_CONFIG_FILE names this file.",
    "# collective_type,min_bytes,max_bytes,algorithm,protocol,channels,nNodes,nRanks",
)


def tuner_line(
    op: str, low: int, high: int, algorithm: str, protocol: str, channels: int | None, nodes: int, ranks: int
) -> str:
    """One line as the plugin reads it; nodes and ranks `ANY` match any."""
    return ",".join(map(str, (OPERATIONS[op], low, high, algorithm, protocol, channels, nodes, ranks)))


def size_ranges(chosen: Mapping[int, Choice]) -> Iterator[tuple[int, int, Choice]]:
    """Sizes from 0 to the largest with the choice for each, from choices by size in rising order: between two sizes
    the choice changes at their geometric mean."""
    merged: list[tuple[int, Choice]] = []
    last = 0
    for nbytes, choice in chosen.items():
        if not merged or merged[-1][1] != choice:
            merged.append((round((last * nbytes) ** 0.5) if merged else 0, choice))
        last = nbytes
    ends = [low - 1 for low, _ in merged[1:]] + [LARGEST]
    for (low, choice), high in zip(merged, ends, strict=True):
        yield low, high, choice


@dataclass(frozen=True)
class Board:
    """A GPU as it is sold. `network` is a key of the links; `domain` the GPUs joined directly, None for a host's."""

    name: str
    memory_gb: float
    power_w: float
    domain: int | None = None
    network: str | None = None
    staged: bool = False
    """Whether copies between GPUs go through host memory, because the driver has no peer-to-peer."""


@cache
def boards() -> Mapping[str, Board]:
    """Every board by each of its names, in the order in which they are tried."""
    import tomllib

    rows = tomllib.loads(Path(__file__).with_name("boards.toml").read_text(encoding="utf-8"))
    return {
        word: Board(word, **{key: value for key, value in row.items() if key != "match"})
        for row in rows["boards"]
        for word in row["match"]
    }


def board_of(name: str) -> Board | None:
    """The board of a GPU by its product name; None for one that the table does not hold."""
    return next(
        (board for word, board in boards().items() if re.search(rf"\b{re.escape(word)}\b", name, re.IGNORECASE)), None
    )

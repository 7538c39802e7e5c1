"""What the links between GPUs, hosts and networks give, read from `links.toml` beside this file.

Rates are GB/s (1e9 B/s) per direction. `peak` is the line rate; `usable` is what a large transfer can be
expected to reach. Both are assumptions from data sheets and NCCL's own tables; `gpuscope bench` measures.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

from gpuscope.errors import InputError, UsageError
from gpuscope.when_used import dataclass

# NCCL's net figure for 100 Gbit/s is 12.0 of 12.5 GB/s; TCP carries 1448 of 1538 bytes at an MTU of 1500.
_USABLE_RDMA = 0.96
_USABLE_TCP = 0.941
ENV_HARDWARE = "GPUSCOPE_HARDWARE"
"""Names a file of the form of `links.toml` whose entries come before the built-in ones."""


@dataclass(frozen=True)
class Link:
    """One kind of link, with so many units (lanes, NVLinks, ports) in use.

    `peak` and `usable` are GB/s per direction over all units; `latency_ns` is the fixed cost of one step
    of a ring over it.
    """

    key: str
    name: str
    kind: str
    units: int
    peak: float
    usable: float
    latency_ns: int

    def of(self, units: int) -> Link:
        """The same link with another number of lanes, NVLinks or ports."""
        factor = units / self.units
        return replace(self, units=units, peak=self.peak * factor, usable=self.usable * factor)


@cache
def _data() -> Mapping[str, Any]:
    """The table, with what the file that GPUSCOPE_HARDWARE names says otherwise: links by key, latencies, GPUs."""
    import tomllib

    table = tomllib.loads(Path(__file__).with_name("links.toml").read_text(encoding="utf-8"))
    if not (named := os.environ.get(ENV_HARDWARE)):
        return table
    try:
        own = tomllib.loads(Path(named).read_text(encoding="utf-8"))
    except (OSError, tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InputError(f"{named}: no table of link rates: {error}") from error
    for key, row in own.get("links", {}).items():
        table["links"][key] = {**table["links"].get(key, {}), **row}
        missing = {"name", "kind", "peak", "usable", "units"} - set(table["links"][key])
        if missing:
            raise InputError(f"{named}: links.{key} lacks {', '.join(sorted(missing))}")
    table["latency_ns"].update(own.get("latency_ns", {}))
    table["gpus"] = [*own.get("gpus", []), *table["gpus"]]
    return table


@cache
def links() -> Mapping[str, Link]:
    """Every link of the table by key (`nvlink4`, `pcie5` …), each with its usual number of units."""
    latency = _data()["latency_ns"]
    return {
        key: Link(
            key=key,
            name=row["name"],
            kind=row["kind"],
            units=row["units"],
            peak=row["peak"] * row["units"],
            usable=row["usable"] * row["units"],
            latency_ns=latency[row["kind"]],
        )
        for key, row in _data()["links"].items()
    }


def base_latency_ns() -> int:
    """The fixed cost of starting a collective, as NCCL's model assumes it for a ring."""
    return int(_data()["latency_ns"]["base"])


def pcie(generation: int, lanes: int = 16) -> Link | None:
    """PCI Express of a generation and width; None for a generation the table does not hold."""
    link = links().get(f"pcie{generation}")
    return link.of(lanes) if link else None


def network(kind: str, gbit_per_s: float) -> Link:
    """A network port by its rate in Gbit/s; `kind` is `infiniband`, `roce` or `ethernet`."""
    peak = gbit_per_s / 8
    usable = peak * (_USABLE_TCP if kind == "ethernet" else _USABLE_RDMA)
    label = {"infiniband": "InfiniBand", "roce": "RoCE", "ethernet": "Ethernet"}[kind]
    name = f"{label} {gbit_per_s:g} Gbit/s"
    return Link(f"{kind}_{gbit_per_s:g}", name, kind, 1, peak, usable, int(_data()["latency_ns"][kind]))


@cache
def _gpu(name: str) -> Mapping[str, Any] | None:
    for row in _data()["gpus"] if name else ():  # a CPU's run needs no table
        if any(_has_word(word, name) for word in row["match"]):
            found: Mapping[str, Any] = row
            return found
    return None


def _has_word(word: str, name: str) -> bool:
    return re.search(rf"\b{re.escape(word)}\b", name, re.IGNORECASE) is not None


def gpu_nvlink(gpu_name: str) -> Link | None:
    """The NVLink generation of a GPU by its product name, one link wide; None where unknown or without."""
    row = _gpu(gpu_name)
    return links()[row["nvlink"]].of(1) if row and "nvlink" in row else None


def gpu_pcie(gpu_name: str) -> Link | None:
    """The PCIe generation a GPU speaks, 16 lanes wide; None for a name the table does not hold."""
    row = _gpu(gpu_name)
    return pcie(row["pcie"]) if row else None


def gpu_fabric(gpu_name: str) -> Link | None:
    """All links of a GPU to other GPUs (NVLink, Infinity Fabric), where its name shows that they are connected.

    None for a card that may be joined by a bridge or not at all, and for one without such links.
    """
    row = _gpu(gpu_name)
    key = _fabric(row)
    if row is None or key is None or not any(_has_word(word, gpu_name) for word in row.get("full", ())):
        return None
    link = links()[key]
    return link.of(row.get("links", link.units))


def can_have_fabric(gpu_name: str) -> bool | None:
    """Whether a GPU can have links to other GPUs besides PCIe; None for a name the table does not hold."""
    row = _gpu(gpu_name)
    return None if row is None else _fabric(row) is not None


def compute_capability(gpu_name: str) -> int | None:
    """The compute capability times ten (90 for an H100) by product name; None where unknown or not CUDA."""
    row = _gpu(gpu_name)
    return row.get("cc") if row else None


def _fabric(row: Mapping[str, Any] | None) -> str | None:
    return (row.get("nvlink") or row.get("xgmi")) if row else None


def link_named(key: str) -> Link:
    """The link of that key. Raises `UsageError` with the known keys."""
    try:
        return links()[key]
    except KeyError:
        raise UsageError(f"no link is called {key!r}", hint=f"known: {', '.join(links())}") from None

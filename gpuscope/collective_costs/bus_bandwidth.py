"""Bandwidth of a collective as nccl-tests defines it: `algbw` and `busbw`, both in GB/s (1e9 B/s).

`algbw` is size over time. `busbw` corrects it by a factor of the operation and the number of ranks, so
that it can be compared with the peak of the link, whatever the number of ranks. Source of the factors:
NVIDIA/nccl-tests, doc/PERFORMANCE.md, «Summary», and the `GetBw` function of each test's `.cu` file
(gather, scatter, send/receive and all-to-all are only there).

The size is that of the whole array: for an all-gather what each rank ends up with, for a reduce-scatter
what each rank starts from, for an all-to-all what each rank sends in all (its own part included).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Literal

from gpuscope.trace.schema import NS_PER_US
from gpuscope.when_used import dataclass

# The figures of NCCL's cost model, as NCCL 2.29 has them.
#
# Source: NVIDIA/nccl, src/graph/tuning.cc, `ncclTunerConstantsDefaults`, `nvlsEfficiency` and
# `treeCorrectionFactor` (from 2.30 on in src/tuning/). Latencies in µs, bandwidths in GB/s (1e9 B/s), in the
# order of `PROTOCOLS`. NCCL changes them from release to release: see `predicted_cost.SPREAD`.

PROTOCOLS = ("ll", "ll128", "simple")
Generation = Literal["volta", "ampere", "hopper", "blackwell"]
Hardware = Literal["nvlink", "pcie", "net"]

Triple = tuple[float, float, float]

BASE_LATENCY: Mapping[str, Triple] = {
    "tree": (6.8, 14.0, 8.4),
    "ring": (6.6, 14.0, 8.4),
    "nvls": (0.0, 0.0, 0.0),
    "nvls_tree": (0.0, 0.0, 0.0),
    "pat": (8.0, 8.0, 8.0),
}
"""Once per collective."""

STEP_LATENCY: Mapping[Hardware, Mapping[str, Triple]] = {
    "nvlink": {
        "tree": (0.6, 1.25, 4.0),
        "ring": (0.6, 1.9, 3.4),
        "nvls": (0.0, 0.0, 25.0),
        "nvls_tree": (0.0, 0.0, 25.0),
        "pat": (0.0, 0.0, 4.0),
    },
    "pcie": {
        "tree": (1.0, 1.9, 4.0),
        "ring": (1.0, 2.5, 5.7),
        "pat": (0.0, 0.0, 4.0),
    },
    "net": {
        "tree": (5.0, 8.5, 14.0),
        "ring": (2.7, 4.0, 14.0),
        "nvls": (0.0, 0.0, 18.0),
        "nvls_tree": (0.0, 0.0, 20.9),
        "pat": (0.0, 0.0, 14.0),
    },
}
"""Per step over that hardware. NVLS needs NVLink: nothing over PCIe."""

# By generation (across hosts by CPU there: the lower figure is taken) and by 1, 2, or more hosts.
LL_BANDWIDTH: Mapping[Generation, float] = {"volta": 39.0, "ampere": 87.7, "hopper": 141.0, "blackwell": 282.0}
LL_BANDWIDTH_BETWEEN_HOSTS = (22.5, 19.0)
"""At two hosts and at more; NCCL has other figures for Intel CPUs (39.0, 20.4), a trace has no CPU: the lower ones."""

RING_LL128_PER_CHANNEL: Mapping[Generation, Triple] = {
    "volta": (20.0, 20.0, 20.0),
    "ampere": (20.0, 20.0, 20.0),
    "hopper": (36.7, 36.7, 36.7),
    "blackwell": (40.0, 40.0, 40.0),
}
TREE_LL128_PER_CHANNEL: Mapping[Generation, Triple] = {
    "volta": (20.0, 20.0, 20.0),
    "ampere": (20.0, 20.0, 20.0),
    "hopper": (36.7, 36.7, 29.0),
    "blackwell": (55.6, 31.67, 20.0),
}
TREE_PER_CHANNEL: Mapping[Generation, Triple] = {
    "volta": (26.5, 18.5, 10.0),
    "ampere": (24.0, 23.6, 17.8),
    "hopper": (38.7, 41.4, 36.0),
    "blackwell": (70.0, 42.8, 24.0),
}
NVLS_EFFICIENCY: Mapping[Generation, float] = {"volta": 0.0, "ampere": 0.0, "hopper": 0.85, "blackwell": 0.74}

TREE_CORRECTION: Mapping[str, tuple[float, ...]] = {
    "ll": (1.0, 1.0, 1.0, 1.0, 0.9, 0.8, 0.7, 0.7, 0.7, 0.7, 0.6, 0.5, 0.4, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9),
    "ll128": (1.0, 1.0, 1.0, 1.0, 1.0, 0.9, 0.8, 0.8, 0.8, 0.7, 0.6, 0.6, 0.6, 0.6, 0.6, 0.6, 0.8, 0.9, 0.9, 0.9, 0.9),
    "simple": (
        0.9,
        0.9,
        0.9,
        0.9,
        0.9,
        0.9,
        0.9,
        0.8,
        0.7,
        0.6,
        0.6,
        0.5,
        0.5,
        0.5,
        0.5,
        0.6,
        0.7,
        0.8,
        0.7,
        0.7,
        0.8,
        0.9,
        0.9,
    ),
}
"""Of a tree's bandwidth, by powers of two from 64 B on; 1 beyond."""


# NCCL's cost model: steps, fixed cost and bandwidth of a collective by algorithm and protocol.
#
# Written after NVIDIA/nccl 2.29, src/graph/tuning.cc (`ncclTopoTuneModel`, `ncclTopoGetAlgoTime`). Left out
# is what no trace records: the network card's own latency, and trees whose shape costs 15 % of bandwidth.

RING_STEPS = {"all_reduce": 2, "all_gather": 1, "reduce_scatter": 1}
"""Rounds of n − 1 steps each."""
_PIPELINED = ("broadcast", "reduce")
_OVERHEAD_US = 1.0
"""Posting a network operation costs 1 µs on Intel hosts (2 on AMD); protocol Simple posts three times."""
_PLATEAU = {"volta": 1.9}
_PLATEAU_LATER = 1.4
"""Latency of a ring with Simple between hosts, from 64 bytes per rank and channel on."""


@dataclass(frozen=True)
class Choice:
    """What carries a collective out; names as NCCL's log has them in lower case. None and "": unknown."""

    algorithm: str
    protocol: str
    channels: int | None = None


@dataclass(frozen=True)
class Place:
    """Where a communicator lies: its ranks, its hosts, what joins the GPUs of one host, their generation."""

    ranks: int
    nodes: int
    nvlink: bool
    generation: Generation

    @property
    def inside(self) -> Hardware:
        """What a step inside a host goes over."""
        return "nvlink" if self.nvlink else "pcie"

    @property
    def scale(self) -> int:
        """0 for one host, 1 for two, 2 for more."""
        return min(self.nodes, 3) - 1


@dataclass(frozen=True)
class Steps:
    """Steps of a collective one after another: those inside a host and those between hosts."""

    inside: int
    between: int

    @property
    def total(self) -> int:
        """All of them."""
        return self.inside + self.between


def ring_steps(rounds: int, ranks: int, nodes: int) -> Steps:
    """Of so many rounds around a ring: n − 1 each, hosts − 1 of them between hosts."""
    between = rounds * (nodes - 1)
    return Steps(rounds * (ranks - 1) - between, between)


def more_steps(ranks: int, then: int) -> float:
    """How many times as many steps a ring over `then` ranks has as one over `ranks`."""
    return (then - 1) / max(ranks - 1, 1)


def available(op: str, choice: Choice, place: Place) -> bool:
    """Whether NCCL has that algorithm and protocol for the operation there, without a network that reduces."""
    algorithm, protocol = choice.algorithm, choice.protocol
    if algorithm not in BASE_LATENCY or protocol not in PROTOCOLS or place.ranks < 2:
        return False
    if op in _PIPELINED:
        return algorithm == "ring"
    if op not in RING_STEPS:  # all-to-all, send and receive have no algorithm
        return False
    if algorithm in ("nvls", "nvls_tree"):
        hosts = place.nodes == 1 if algorithm == "nvls" else place.nodes > 1
        only = algorithm == "nvls" or op == "all_reduce"
        # NCCL sets NVLS up for more than two GPUs of a host only (src/transport/nvls.cc, ncclNvlsInit).
        switch = place.nvlink and NVLS_EFFICIENCY[place.generation] > 0 and place.ranks > 2 * place.nodes
        return protocol == "simple" and hosts and only and switch
    if algorithm == "tree":
        return op == "all_reduce"
    if algorithm == "pat":
        return op != "all_reduce" and protocol == "simple" and place.nodes == place.ranks
    return True


def steps(op: str, algorithm: str, place: Place) -> Steps:
    """The steps NCCL counts: a ring has 2(n−1) for an all-reduce and n−1 for an all-gather or reduce-scatter
    (2(hosts−1) and hosts−1 of them between hosts); a tree goes along a chain in each host and up and down
    log2(hosts) levels. Raises `ValueError` for what NCCL does not have."""
    inner, levels = place.ranks // place.nodes - 1, place.nodes.bit_length() - 1
    if algorithm == "ring" and op in _PIPELINED:
        return Steps(0, 1) if place.nodes > 1 else Steps(1, 0)
    if algorithm == "ring" and op in RING_STEPS:
        return ring_steps(RING_STEPS[op], place.ranks, place.nodes)
    if algorithm == "tree" and op == "all_reduce":
        return Steps(2 * inner, 2 * levels)
    if algorithm == "nvls":
        return Steps(1, 1 if place.nodes > 1 else 0)
    if algorithm == "nvls_tree":
        return Steps(1, 2 * levels)
    if algorithm == "pat":
        return Steps(0, levels)
    raise ValueError(f"NCCL has no {algorithm} for {op}")


def latency_ns(op: str, nbytes: int, choice: Choice, place: Place) -> float:
    """The fixed cost in ns of a collective that is `available`."""
    index = PROTOCOLS.index(choice.protocol)
    count = steps(op, choice.algorithm, place)
    base = BASE_LATENCY[choice.algorithm][index]
    inside = STEP_LATENCY[place.inside].get(choice.algorithm, (0.0, 0.0, 0.0))[index]
    # One GPU per host can't hide the latency of the network: NCCL takes the tree's then.
    like = "tree" if place.ranks == place.nodes else choice.algorithm
    between = STEP_LATENCY["net"][like][index]
    if choice.algorithm == "pat":
        return (base + count.between * between / 3.5 + place.ranks * 2.8) * NS_PER_US
    if choice.algorithm == "ring" and place.nodes > 1 and op in RING_STEPS:
        inside = max(inside, _OVERHEAD_US * (3 if choice.protocol == "simple" else 1))
    total = base + count.inside * inside + count.between * between
    if _plateau(op, nbytes, choice, place):
        total *= _PLATEAU.get(place.generation, _PLATEAU_LATER)
    return total * NS_PER_US


def _plateau(op: str, nbytes: int, choice: Choice, place: Place) -> bool:
    if (choice.algorithm, choice.protocol, op) != ("ring", "simple", "all_reduce") or place.nodes == 1:
        return False
    return nbytes / ((choice.channels or 1) * place.ranks) >= 64


def efficiency(op: str, choice: Choice, place: Place) -> float:
    """The share of what its links carry that reaches the bus bandwidth, before any cap by channel."""
    if choice.algorithm == "ring":
        return {"ll": 0.5, "ll128": 0.92, "simple": 1.0}[choice.protocol]
    if choice.algorithm == "tree":
        protocol = {"ll": 1 / 3.8, "ll128": 7 / 9 if place.nodes == 1 else 120 / 128, "simple": 1.0}[choice.protocol]
        return 0.92 * protocol
    if choice.algorithm == "pat":
        return 0.75
    channels = choice.channels or 16  # NCCL's usual number for NVLS; one of them is lost
    nvls = NVLS_EFFICIENCY[place.generation] * (channels - 1) / channels
    local = place.ranks / place.nodes
    return nvls * (2.0 if op == "all_reduce" else (local - 1) / local)


def bandwidth(op: str, nbytes: int, choice: Choice, place: Place, links: float) -> float:
    """Bytes of the array per ns (GB/s, as `algbw`) over links that carry `links` GB/s."""
    bus = min(links * efficiency(op, choice, place), _cap(choice, place))
    if choice.algorithm == "tree":
        size = max(nbytes >> 6, 1).bit_length() - 1
        factors = TREE_CORRECTION[choice.protocol]
        return 0.5 * bus * (factors[size] if size < len(factors) else 1.0)
    if choice.algorithm == "pat" or (choice.algorithm == "nvls" and op != "all_reduce"):
        return bus
    if choice.algorithm == "nvls":
        # A GPU sends its whole array to be reduced, and its n-th of the result: NCCL's figure ignores the latter.
        return min(bus * place.ranks / _ring_steps(op, place), links * place.ranks / (place.ranks + 1))
    return bus * place.ranks / _ring_steps(op, place)


def _ring_steps(op: str, place: Place) -> int:
    return RING_STEPS[op] * (place.ranks - 1) if op in RING_STEPS else place.ranks


def _cap(choice: Choice, place: Place) -> float:
    """What an algorithm reaches at most, whatever its links carry; per channel only where these are known."""
    caps: list[float] = []
    tree = choice.algorithm == "tree"
    if choice.protocol == "ll" and choice.algorithm in ("tree", "ring"):
        inside = LL_BANDWIDTH[place.generation]
        caps.append(inside if place.nodes == 1 else LL_BANDWIDTH_BETWEEN_HOSTS[place.scale - 1])
    if choice.channels is not None:
        if choice.protocol == "ll128" and choice.algorithm in ("tree", "ring"):
            table = TREE_LL128_PER_CHANNEL if tree else RING_LL128_PER_CHANNEL
            caps.append(choice.channels * table[place.generation][place.scale])
        if tree:
            caps.append(choice.channels * TREE_PER_CHANNEL[place.generation][place.scale])
    return min(caps, default=float("inf"))


def _one(n: int) -> float:  # noqa: ARG001 - every factor is a function of the number of ranks
    return 1.0


def _others_share(n: int) -> float:
    # A rank keeps its own n-th of the array, the rest crosses its link.
    return (n - 1) / n


def _there_and_back(n: int) -> float:
    # A reduce-scatter and then an all-gather.
    return 2 * (n - 1) / n


FACTORS: Mapping[str, Callable[[int], float]] = {
    "all_reduce": _there_and_back,
    "all_gather": _others_share,
    "reduce_scatter": _others_share,
    "all_to_all": _others_share,
    "gather": _others_share,
    "scatter": _others_share,
    "broadcast": _one,
    "reduce": _one,
    "send": _one,
    "recv": _one,
    "send_recv": _one,
}
"""The factor of each operation, as a function of the number of ranks."""


def algbw(nbytes: float, ns: float) -> float:
    """Size over time in GB/s: bytes per nanosecond are 1e9 bytes per second. NaN where no time passed."""
    return nbytes / ns if ns > 0 else float("nan")


def busbw_factor(op: str, n: int) -> float | None:
    """What `algbw` is multiplied by to get `busbw` for `op` over `n` ranks.

    None for an operation that moves no array (a barrier) or that nccl-tests does not define, and for a
    group of less than one rank. A group of one rank has factor 0 where only others' parts are moved.
    """
    factor = FACTORS.get(op)
    return factor(n) if factor is not None and n >= 1 else None


def bus_bytes(op: str, nbytes: float, n: int) -> float | None:
    """The bytes of an array that cross a rank's link, by that factor; None where it is."""
    factor = busbw_factor(op, n)
    return None if factor is None else nbytes * factor


def busbw(op: str, nbytes: float, ns: float, n: int) -> float:
    """Bus bandwidth in GB/s; NaN where `busbw_factor` knows none or no time passed."""
    factor = busbw_factor(op, n)
    return float("nan") if factor is None else algbw(nbytes, ns) * factor

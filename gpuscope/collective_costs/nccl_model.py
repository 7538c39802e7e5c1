"""NCCL's cost model: steps, fixed cost and bandwidth of a collective by algorithm and protocol.

Written after NVIDIA/nccl 2.29, src/graph/tuning.cc (`ncclTopoTuneModel`, `ncclTopoGetAlgoTime`). Left out
is what no trace records: the network card's own latency, and trees whose shape costs 15 % of bandwidth.
"""

from __future__ import annotations

from gpuscope.collective_costs import nccl_constants
from gpuscope.collective_costs.nccl_constants import Generation, Hardware
from gpuscope.trace.schema import NS_PER_US
from gpuscope.when_used import dataclass

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
    if algorithm not in nccl_constants.BASE_LATENCY or protocol not in nccl_constants.PROTOCOLS or place.ranks < 2:
        return False
    if op in _PIPELINED:
        return algorithm == "ring"
    if op not in RING_STEPS:  # all-to-all, send and receive have no algorithm
        return False
    if algorithm in ("nvls", "nvls_tree"):
        hosts = place.nodes == 1 if algorithm == "nvls" else place.nodes > 1
        only = algorithm == "nvls" or op == "all_reduce"
        # NCCL sets NVLS up for more than two GPUs of a host only (src/transport/nvls.cc, ncclNvlsInit).
        switch = place.nvlink and nccl_constants.NVLS_EFFICIENCY[place.generation] > 0 and place.ranks > 2 * place.nodes
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
    index = nccl_constants.PROTOCOLS.index(choice.protocol)
    count = steps(op, choice.algorithm, place)
    base = nccl_constants.BASE_LATENCY[choice.algorithm][index]
    inside = nccl_constants.STEP_LATENCY[place.inside].get(choice.algorithm, (0.0, 0.0, 0.0))[index]
    # One GPU per host can't hide the latency of the network: NCCL takes the tree's then.
    like = "tree" if place.ranks == place.nodes else choice.algorithm
    between = nccl_constants.STEP_LATENCY["net"][like][index]
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
    nvls = nccl_constants.NVLS_EFFICIENCY[place.generation] * (channels - 1) / channels
    local = place.ranks / place.nodes
    return nvls * (2.0 if op == "all_reduce" else (local - 1) / local)


def bandwidth(op: str, nbytes: int, choice: Choice, place: Place, links: float) -> float:
    """Bytes of the array per ns (GB/s, as `algbw`) over links that carry `links` GB/s."""
    bus = min(links * efficiency(op, choice, place), _cap(choice, place))
    if choice.algorithm == "tree":
        size = max(nbytes >> 6, 1).bit_length() - 1
        factors = nccl_constants.TREE_CORRECTION[choice.protocol]
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
        inside = nccl_constants.LL_BANDWIDTH[place.generation]
        caps.append(inside if place.nodes == 1 else nccl_constants.LL_BANDWIDTH_BETWEEN_HOSTS[place.scale - 1])
    if choice.channels is not None:
        if choice.protocol == "ll128" and choice.algorithm in ("tree", "ring"):
            table = nccl_constants.TREE_LL128_PER_CHANNEL if tree else nccl_constants.RING_LL128_PER_CHANNEL
            caps.append(choice.channels * table[place.generation][place.scale])
        if tree:
            caps.append(choice.channels * nccl_constants.TREE_PER_CHANNEL[place.generation][place.scale])
    return min(caps, default=float("inf"))

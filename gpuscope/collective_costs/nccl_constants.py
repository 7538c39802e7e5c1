"""The figures of NCCL's cost model, as NCCL 2.29 has them.

Source: NVIDIA/nccl, src/graph/tuning.cc, `ncclTunerConstantsDefaults`, `nvlsEfficiency` and
`treeCorrectionFactor` (from 2.30 on in src/tuning/). Latencies in µs, bandwidths in GB/s (1e9 B/s), in the
order of `PROTOCOLS`. NCCL changes them from release to release: see `predicted_cost.SPREAD`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

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

"""Failures and cost: when to write checkpoints, what share of the time is useful, energy and money per token."""

from __future__ import annotations

import math
from dataclasses import dataclass

from gpuscope.analyzers.planning.costs.plan_memory import BYTES, OPTIMIZER_BYTES
from gpuscope.analyzers.planning.inputs.cluster import Cluster


@dataclass(frozen=True)
class Goodput:
    """Seconds, and shares of the time. `frac` is what is left after writing, repeating and restarting."""

    mtbf: float
    checkpoint: float
    interval: float
    frac: float


def goodput(parameters: float, cluster: Cluster) -> Goodput:
    """With the checkpoint interval that loses least.

    Young (1974) and Daly (Future Generation Computer Systems 22, 2006, equation 37): √(2δM)·(1 + ⅓√(δ/2M) + δ/18M) − δ
    for a checkpoint of δ and a mean time between failures of M, at most M. Lost per interval: δ, and per failure half
    an interval and the restart.
    """
    mtbf = cluster.gpu_mtbf_hours * 3600 / cluster.gpus
    delta = parameters * (BYTES + OPTIMIZER_BYTES) / (cluster.checkpoint_gbps * 1e9)
    if delta < 2 * mtbf:
        ratio = delta / (2 * mtbf)
        interval = math.sqrt(2 * delta * mtbf) * (1 + math.sqrt(ratio) / 3 + ratio / 9) - delta
    else:
        interval = mtbf
    useful = interval / (interval + delta)
    lost = ((interval + delta) / 2 + cluster.restart_minutes * 60) / mtbf
    return Goodput(mtbf, delta, interval, max(useful * (1 - min(lost, 1.0)), 0.0))


def gpu_hours_per_token(step: float, tokens: float, cluster: Cluster, frac: float) -> float:
    """With what failures cost."""
    return cluster.gpus * step / 3600 / tokens / frac if frac else math.inf


def joules_per_token(step: float, tokens: float, cluster: Cluster, frac: float) -> float | None:
    """Of GPUs at their power and the data centre around them; None where the power is not known."""
    if cluster.power_w is None or not frac:
        return None
    return cluster.gpus * cluster.power_w * (cluster.pue or 1.0) * step / tokens / frac

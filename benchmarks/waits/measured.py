"""Commands in turn (A B A B …), each a fresh process: on a shared machine only pairs compare."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Literal

Figure = Literal["wall_s", "cpu_s", "peak_mb"]


@dataclass(frozen=True)
class Cost:
    """Of one whole process and its children, from its start to its end."""

    wall_s: float
    cpu_s: float
    peak_mb: float
    """The highest resident memory of the largest of its processes."""


def cost_of(
    command: Sequence[str], environment: Mapping[str, str], served: Callable[[str], None] | None = None
) -> Cost:
    """Run a command; a server's first line goes to `served`, after which it has done its work and is interrupted.
    Raises `RuntimeError` with the end of what it said where it fails."""
    began = time.perf_counter()
    process = subprocess.Popen(
        command,
        env={**os.environ, **environment},
        stderr=subprocess.PIPE,
        stdout=subprocess.PIPE if served else subprocess.DEVNULL,
    )
    if served is not None:
        assert process.stdout is not None
        served(process.stdout.readline().decode())
        process.send_signal(signal.SIGINT)
    assert process.stderr is not None
    said = process.stderr.read()  # until it ends
    _, status, used = os.wait4(process.pid, 0)
    wall = time.perf_counter() - began
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise RuntimeError(f"{' '.join(command)}: exit {process.returncode}: {said.decode(errors='replace')[-500:]}")
    return Cost(wall, used.ru_utime + used.ru_stime, used.ru_maxrss / 1e3)


@dataclass(frozen=True)
class Pair:
    """Costs of a command and of what stands beside it, by round."""

    own: list[Cost]
    beside: list[Cost]

    def own_median(self, figure: Figure) -> float:
        return median(getattr(cost, figure) for cost in self.own)

    def ratios(self, figure: Figure) -> list[float]:
        """What stands beside it over the command's own, by round, ascending."""
        pairs = zip(self.own, self.beside, strict=True)
        return sorted(getattr(other, figure) / getattr(own, figure) for own, other in pairs)


def in_turn(
    own: Sequence[str],
    beside: Sequence[str] | None,
    rounds: int,
    environment: Mapping[str, str],
    served: Callable[[str], None] | None = None,
) -> Pair:
    """Both commands, `rounds` times over."""
    pair = Pair([], [])
    for _ in range(rounds):
        pair.own.append(cost_of(own, environment, served))
        if beside is not None:
            pair.beside.append(cost_of(beside, environment))
    return pair

"""Runs contenders in turn, A B A B, each in a fresh process: on a shared machine only pairs compare."""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Literal

Task = Literal["load", "analyze"]
CONTENDER = Path(__file__).with_name("contender.py")
GPUSCOPE = "gpuscope"


@dataclass(frozen=True)
class Cost:
    """Of one run."""

    wall_s: float
    cpu_s: float
    peak_bytes: int
    process_wall_s: float = 0.0
    """Of the whole process, from its start to its end, imports included."""
    process_cpu_s: float = 0.0


@dataclass
class Costs:
    """Costs of one contender's runs, in order of the rounds."""

    tool: str
    runs: list[Cost] = field(default_factory=list)
    failure: str = ""
    """The error of a tool that fails on this trace (HTA's analyses need a GPU's); it is not run again."""

    def of(self, name: str) -> float:
        """The median of a field of `Cost`."""
        return median(getattr(run, name) for run in self.runs)

    def ratio(self, to: Costs, name: str) -> float:
        """Median over the rounds of the ratio of this cost to the other's."""
        return median(getattr(own, name) / getattr(other, name) for own, other in zip(self.runs, to.runs, strict=True))


def run_once(python: Path, tool: str, task: Task, path: Path, bytecode: Path | None = None) -> Cost:
    """One run in a fresh process; the folder `bytecode` holds its compiled modules, as an installation has them. Raises
    `RuntimeError` with the end of the tool's output if it fails."""
    command = [str(python), str(CONTENDER), tool, task, str(path)]
    environment = dict(os.environ)
    if bytecode is not None:
        environment["PYTHONPYCACHEPREFIX"] = str(bytecode)
        environment.pop("PYTHONDONTWRITEBYTECODE", None)
    before, begun = _children_cpu_s(), time.perf_counter()
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    wall, cpu = time.perf_counter() - begun, _children_cpu_s() - before
    if done.returncode:
        raise RuntimeError(done.stderr.strip().rpartition("\n")[2] or f"exit code {done.returncode}")
    return Cost(**json.loads(done.stdout.splitlines()[-1]), process_wall_s=wall, process_cpu_s=cpu)


def _python(tool: str, hta_python: Path | None) -> Path:
    python = Path(sys.executable) if tool == GPUSCOPE else hta_python
    if python is None:
        raise ValueError(f"no Python to run {tool} with")
    return python


def _children_cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def compare(
    tools: Sequence[str], task: Task, path: Path, rounds: int, hta_python: Path | None, warm: Path | None = None
) -> list[Costs]:
    """Every tool in turn, `rounds` times over; the first must not fail. Before the first round each reads the small
    trace `warm`, so that none compiles its modules while it is timed."""
    costs = [Costs(tool) for tool in tools]
    with tempfile.TemporaryDirectory(prefix="gpuscope-bytecode-") as folder:
        bytecode = None if warm is None else Path(folder)
        for cost in costs:
            if warm is not None:
                with suppress(RuntimeError):  # what fails on that trace may not on the large one
                    run_once(_python(cost.tool, hta_python), cost.tool, task, warm, bytecode)
        for _ in range(rounds):
            for cost in [cost for cost in costs if not cost.failure]:
                try:
                    cost.runs.append(run_once(_python(cost.tool, hta_python), cost.tool, task, path, bytecode))
                except RuntimeError as error:
                    cost.failure = str(error)
    if costs[0].failure:
        raise RuntimeError(f"{costs[0].tool} failed to {task} {path.name}: {costs[0].failure}")
    return costs

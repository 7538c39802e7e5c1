"""`gpuscope tune --nccl`: the search as one more source of changes to try in the job, within its own share of time."""

from __future__ import annotations

import ctypes.util
import json
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gpuscope.errors import GpuscopeError
from gpuscope.instrumented_runtime.bench.processes import default_backend
from gpuscope.instrumented_runtime.record.applied.change import Change
from gpuscope.instrumented_runtime.tune.candidates import Advice, Candidate
from gpuscope.instrumented_runtime.tune.communication.measured import Searched, tuner_text
from gpuscope.instrumented_runtime.tune.communication.search import Options, Planned, first_calls, planned, search
from gpuscope.instrumented_runtime.tune.communication.targets import of_trace
from gpuscope.schema.tune_document import ByHand
from gpuscope.words import units

CODE = "communication_search"
PLUGIN = "NCCL_TUNER_PLUGIN"
ROWS = "NCCL_TUNER_CONFIG_FILE"
MOST_S = 600.0
"""What it takes at most, also of a budget that counts runs."""
EXAMPLE = "nccl-tuner-example"
"""As the makefile of NVIDIA/nccl plugins/tuner/example names its library."""


@dataclass
class CommunicationSearch:
    """Searches once, at the first report with a trace; `told` gets what it does, the estimate first."""

    folder: Path
    """Of the session: the rows for NCCL's tuner and the proof are left there."""
    left_s: Callable[[], float]
    """What the search may take."""
    told: Callable[[str], None] = lambda _: None
    options: Options = field(default_factory=lambda: Options(default_backend()))
    done: bool = False

    def __call__(self, report: Mapping[str, Any]) -> Advice:
        """What of the settings tried is faster for this job: one change, or what its user has to make."""
        if self.done:
            return Advice([], [])
        self.done = True
        paths = sorted({str(entry["path"]) for entry in report["trace"]["sources"]})
        try:
            found = self._search(paths)
        except GpuscopeError as error:
            self.told(f"the communication's settings were not searched: {error.message}")
            return Advice([], [])
        return Advice([], []) if found is None else self._advice(found)

    def _search(self, paths: Sequence[str]) -> Searched | None:
        targets = of_trace(paths)
        if not targets:
            self.told("the communication's settings were not searched: no collective of known size in the trace")
            return None
        left_s = min(self.left_s(), MOST_S)
        deadline = time.monotonic() + left_s
        once = first_calls(targets[0], self.options, left_s)
        plan = planned(targets, self.options, once, deadline - time.monotonic())
        self.told(estimate(plan, left_s))
        if not plan.targets:
            return None
        found = search(plan, self.options, deadline, self.told)
        proof = json.dumps(found.as_json(), indent=2) + "\n"
        (self.folder / "communication.json").write_text(proof, encoding="utf-8")
        return found

    def _advice(self, found: Searched) -> Advice:
        gains = [row for row in found.best() if row.certain]
        by_hand: list[ByHand] = []
        if found.backend == "nccl" and gains:
            rows, plugin = self.folder / "nccl_tuner.csv", tuner_plugin()
            rows.write_text(tuner_text(found), encoding="utf-8")
            if plugin is not None:
                both = Change(f"env.{ROWS}", str(rows)), Change(f"env.{PLUGIN}", plugin)
                return Advice([_candidate(f"{ROWS}={rows}", both)], [])
            why = f"no tuner plugin is here: build NCCL's example (plugins/tuner/example) and name it in {PLUGIN}"
            by_hand.append(_by_hand(f"{ROWS}={rows}", why))
        if any(row.pieces > 1 for row in gains):
            listed = ", ".join(units.memory(row.nbytes) for row in gains if row.pieces > 1)
            by_hand.append(_by_hand(f"all-reduces of {listed} in several messages", "the script has to change"))
        settings = found.variables()
        setting = " ".join(f"{name}={value}" for name, value in settings.items())
        changes = tuple(Change(f"env.{name}", value) for name, value in settings.items())
        return Advice([_candidate(setting, changes)] if changes else [], by_hand)


def estimate(plan: Planned, left_s: float) -> str:
    """How long it will take, before it begins; or why it does not begin in `left_s`."""
    if not plan.targets:
        needed, has = units.long_duration(plan.seconds * 1e9), units.long_duration(left_s * 1e9)
        return f"the communication's settings were not searched: that takes {needed}, and the budget leaves it {has}"
    sizes = sum(len(target.sizes) for target in plan.targets)
    left_out = f"; {units.plural(plan.left_out, 'operation')} left out" if plan.left_out else ""
    return (
        f"searching the communication's settings: {units.plural(sizes, 'size')}, {units.plural(plan.rounds, 'round')}, "
        f"{plan.sets} sets of processes: about {units.long_duration(plan.seconds * 1e9)}{left_out}"
    )


def tuner_plugin() -> str | None:
    """NCCL's tuner plugin that a job here can load: the one that is set, else NCCL's example where it is installed."""
    return os.environ.get(PLUGIN) or ctypes.util.find_library(EXAMPLE)


def _candidate(setting: str, changes: tuple[Change, ...]) -> Candidate:
    return Candidate(CODE, "Set what was faster on this job's own messages", setting, changes)


def _by_hand(setting: str, why: str) -> ByHand:
    return {"code": CODE, "action": "Set what was faster on this job's own messages", "setting": setting, "why": why}

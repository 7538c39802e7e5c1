"""In a rank: the changes are made and what is in effect is seen, once torch is imported."""

from __future__ import annotations

import json
import os
import time
from array import array
from contextlib import suppress
from itertools import pairwise
from typing import Any

from gpuscope.errors import UsageError
from gpuscope.instrumented_runtime.record.applied.launching import ENV_CHANGES
from gpuscope.instrumented_runtime.record.applied.ledger import Ledger
from gpuscope.instrumented_runtime.record.applied.losses import Losses, watch
from gpuscope.instrumented_runtime.record.applied.table import FAMILIES, knob
from gpuscope.instrumented_runtime.record.run_folder import RankFolder

STEPS = 100_000
"""Steps that are timed: a job of days writes no more than a megabyte of them."""

_ledger: Ledger | None = None
_losses: Losses | None = None


def install() -> None:
    """Have what the script makes take the changes that the launcher names, and watch what it makes. Called before the
    script makes anything; a second call does nothing."""
    global _ledger, _losses
    if _ledger is not None:
        return
    told: dict[str, str] = json.loads(os.environ.get(ENV_CHANGES, "{}"))
    values = {}
    for name, value in list(told.items()):
        try:
            values[name] = knob(name).read(value)
        except (UsageError, ValueError):  # of a launcher of another version
            del told[name]
    _ledger = ledger = Ledger(told, values)
    for family in FAMILIES:
        if family.install is not None:
            try:
                family.install(ledger)
            except Exception as error:  # no error of ours may stop the user's job
                ledger.problem(f"{family.name}: {error!r}")
    _losses = watch()


def observed() -> dict[str, Any]:
    """`applied`, `settings` and `losses` so far, as they stand in the manifest; empty where nothing is installed."""
    if _ledger is None or _losses is None:
        return {}
    facts = _ledger.facts()
    with suppress(Exception):  # as of a device that has failed, or within a compilation that a signal ends
        facts["losses"] = _losses.read()
    return facts


class Observed:
    """Notes what became of the changes, what is in effect, the first losses, and when steps ended."""

    name = "observed"

    def start(self, folder: RankFolder) -> None:
        """Nothing is known yet."""
        self._folder = folder
        self._ends = array("q")

    def step(self, step: int) -> None:
        """First of all captures, so that none of their time is between a step's end and this."""
        if len(self._ends) < STEPS:
            self._ends.append(time.perf_counter_ns())
        if _ledger is not None and _losses is not None:
            _losses.step()
            for each in _ledger.at_step:
                try:
                    each(step)
                except Exception as error:  # no error of ours may stop the user's job
                    _ledger.problem(repr(error))

    def stop(self) -> None:
        """`step_ns` is from one step's end to the next, so the first step has none."""
        ends = self._ends
        self._folder.note(**observed(), step_ns=[after - before for before, after in pairwise(ends)])

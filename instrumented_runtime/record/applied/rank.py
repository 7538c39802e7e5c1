"""In a rank: the changes are made and what is in effect is seen, once torch is imported."""

from __future__ import annotations

import functools
import json
import os
import time
from array import array
from contextlib import suppress
from itertools import pairwise
from typing import Any

from gpuscope.errors import UsageError
from gpuscope.instrumented_runtime.record.applied.change import ENV_CHANGES, FAMILIES, knob
from gpuscope.instrumented_runtime.record.applied.ledger import Ledger
from gpuscope.instrumented_runtime.record.ranges import leave_uncompiled
from gpuscope.instrumented_runtime.record.run_folder import RankFolder

# The losses of the first steps, from the tensors whose `backward()` the script calls. They are read at the end, since
# reading one on a GPU waits for it.

LOSSES_STEPS = 20
"""Steps whose losses are kept."""


class Losses:
    """Copies of each step's losses, on their device."""

    def __init__(self) -> None:
        self._now: list[Any] = []
        self._steps: list[list[Any]] = []

    def backward(self, tensors: Any, gradients: Any) -> None:
        """A backward pass begins: from a loss, if that is one number and the caller gives no gradient."""
        if len(self._steps) < LOSSES_STEPS and gradients is None:
            for one in [tensors] if not isinstance(tensors, list | tuple) else tensors:
                local = getattr(one, "_local_tensor", one)  # of a DTensor: reading all of it would communicate
                if local.numel() == 1 and not _capturing(local):
                    self._now.append(local.detach().clone())

    def step(self) -> None:
        """A step has ended."""
        if len(self._steps) < LOSSES_STEPS:
            self._steps.append(self._now)
            self._now = []

    def read(self) -> list[float | None]:
        """Per step the sum of its losses (several where gradients are accumulated); None for a step without."""
        if not any(self._steps):  # as of a stage of a pipeline that is not the last
            return []
        return [sum(float(one) for one in step) if step else None for step in self._steps]


def _capturing(tensor: Any) -> bool:
    """Whether a CUDA graph is captured, which a copy would become part of."""
    import torch

    return bool(tensor.is_cuda and torch.cuda.is_current_stream_capturing())


def watch() -> Losses:
    """Have torch's one way to a backward pass tell the losses."""
    import torch.autograd

    losses, run = Losses(), torch.autograd.backward

    @functools.wraps(run)
    def backward(tensors: Any, grad_tensors: Any = None, *args: Any, **kwargs: Any) -> None:
        with suppress(Exception):  # a loss that is not known must not stop the job
            losses.backward(tensors, grad_tensors)
        run(tensors, grad_tensors, *args, **kwargs)

    leave_uncompiled(backward)
    torch.autograd.backward = backward
    return losses


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

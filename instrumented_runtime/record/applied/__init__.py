"""Changes that a job is started with, without a change of its script: environment, torch, options of frameworks.

A knob is a record in one of the files of `knobs/`, found by being there. The launcher makes the environment and the
command (`launching`); a rank wraps what the script is about to make (`rank`) and notes in the manifest what it changed,
what was in effect, the first losses and the times of all steps.
"""

from __future__ import annotations

from gpuscope.instrumented_runtime.record.applied.change import (
    KNOBS,
    Change,
    checked,
    framework_arguments,
    in_environment,
    knob,
)
from gpuscope.instrumented_runtime.record.applied.ledger import Knob
from gpuscope.instrumented_runtime.record.applied.rank import install, observed
from gpuscope.instrumented_runtime.record.applied.suggested import from_suggestion

__all__ = [
    "KNOBS",
    "Change",
    "Knob",
    "checked",
    "framework_arguments",
    "from_suggestion",
    "in_environment",
    "install",
    "knob",
    "observed",
]

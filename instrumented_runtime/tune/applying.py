"""What may be changed from outside a script, as tuning asks for it: `instrumented_runtime/record/applied`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from gpuscope.instrumented_runtime.record.applied.change import Change
from gpuscope.instrumented_runtime.record.applied.launching import framework_arguments
from gpuscope.instrumented_runtime.record.applied.suggested import from_suggestion
from gpuscope.instrumented_runtime.record.applied.table import knob
from gpuscope.instrumented_runtime.tune.candidates import Applicable


def group(change: Change) -> str:
    """The group by which a change has to be allowed; empty where it preserves what is trained."""
    return knob(change.name).allow


def applicable(command: Sequence[str]) -> Applicable:
    """From a suggestion to the changes that follow it, none where the command takes them in no way."""

    def changes(setting: Mapping[str, Any], code: str, facts: Mapping[str, Any]) -> Sequence[Change] | None:
        found = from_suggestion(setting, code, facts)  # type: ignore[arg-type]
        options = [one for one in found or () if knob(one.name).how == "framework option"]
        return None if any(framework_arguments(command, one) is None for one in options) else found

    return changes

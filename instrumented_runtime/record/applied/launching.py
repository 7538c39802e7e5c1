"""What the launcher does about changes: the environment that ranks get, and the options of the command."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from gpuscope.instrumented_runtime.record.applied.change import Change
from gpuscope.instrumented_runtime.record.applied.knobs import cpu
from gpuscope.instrumented_runtime.record.applied.knobs.environment import PREFIX, UNSET
from gpuscope.instrumented_runtime.record.applied.table import FAMILIES, knob

ENV_CHANGES = "GPUSCOPE_CHANGES"
"""By which ranks are told: JSON, values by name."""


def in_environment(changes: Iterable[Change], environment: Mapping[str, str]) -> dict[str, str]:
    """The whole environment that the command gets, in place of the given one: with the variables that are set, without
    those that are taken out, and with what tells the ranks."""
    changes, found = list(changes), dict(environment)
    found.pop(ENV_CHANGES, None)
    for change in changes:
        if change.name.startswith(PREFIX):
            variable = change.name.removeprefix(PREFIX)
            if change.value == UNSET:
                found.pop(variable, None)
            else:
                found[variable] = change.value
        elif change.name == cpu.THREADS:
            found |= {"OMP_NUM_THREADS": change.value}
    told = {change.name: change.value for change in changes if knob(change.name).how != "framework option"}
    return {**found, ENV_CHANGES: json.dumps(told)} if told else found


def in_command(command: Sequence[str], changes: Iterable[Change], folder: Path) -> tuple[list[str], list[str]]:
    """The command with the options of frameworks that are asked for, and what to tell of those it does not take."""
    words, refused = list(command), []
    for change in changes:
        if knob(change.name).how == "framework option":
            changed = framework_arguments(words, change, folder)
            if changed is None:
                refused.append(f"{change} was not applied: the command is none that takes it")
            else:
                words = changed
    return words, refused


def framework_arguments(command: Sequence[str], change: Change, folder: Path | None = None) -> list[str] | None:
    """The command with a framework's option changed; None where this is no command that takes it.

    A file that the command names is never written: a copy goes into `folder`, without which there is none. Raises
    `InputError` if such a file can't be read.
    """
    family = next((one for one in FAMILIES if any(own.name == change.name for own in one.knobs)), None)
    if family is None or family.rewrite is None:
        return None
    return family.rewrite(list(command), change.name, change.value, folder)

"""A change of how a job runs, as the command line and manifests spell it: `NAME=VALUE`."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path

from gpuscope.errors import UsageError
from gpuscope.instrumented_runtime.record.applied.knobs import collector, environment
from gpuscope.instrumented_runtime.record.applied.knobs.environment import PREFIX, UNSET
from gpuscope.instrumented_runtime.record.applied.ledger import Family, Knob
from gpuscope.plugins import listed


@dataclass(frozen=True)
class Change:
    """One knob and the value it is set to."""

    name: str
    value: str

    @classmethod
    def parse(cls, text: str) -> Change:
        """From `NAME=VALUE`. Raises `UsageError`."""
        name, equals, value = text.partition("=")
        if not equals or not name.strip():
            raise UsageError(f"{text!r} is no change", hint="NAME=VALUE, such as ddp.bucket_cap_mb=50")
        return cls(name.strip(), value.strip())

    @property
    def times(self) -> int | None:
        """Of `xN`, a multiple of the script's own value: N."""
        times = self.value.removeprefix("x")
        return int(times) if times != self.value and times.isdigit() else None

    def number(self, own: int | None) -> int | None:
        """The number that it leads to from the script's own; None of no number, or a multiple of what is unknown."""
        if self.times is not None:
            return None if own is None else own * self.times
        return int(self.value) if self.value.isdigit() else None

    def __str__(self) -> str:
        return f"{self.name}={self.value}"


# All knobs, and which changes may be asked for.

FAMILIES: tuple[Family, ...] = tuple(listed("gpuscope.instrumented_runtime.record.applied.knobs", "FAMILY"))
KNOBS: tuple[Knob, ...] = tuple(sorted((knob for one in FAMILIES for knob in one.knobs), key=lambda knob: knob.name))
_BY_NAME = {knob.name: knob for knob in KNOBS if knob is not environment.GENERAL}


def knob(name: str) -> Knob:
    """The knob of that name. Raises `UsageError` where there is none."""
    if name in _BY_NAME:
        return _BY_NAME[name]
    variable = name.removeprefix(environment.PREFIX)
    if variable != name:
        if environment.may_set(variable):
            return environment.variable(variable)
        raise UsageError(
            f"{variable} is no variable that may be set so",
            hint="variables of NCCL, CUDA, PyTorch's allocator and their kin; set others in front of the command",
        )
    close = get_close_matches(name, _BY_NAME, 1)
    raise UsageError(
        f"there is no setting {name!r}", hint=f"did you mean {close[0]}?" if close else "docs/tuning.md lists them"
    )


def checked(changes: Iterable[Change], allowed: Collection[str] = ()) -> list[Change]:
    """The changes, if all may be made. Raises `UsageError` on an unknown name, a value that its knob does not take, a
    knob set twice, and one that alters training without its group being allowed."""
    found: dict[str, Change] = {}
    groups = {one.allow for one in KNOBS} - {""}
    if unknown := sorted(set(allowed) - groups):
        raise UsageError(f"there is no group {unknown[0]!r} to allow", hint=f"one of {', '.join(sorted(groups))}")
    for change in changes:
        own = knob(change.name)
        own.check(change.value)
        if change.name in found:
            raise UsageError(f"{change.name} is set twice", hint="give it once")
        if own.allow and own.allow not in allowed:
            raise UsageError(f"{change.name} may alter training: {own.alters}", hint=f"add --allow {own.allow}")
        found[change.name] = change
    return list(found.values())


# What the launcher does about changes: the environment that ranks get, and the options of the command.

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
        elif change.name == collector.THREADS:
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

    A file that the command names is never written: a copy goes into `folder`. Without a folder the answer is whether
    the command takes it, with such a file as it is. Raises `InputError` if such a file can't be read.
    """
    family = next((one for one in FAMILIES if any(own.name == change.name for own in one.knobs)), None)
    if family is None or family.rewrite is None:
        return None
    return family.rewrite(list(command), change.name, change.value, folder)

"""All knobs, and which changes may be asked for."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from difflib import get_close_matches

from gpuscope.errors import UsageError
from gpuscope.instrumented_runtime.record.applied.change import Change
from gpuscope.instrumented_runtime.record.applied.knob import Family, Knob
from gpuscope.instrumented_runtime.record.applied.knobs import environment
from gpuscope.plugins import listed

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

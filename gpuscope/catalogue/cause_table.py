"""The table of causes: every `CAUSE` below `causes/`, in order of its place."""

from __future__ import annotations

from itertools import pairwise

from gpuscope.catalogue.cause import UNATTRIBUTED, UNDIVIDED_COMMUNICATION, Cause, Shown
from gpuscope.plugins import listed
from gpuscope.schema.document import Class


def _table() -> tuple[Cause, ...]:
    """Raises `ValueError` where two share a code or a place."""
    found: list[Cause] = sorted(listed("gpuscope.catalogue.causes", "CAUSE"), key=lambda cause: cause.place)
    if shared := [(one.code, other.code) for one, other in pairwise(found) if one.place == other.place]:
        raise ValueError(f"causes with one place: {shared}")
    if len({cause.code for cause in found}) < len(found):
        raise ValueError("two causes with one code")
    return tuple(found)


CAUSES = _table()
BY_CODE = {cause.code: cause for cause in CAUSES}
NAMED = tuple(cause.code for cause in CAUSES if cause.code not in (UNATTRIBUTED, UNDIVIDED_COMMUNICATION))
"""Codes of the causes that say why: not what is left without one."""


SHOWN_BY_NAME = tuple(sorted((cause for cause in CAUSES if cause.shown_by), key=lambda cause: cause.precedence))
"""Those that host events show by their names, in the order in which they take idle time."""
COVERING: tuple[tuple[str, Shown], ...] = tuple((cause.code, one) for cause in SHOWN_BY_NAME for one in cause.shown_by)
"""(cause, what shows it), in that order."""


def class_of(code: str) -> Class | None:
    """The class of a cause; None where it has none. Raises `KeyError` for no cause."""
    return BY_CODE[code].class_name


def cause_words(code: str) -> str:
    """`data loader`: for pages, which show no codes; the code of a cause that only a later version knows."""
    cause = BY_CODE.get(code)
    return code if cause is None else cause.label


def finding_words(code: str) -> str:
    """What a finding is called on a page: its cause's words, else its code as words."""
    return next((one.label for one in CAUSES if one.finding_code == code), code.replace("_", " "))


def cause_label(code: str) -> str:
    """`data loader (input)`: words first, then the code that definitions and JSON use, where the words lack it."""
    cause = BY_CODE.get(code)
    if cause is None:  # a report of a later version
        return code
    said = f" {cause.label} ".replace("(", " ").replace(")", " ")
    return cause.label if f" {code.replace('_', ' ')} " in said else f"{cause.label} ({code})"

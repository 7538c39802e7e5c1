"""What a suggestion is: a rule hands over its facts, the record puts them into its words.

The records stand in the files of their rules (`analyzers/advice/rules/`).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import field
from itertools import pairwise
from typing import Any, ClassVar

from gpuscope import when_used
from gpuscope.catalogue.cause import UNATTRIBUTED, UNDIVIDED_COMMUNICATION, Cause, Shown
from gpuscope.catalogue.finding import facts_of
from gpuscope.plugins import listed
from gpuscope.schema.document import Class, FindingEntry
from gpuscope.when_used import dataclass
from gpuscope.words import units

# The table of causes: every `CAUSE` below `causes/`, in order of its place.


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


UNDIVIDED = "exposed_communication"
"""The finding of exposed communication whose waiting can't be told from its transfer, as with one rank of many."""
_PLACE = when_used.pattern(r"\{(\w+)(?::([^}]*))?\}")
TEXTS = ("action", "why", "grounds", "why_not", "risk", "verify")
"""What a record says."""
RECORDS = ("nccl_choice_search", "nccl_log")
"""Codes of those whose variable has more recorded: no step is shorter for it."""


@dataclass(frozen=True)
class Suggestion:
    """A kind of suggestion is a subclass, its fields are the facts: plain values that JSON can hold.

    `{name}` in a text stands for the fact or property of that name; `{cost}`, `{message}` and `{finding}` for what the
    finding costs, its message and its code. Records of one code are the same suggestion in different words, as for
    another framework.
    """

    code: ClassVar[str]
    answers: ClassVar[tuple[str, ...]]
    """Codes of the findings that it answers."""
    sets: ClassVar[str]
    """Markdown: the settings, by the frameworks' names; its row of docs/advice.md."""
    action: ClassVar[str]
    why: ClassVar[str] = "{cost}"
    grounds: ClassVar[str] = ""
    """What in the trace calls for it, beyond its finding's words; «inferred» where nothing shows it directly."""
    why_not: ClassVar[str] = ""
    """Why its gain can't be estimated, where that is never possible."""
    risk: ClassVar[str]
    verify: ClassVar[str]
    misleads: ClassVar[str] = ""
    """Markdown: when it would not help, besides what misleads its findings."""
    alters_training: ClassVar[bool] = False
    """Whether what training computes changes (rounding, the batch): it is preferred only where it gains more."""
    bounded: ClassVar[bool] = True
    """Whether it can gain all that its finding costs: not where that is paid once, nor where it answers but a part."""

    reaches: ClassVar[tuple[str, ...]] = ()
    """Keys of `bound.parts`: what of exposed transfers it can gain at most; all where none is named."""

    @property
    def subject(self) -> str:
        """What the knob is set for, where there are several (`rank 3`): each has its own suggestion."""
        return ""

    @property
    def of_cause(self) -> str:
        """The finding that it answers on one rank alone, where it does: mended on all of them, that is mended too."""
        return ""

    def says(self, text: str, finding: FindingEntry) -> str:
        """One of `TEXTS` with the facts in their places. Raises `AttributeError` for a place that is no fact."""
        of_finding = {"cost": cost(finding), "message": finding["message"], "finding": finding["code"]}

        def put(place: re.Match[str]) -> str:
            name = place[1]
            return of_finding[name] if name in of_finding else format(getattr(self, name), place[2] or "")

        said = _PLACE.sub(put, getattr(self, text))
        if text == "why" and finding["code"] == UNDIVIDED:
            said += "; the ranks that are not recorded are assumed to do the same"
        return said

    def facts(self) -> dict[str, Any]:
        """As they stand in a report."""
        return facts_of(self)


@dataclass(frozen=True)
class OfRank(Suggestion):
    """What is done about one rank, or about all of a group that is late alike: `ranks`, with `rank` as an example."""

    rank: int
    ranks: tuple[int, ...] = field(default=(), kw_only=True)
    shared: str = field(default="", kw_only=True)
    """What they share, in words."""

    @property
    def subject(self) -> str:
        return units.rank_words(self.ranks or (self.rank,))

    @property
    def who(self) -> str:
        return self.subject + (f" ({self.shared})" if self.shared else "")


def places(kind: type[Suggestion]) -> Iterator[str]:
    """Names that the texts of a record ask for."""
    yield from (place[1] for text in TEXTS for place in _PLACE.finditer(getattr(kind, text)))


def left_open(text: str) -> str:
    """A text as it is said of any run: «…» for each fact."""
    return _PLACE.sub("…", text)


def what_it_takes(code: str, share_frac: float) -> str:
    """`unfused kernels: 12.1 % of the time`."""
    return f"{finding_words(code)}: {units.share(share_frac)} of the time"


def cost(finding: FindingEntry) -> str:
    """What a finding costs, in words: the beginning of a reason; the finding's own message says the rest."""
    if not finding["share_frac"]:
        return finding["message"]
    return what_it_takes(finding["code"], finding["share_frac"])

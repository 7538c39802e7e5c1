"""What a cause of a stall is: its record, which says what it is called, what it means and how it is drawn.

A cause is one file in `causes/`. Findings, the verdict, every front and the documentation take its words from there.
Causes that host events show by their names are measured by the record too, the others by an analyzer that names them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from gpuscope.schema.document import Class, StragglerEntry
from gpuscope.trace.schema import Category
from gpuscope.when_used import dataclass
from gpuscope.words import units
from gpuscope.words.vocabulary import PartKey

UNATTRIBUTED = "unattributed"
"""Idle time that no host event explains; within the class communication, what can't be divided."""
UNDIVIDED_COMMUNICATION = "communication:unattributed"
"""Exposed communication that can't be divided: no sizes recorded, other ranks missing."""

Shown = tuple[tuple[Category, ...], Callable[[str], bool]]
"""Kinds of host events, and whether an event of this name shows the cause."""


@dataclass(frozen=True)
class FindingFacts:
    """What a finding's message may depend on."""

    share_frac: float
    """The cause's time by the windows of all lanes."""
    operations: int = 0
    """Copies or migrations behind it, exposed or not."""
    busy_ns: int = 0
    """Time during which any of these ran."""
    stragglers: Sequence[StragglerEntry] = ()
    testable: bool = True
    """Whether there were enough collectives to recognise a rank that is always last."""
    clock_error_ns: int | None = None
    on_cpu: bool = False
    """Whether no rank has a device."""


@dataclass(frozen=True)
class Look:
    """How a cause is drawn, on light and on dark pages: eight colours don't suffice, so some differ by fill alone."""

    colour: str
    fill: str = ""
    """Plotly's pattern shape; empty for a solid area."""


def _no_detail(_: FindingFacts) -> str:
    return ""


@dataclass(frozen=True)
class Cause:
    """One cause of time that is not compute."""

    code: str
    """Its name in reports."""
    place: int
    """Where it stands among the others in tables: the lowest first."""
    class_name: Class | None
    """None for what nothing explains."""
    label: str
    meaning: str
    """One line, Markdown: what it is."""
    message: str
    """What goes wrong, as its finding and the first line of a report begin; what it costs and `detail` follow."""
    look: Look
    about: str
    """Markdown of its section of docs/findings.md: what it is, in a paragraph."""
    recognised: str
    """How it is measured."""
    helps: str
    misleads: str
    """What looks like it and is not; «–» where nothing does."""
    on_cpu: str = ""
    """The same of a training on CPU, whose training thread is the device; empty where the words are the same."""
    located: bool = True
    """Whether the call or kernel beside which most of it is lost says anything of it."""
    idle: bool = False
    """Whether it is a part of idle time, rather than of exposed communication or memory time."""
    finding: str = ""
    """Code of its finding where that is not its own."""
    detail: Callable[[FindingFacts], str] = _no_detail
    """What else the finding says, each part beginning with `; `."""
    ranks: Callable[[FindingFacts], list[int]] | None = None
    """The ranks that its finding names, where these are not the ones that lose the time."""
    shown_by: tuple[Shown, ...] = ()
    """Host events that show it wherever they cover an idle instant of the launching thread; none where an analyzer
    measures it in another way."""
    precedence: int = 0
    """Where several of these cover an instant, the lowest takes it."""

    @property
    def finding_code(self) -> str:
        """Code of its finding."""
        return self.finding or self.code

    @property
    def part(self) -> PartKey:
        """The part of the breakdown that it is a share of; what the allocator costs is idle, though memory by class."""
        if self.idle:
            return "idle"
        return "exposed_communication" if self.class_name == "communication" else "exposed_memory"

    @property
    def anchor(self) -> str:
        """Where the documentation says how it is recognised, what helps and what misleads."""
        return f"findings.md#{self.finding_code}"

    def text(self, facts: FindingFacts) -> str:
        """The message of its finding."""
        share = units.share(facts.share_frac)
        return f"{self.said(facts.on_cpu)}: {share} of the time{self.detail(facts)}"

    def said(self, on_cpu: bool = False) -> str:
        """What goes wrong, on a device or on a CPU."""
        return self.on_cpu if on_cpu and self.on_cpu else self.message


def took(noun: str) -> Callable[[FindingFacts], str]:
    """What a finding says of `noun`: how many there were, and how long they took."""

    def said(facts: FindingFacts) -> str:
        if not facts.operations:
            return ""
        return f"; {facts.operations:,} {noun} took {units.duration(facts.busy_ns)} in all, hidden or not"

    return said

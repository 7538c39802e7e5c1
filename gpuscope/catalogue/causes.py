"""Every cause of a stall, in one table: what it is called, what it means, how its finding reads, how it is drawn.

Findings, the verdict, the terminal, the HTML report and the dashboard take a cause's words and colours from here;
the table in docs/definitions.md is generated from it. How a cause is measured stands in the analyzers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from gpuscope.catalogue.straggler_sentences import culprits, whose
from gpuscope.schema.document import Class, StragglerEntry
from gpuscope.words import palette, units
from gpuscope.words.vocabulary import PartKey


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
    class_name: Class | None
    """None for what nothing explains."""
    label: str
    meaning: str
    """One line, Markdown: what it is."""
    message: str
    """What goes wrong, as its finding and the first line of a report begin; what it costs and `detail` follow."""
    look: Look
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


def _whose(facts: FindingFacts) -> str:
    if not facts.stragglers:
        return ""
    return f"; {whose(facts.stragglers, facts.testable, facts.clock_error_ns)}"


def _culprits(facts: FindingFacts) -> list[int]:
    """The late ranks, not the waiting ones; the table of causes shows those."""
    return sorted(entry["rank"] for entry in culprits(facts.stragglers))


def _took(noun: str) -> Callable[[FindingFacts], str]:
    def took(facts: FindingFacts) -> str:
        if not facts.operations:
            return ""
        return f"; {facts.operations:,} {noun} took {units.duration(facts.busy_ns)} in all, hidden or not"

    return took


UNATTRIBUTED = "unattributed"
"""Idle time that no host event explains; within the class communication, what can't be divided."""
UNDIVIDED_COMMUNICATION = "communication:unattributed"
"""Exposed communication that can't be divided: no sizes recorded, other ranks missing."""

CAUSES = (
    Cause(
        "input", "cpu", "data loader",
        "the device is idle while the thread that launches next waits for the data loader",
        "The device waits for the data loader",
        Look(palette.VERMILLION), "The training thread waits for the data loader", idle=True,
    ),
    Cause(
        "sync", "cpu", "blocking synchronisation",
        "the device is idle because a blocking call (`.item()`, `cudaStreamSynchronize`, a pageable copy…) let the "
        "launch queue run dry",
        "Blocking calls drain the launch queue and leave the device idle",
        Look(palette.YELLOW), idle=True,
    ),
    Cause(
        "launch", "cpu", "kernel launch overhead",
        "the device is idle while that thread issues one launch after the other and is slower than the device: launch "
        "overhead",
        "The host launches kernels more slowly than the device runs them",
        Look(palette.SKY), idle=True, located=False,
    ),
    Cause(
        "gc", "cpu", "Python garbage collection",
        "Python's garbage collection",
        "Python's garbage collector runs while the device idles",
        Look(palette.GREEN), "Python's garbage collector holds the training thread", idle=True,
    ),
    Cause(
        "host_other", "cpu", "other host work",
        "anything else on the launching thread: checkpoint, logging, lock, file or network call, compilation, or one "
        "host operation that computes for long without launching",
        "The launching thread does other work while the device idles",
        Look(palette.GREEN, "/"), "The training thread runs host code other than operators", idle=True,
    ),
    Cause(
        "straggler", "communication", "waiting for a late rank",
        "exposed time of a collective before the last rank has arrived",
        "Collectives wait for the last rank to arrive",
        Look(palette.ORANGE, "/"), detail=_whose, ranks=_culprits,
    ),
    Cause(
        "latency", "communication", "small messages (latency)",
        "exposed transfer of messages so small that the fixed cost dominates",
        "Collectives are so small that their fixed cost dominates",
        Look(palette.ORANGE, "."),
    ),
    Cause(
        "bandwidth", "communication", "link bandwidth",
        "exposed transfer limited by bytes over the link",
        "Collectives are limited by the bandwidth of the link",
        Look(palette.ORANGE),
    ),
    Cause(
        "pipeline_bubble", "communication", "pipeline bubble",
        "a pipeline stage with nothing to do: it waits for an activation or gradient from a neighbour",
        "Pipeline stages wait for their neighbours",
        Look(palette.ORANGE, "-"),
    ),
    Cause(
        "copy", "memory", "host–device copies",
        "exposed host–device copies and memsets",
        "Copies between host and device are not hidden behind compute",
        Look(palette.PURPLE), detail=_took("copies and memsets"),
    ),
    Cause(
        "paging", "memory", "unified-memory paging",
        "unified-memory faults and migrations",
        "Unified-memory pages migrate while nothing else runs",
        Look(palette.PURPLE, "."), detail=_took("migrations"),
    ),
    Cause(
        "allocator", "memory", "allocator calls",
        "the device is idle while the host is in `cudaMalloc`, `cudaFree`, `cudaHostAlloc` or similar",
        "The device idles while the host allocates and frees memory",
        Look(palette.PURPLE, "x"), idle=True,
    ),
    Cause(
        UNATTRIBUTED, None, "no recorded cause",
        "the trace holds no host events that could explain the gap",
        "The device idles and no recorded host event explains it",
        Look(palette.GREY, "."), idle=True, located=False,
    ),
    Cause(
        UNDIVIDED_COMMUNICATION, "communication", "communication (wait or transfer)",
        "exposed communication that can't be divided into waiting and transfer: ranks or sizes are missing; "
        "`unattributed` within its class",
        "Communication is not hidden behind compute, and these files do not show whether ranks wait or transfer",
        Look(palette.ORANGE, "x"), finding="exposed_communication",
    ),
)  # fmt: skip
"""In the order of docs/definitions.md."""

BY_CODE = {cause.code: cause for cause in CAUSES}
NAMED = tuple(cause.code for cause in CAUSES if cause.code not in (UNATTRIBUTED, UNDIVIDED_COMMUNICATION))
"""Codes of the causes that say why: not what is left without one."""


def class_of(code: str) -> Class | None:
    """The class of a cause; None where it has none. Raises `KeyError` for no cause."""
    return BY_CODE[code].class_name


def cause_label(code: str) -> str:
    """`data loader (input)`: words first, then the code that definitions and JSON use, where the words lack it."""
    cause = BY_CODE.get(code)
    if cause is None:  # a report of a later version
        return code
    said = f" {cause.label} ".replace("(", " ").replace(")", " ")
    return cause.label if f" {code.replace('_', ' ')} " in said else f"{cause.label} ({code})"

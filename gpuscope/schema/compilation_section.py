"""The report's section `compilation`: what torch.compile did, from the logs that `TORCH_TRACE` writes."""

from __future__ import annotations

from gpuscope.when_used import TypedDict


class CompileEntry(TypedDict):
    """One compilation of a frame on a rank, in order of time."""

    rank: int
    compile_id: str
    """Frame and number of its compilation, as torch has it: `0/1`."""
    function: str | None
    file: str | None
    line: int | None
    """Where the function begins."""
    called_at: str | None
    """The user's line that called it, `file:line`."""
    start_ns: int | None
    """Since 1970."""
    dur_ns: int | None
    step: int | None
    """The step that it was in, of a trace of the same rank; None where it was in none."""
    recompiled: bool
    reason: str | None
    """The guard that failed."""
    failed: str | None
    """Why it failed: the frame then runs uncompiled."""
    cache: str | None
    """`hit`, `miss` or `bypass` of Inductor's cache of graphs."""


class GraphBreakEntry(TypedDict):
    """A line of the user's code at which graphs end, the costliest first."""

    file: str
    line: int | None
    reason: str
    explanation: str | None
    hint: str | None
    """torch's own."""
    ranks: list[int]
    compile_ids: list[str]
    """The compilations that broke there."""
    per_step: float | None
    """How often a judged step of a rank passes it; None where the trace has no ranges of compiled regions."""
    host_ns_per_step: int | None
    """From the end of the graph before it to the next one's begin, mean over ranks and judged steps."""
    idle_ns_per_step: int | None
    """Of it time in which the device was idle."""


class CompiledRankEntry(TypedDict):
    """What compiling took of a rank."""

    rank: int
    compiles: int
    recompiles: int
    failed: int
    cache_misses: int
    compile_ns: int
    """In all, compilations within compilations once."""
    in_steps_ns: int | None
    """Of it in judged steps; None without a trace of the rank on the same clock."""


class DivergenceEntry(TypedDict):
    """A way in which ranks compile unlike one another."""

    kind: str
    """`compilations`: not the same frames or reasons; `schedule`: not the same collectives in the same order."""
    file: str | None
    line: int | None
    function: str | None
    groups: list[list[int]]
    """Ranks that are alike, the largest group first."""
    what: list[str]
    """What each group has."""


class CompilationSection(TypedDict):
    """What torch.compile did and what that costs. Absent without its logs (`TORCH_TRACE`)."""

    compiles: list[CompileEntry]
    graph_breaks: list[GraphBreakEntry]
    ranks: list[CompiledRankEntry]
    divergence: list[DivergenceEntry]

"""What torch.compile costs while training goes on, and where ranks compile unlike one another."""

from __future__ import annotations

from gpuscope.catalogue.finding import Finding
from gpuscope.when_used import dataclass
from gpuscope.words import units

_LOGS = "logs of torch.compile (`TORCH_TRACE=DIR`, `gpuscope record --compile-logs`)"


@dataclass(frozen=True)
class Recompiling(Finding):
    """Frames are compiled again because a guard failed: a shape, a number or a mode is not what it was compiled for.
    Its cost lies within the causes of idle time: it is not added to them. Without a trace beside the logs it has none.
    """

    code = "recompiling"
    recognised = f"""{_LOGS}: compilations of a frame after its first. The cost is their time in judged steps. A step
    that compiles is rarely a steady one, so the cost may be 0 although compiling took long: the section `compilation`
    has its time in all recorded steps."""
    helps = """mark what changes as dynamic (`torch._dynamo.mark_dynamic`, `torch.compile(dynamic=True)`), or keep it
    the same."""
    misleads = """a first recompilation that makes a size dynamic, after which no other follows: in a recording of the
    first steps that is start-up."""

    times: int
    place: str
    """Function and line of the frame that was compiled again most."""
    reason: str
    """The guard that failed there last."""
    in_steps: bool
    """Whether any of it falls into recorded steps."""

    def message(self) -> str:
        when = "within steps" if self.in_steps else "after their first compilation"
        return (
            f"Frames are compiled again {when}, {units.plural(self.times, 'time')}, most at {self.place}: {self.reason}"
        )


@dataclass(frozen=True)
class CompileFailed(Finding):
    """torch.compile gave up on a function: it runs uncompiled, operator by operator, as if it had not been asked for.
    What that costs can't be measured: no compiled run is there to compare with.
    """

    code = "compile_failed"
    severity = "medium"
    recognised = f"{_LOGS}: compilations that end with an error."
    helps = """what the error says: the operator or the construct that it names, written in another way or kept out of
    the compiled function (`torch.compiler.disable`)."""
    misleads = "a frame that torch skips on purpose, because it holds nothing to compile."

    place: str
    reason: str
    """Of the first one."""
    places: int

    def message(self) -> str:
        others = f" (and at {units.plural(self.places - 1, 'other place')})" if self.places > 1 else ""
        return f"torch.compile failed at {self.place}{others}, which runs uncompiled: {self.reason}"


@dataclass(frozen=True)
class GraphBreak(Finding):
    """torch.compile ends a graph in the middle of a compiled function and goes on in Python. Its cost is the time
    between the graphs in which the device idles; kernels that can't be fused over the break come on top and are not
    counted. It lies within the causes of idle time: it is not added to them.
    """

    code = "graph_break"
    recognised = f"""{_LOGS}; the time between the graphs from the ranges of compiled regions, which torch.profiler
    records."""
    helps = "what torch's own hint says: the finding's advice names the setting for the common reasons."
    misleads = """a break where host and device have enough to do anyway: then nothing idles, and it costs fusion
    alone."""

    file: str
    line: int | None
    reason: str
    places: int
    """Lines at which graphs break."""

    def message(self) -> str:
        others = f" (and {units.plural(self.places - 1, 'other line')})" if self.places > 1 else ""
        return f"Compiled code breaks at {self.file}:{self.line or '?'}{others}: {self.reason}"


@dataclass(frozen=True)
class CompileDivergence(Finding):
    """Ranks do not compile alike: not the same frames, not for the same reasons, or not to the same collectives in the
    same order. A rank that compiles while the others do not is late by it; ranks whose collectives differ hang.
    """

    code = "compile_divergence"
    recognised = f"""{_LOGS} of two ranks or more. The cost is the time in judged steps that some ranks compile and
    others do not."""
    helps = """make all ranks see the same shapes in the same order; compile before the first collective; for
    collectives that differ, the code that depends on the rank."""
    misleads = "ranks of different pipeline stages, which compile different code: they are compared within their stage."

    kind: str
    place: str
    groups: list[list[int]]
    """Ranks that are alike, the largest group first."""

    def message(self) -> str:
        few = f"{units.rank_words(self.groups[-1])} differ{'s' if len(self.groups[-1]) == 1 else ''}"
        if self.kind == "schedule":
            return f"The compiled collectives of {self.place} are not the same on all ranks: {few} from the others"
        return f"Ranks compile unlike one another: {few} at {self.place}"

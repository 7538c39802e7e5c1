"""What the log of a job alone shows."""

from __future__ import annotations

from gpuscope.catalogue.finding import Finding
from gpuscope.when_used import dataclass
from gpuscope.words import units


@dataclass(frozen=True)
class LogShift(Finding):
    """From one step on all steps of the job take longer, or shorter, than before."""

    code = "log_shift"
    recognised = """a place in the log such that the steps before and after it are apart (95 % of all pairs of short
    stretches), by 5 % or more and four times what such stretches differ by, at once and for good."""
    helps = "what the log has beside it: another sequence length, a filled cache, a node that was replaced."
    misleads = "a job whose batches change by plan (curricula, growing batch sizes) has shifts that are meant."

    step: int
    from_ns: int
    to_ns: int
    beside: str

    def message(self) -> str:
        change = self.to_ns / max(self.from_ns, 1) - 1
        word = "slower" if change > 0 else "faster"
        span = units.span(self.from_ns, self.to_ns, " → ")
        return f"Steps are {abs(change):.0%} {word} from step {self.step:,} on ({span})".replace("%", " %")

    def shows(self) -> str:
        return f"beside it the log has {self.beside}" if self.beside else "nothing beside it in the log tells why"


@dataclass(frozen=True)
class LogGrowth(Finding):
    """Steps take ever longer in the course of the job."""

    code = "log_growth"
    recognised = """the steps after the warm-up rise steadily by a tenth or more; of the figures on the same lines, what
    goes with them."""
    helps = """look for memory that grows (fragmentation, tensors that are kept), caches that fill, longer sequences,
    logs that grow."""
    misleads = "a planned growth of the batch or of the sequence."

    first_ns: int
    last_ns: int
    steps: int
    figure: str | None
    figure_times: float | None

    def message(self) -> str:
        times = self.last_ns / max(self.first_ns, 1)
        span = units.span(self.first_ns, self.last_ns, " → ")
        return f"Steps take ever longer: {times:.2f} times over {self.steps:,} steps ({span})"

    def shows(self) -> str:
        if self.figure is None:
            return "no figure of the log grows with them"
        return f"{self.figure} grows with them ({self.figure_times or 1:.2f} times)"


@dataclass(frozen=True)
class LogLongSteps(Finding):
    """Single steps take much longer than all others."""

    code = "log_long_steps"
    recognised = "steps a tenth and three robust spreads above the median, at most one in five."
    helps = """look for what returns with their period: checkpoints, evaluations, garbage collection, logging, the
    data's shards."""
    misleads = "where only the mean of several steps is logged, one long step hides in it."

    count: int
    cost_ns: int
    longest_ns: int
    period: int | None
    beside: str

    def message(self) -> str:
        often = f"every {self.period:,} steps" if self.period else "now and then"
        return (
            f"{units.plural(self.count, 'long step')} {often} cost {units.duration(self.cost_ns)}, the longest takes "
            f"{units.duration(self.longest_ns)}"
        )

    def shows(self) -> str:
        return f"near them the log has {self.beside}" if self.beside else "nothing near them in the log tells why"


@dataclass(frozen=True)
class LogOverhead(Finding):
    """Evaluations, checkpoints or the start take time in which no step runs."""

    code = "log_overhead"
    recognised = "marks and durations that the log itself has, by the time from its first line, or mark, to its last."
    helps = """for checkpoints: write them asynchronously, less often. For evaluations: less often, on fewer samples.
    For the start: a compile cache, weights on local disks."""
    misleads = "a short test run, whose start is most of it."

    kind: str
    count: int
    cost_ns: int
    share: float
    every: int | None

    def message(self) -> str:
        cost = f"{units.duration(self.cost_ns)}, {units.share(self.share)} of the job"
        if self.kind == "startup":
            return f"The start takes {cost}"
        often = f" every {self.every:,} steps" if self.every else ""
        return f"{units.plural(self.count, self.kind)}{often} {'takes' if self.count == 1 else 'take'} {cost}"


@dataclass(frozen=True)
class LogRestarts(Finding):
    """The job was started again."""

    code = "log_restarts"
    recognised = "steps whose numbers go back, a launcher's or trainer's line, or another attempt's file."
    helps = "the lines before each restart; checkpoints more often where many steps are run again."
    misleads = "a job that was stopped and resumed by hand."

    count: int
    lost_ns: int | None
    repeated_steps: int

    def message(self) -> str:
        lost = "" if self.lost_ns is None else f" cost {units.duration(self.lost_ns)} until the next step"
        again = f", and {units.plural(self.repeated_steps, 'step')} ran again" if self.repeated_steps else ""
        return f"{units.plural(self.count, 'restart')}{lost}{again}"


@dataclass(frozen=True)
class LogPauses(Finding):
    """Between two lines with steps time passes that neither the steps nor an event account for."""

    code = "log_pauses"
    recognised = """time stamps of lines with steps further apart than the steps, evaluations and checkpoints between
    them."""
    helps = "what a rank did then: record with a longer window, or watch the file system and the data loader."
    misleads = "clocks that were set, and lines that were written late."

    count: int
    cost_ns: int
    longest_ns: int
    at_step: int | None

    def message(self) -> str:
        where = f", the longest before step {self.at_step:,}" if self.at_step is not None else ""
        return (
            f"{units.plural(self.count, 'pause')} between steps {'costs' if self.count == 1 else 'cost'} "
            f"{units.duration(self.cost_ns)}{where}"
        )


@dataclass(frozen=True)
class LogLateRank(Finding):
    """A rank whose own steps are longer than the others'."""

    code = "log_late_rank"
    recognised = "logs of several ranks with times of the same steps, one of which is longer in most of them."
    helps = "a trace of that rank and of one other: they tell whether its device, its host or its data is slow."
    misleads = "ranks with other work: the first stage of a pipeline, the rank that logs."

    rank: int
    step_ns: int
    others_ns: int

    def message(self) -> str:
        return (
            f"Rank {self.rank} takes {units.duration(self.step_ns)} for a step, the others "
            f"{units.duration(self.others_ns)}"
        )


@dataclass(frozen=True)
class LogQueue(Finding):
    """Requests of an inference server wait, or are preempted."""

    code = "log_queue"
    recognised = "the server's own lines: waiting requests, cache usage, preemptions."
    helps = """more memory for the cache (shorter contexts, fp8 cache, fewer weights per GPU), more replicas, fewer
    requests at once."""
    misleads = "a burst at the start of a benchmark."

    waiting: float
    cache_used: float | None
    preemptions: int

    def message(self) -> str:
        cache = "" if self.cache_used is None else f" with the cache {units.share(self.cache_used)} full"
        preempted = f", {units.plural(self.preemptions, 'request')} preempted" if self.preemptions else ""
        return f"{self.waiting:,.0f} requests wait in the median{cache}{preempted}"

"""Steps that are not like the others: what is paid once, and a step time that shifts midway."""

from __future__ import annotations

from dataclasses import field
from typing import Literal

from gpuscope.catalogue.finding import Finding
from gpuscope.when_used import dataclass
from gpuscope.words import units


@dataclass(frozen=True)
class Startup(Finding):
    """Building the model, the first copy of the parameters, module loading, compilation, first launches. Paid once
    per run, so it is no part of the step; `cost_ns` is its length. Two cases: what runs on the device before the
    first step (severity low, share 0), or a recording without steady steps that is start-up for the most part
    (severity medium, with its share of the window). Then nothing in it repeats, and there is no advice on its stalls.
    """

    code = "startup"
    severity = "low"
    recognised = """device events before b_0, from 1 % of the recording on. Without steady steps: compiling, loading
    modules and first launches are at least half of the idle time, and that is at least 10 % of the window. The
    evidence names what the host did longest."""
    helps = """record steps after the first ones. For many short runs: a persistent compile cache,
    `CUDA_MODULE_LOADING`, loading weights from pinned memory."""
    misleads = """a recording that starts in the middle of a step: what was launched before it began to record counts
    as set-up. A compiler whose calls and ranges are not known by name."""

    first_use: list[tuple[str, float]]
    """Of a recording that is start-up alone: what the host did longest, with its share; else empty."""
    share: float
    set_up_ns: int
    """What runs on the device before the first step."""

    def message(self) -> str:
        if self.alone:
            return f"{self.headline()} ({self.shows()}); record steps after the first ones"
        return f"Set-up before the first step takes {units.duration(self.set_up_ns)} on the device, once per run"

    def headline(self) -> str:
        if not self.alone:
            return self.message()
        return f"The recording is start-up, not steady state: {units.whole_share(self.share)} of it"

    def shows(self) -> str:
        if not self.alone:
            return self.message()
        names = ", ".join(f"{name} {units.share(share)}" for name, share in self.first_use)
        return f"compiling, loading modules and first launches: {names}"

    @property
    def alone(self) -> bool:
        """Whether nothing but start-up was recorded."""
        return bool(self.first_use)


@dataclass(frozen=True)
class Warmup(Finding):
    """The leading steps take longer than the usual one, or spend 5 % or more compiling, loading modules or
    autotuning. `cost_ns` is what they take beyond the usual step, in all.
    """

    code = "warmup"
    severity = "low"
    recognised = "the [roles of steps](definitions.md#what-is-judged)."
    helps = """record after it (`schedule(wait=…, warmup=…)`). Where it is paid often: a persistent cache for
    torch.compile and Triton, `torch.backends.cudnn.benchmark` off or with fixed shapes, fewer distinct shapes."""
    misleads = "a job whose steps get faster for another reason, as with growing caches of the file system."

    steps: int
    usual_ns: int
    more_ns: int

    def message(self) -> str:
        return _longer(
            self.steps, "warm-up step", "longer", self.usual_ns, "compilation, autotuning, first use", self.more_ns
        )


@dataclass(frozen=True)
class OutlierSteps(Finding):
    """Later steps that are much longer than the usual one: at most one in five. `cost_ns` is what they take beyond
    it, in all.
    """

    code = "outlier_steps"
    severity = "low"
    recognised = """d > m + max(3 s, 0.1 m) over the [later half of the steps](definitions.md#what-is-judged). The
    evidence names the longest ones. The longest is a *pause* where all devices idle for most of what it takes beyond
    the usual; ranks work *alone* in it where they compute or idle longer while the others wait in communication."""
    helps = """see what stands in them: a checkpoint off the critical path (asynchronous), evaluation less often or
    elsewhere, garbage collection at set steps, recompilation of a rare shape."""
    misleads = """a short recording: with few steps the spread is wide, and a slow step counts as usual. More than one
    long step in five is how the job runs, and is judged."""

    steps: int
    usual_ns: int
    more_ns: int
    shape: Literal["pause", "alone", ""] = ""
    """Of the longest one."""
    ranks: list[int] = field(default_factory=list)
    """Those that work alone in it."""
    place: str = ""
    """What the host did longest in it while the device was idle."""

    def message(self) -> str:
        return _longer(self.steps, "step", "much longer", self.usual_ns, self._why(), self.more_ns)

    def _why(self) -> str:
        where = f": {self.place}" if self.place else ""
        if self.shape == "pause":
            return f"in the longest all devices pause{where}"
        if self.shape == "alone":
            works = "works" if len(self.ranks) == 1 else "work"
            return f"in the longest {units.rank_words(self.ranks)} {works} alone while the others wait{where}"
        return "a checkpoint or an evaluation, say"


PARTS = {
    "compute": "computes",
    "exposed_communication": "waits for communication",
    "exposed_memory": "copies",
    "idle": "idles",
}
"""What a device does in each part of the breakdown."""


@dataclass(frozen=True)
class StepTimeShift(Finding):
    """From one step on, all take longer or all shorter. After a shift for good only the later steps are steady, and the
    earlier ones have the role `before_shift`. A smaller jump at the beginning leaves all of them steady: «the step» is
    the median of two regimes then, and its spread shows both. Severity is medium; `cost_ns` is what the slower side
    takes beyond the faster one, in all.
    """

    code = "step_time_shift"
    severity = "medium"
    recognised = """a split after warm-up and outliers where every step of one side exceeds 1.3 × every step of the
    other, single steps above twice their side's median set aside (at most one in five); both sides have two steps at
    least, the later more than a fifth of all. Else a leading run of steady steps that are shorter than m − max(3 s,
    0.1 m), followed by at least two steady ones that are not."""
    helps = """compare the two regimes with `--steps`. Clocks that fall with heat, an allocator that begins to go to
    the driver, a cache that is full, another job on the host."""
    misleads = "few steps in all: one fast one before two others makes a jump."

    fast_steps: int
    """Those before."""
    before_ns: float
    since_ns: float
    first: int | None = None
    """The first step after a shift for good; None of a jump that leaves all steps steady."""
    part: str = ""
    """Of a shift for good, the part of the breakdown that changed most…"""
    part_ns: int = 0
    """… and by how much per step, mean over ranks."""

    def message(self) -> str:
        before, since = units.duration(self.before_ns), units.duration(self.since_ns)
        if self.first is None:
            times = f"{self.since_ns / self.before_ns:.1f} times as long"
            return f"Steps take {times} after the first {self.fast_steps}: {before} before, {since} since"
        earlier = units.plural(self.fast_steps, "step")
        less = "longer" if self.part_ns > 0 else "less"
        changed = f": the device {PARTS[self.part]} {units.duration(abs(self.part_ns))} {less}" if self.part else ""
        return f"From step {self.first} on a step takes {since}, in the {earlier} before it took {before}{changed}"


@dataclass(frozen=True)
class RareSteps(Finding):
    """A few steps are so much longer than the usual one that the mean step is: what is rare or returns with a period
    (a collection of garbage, a checkpoint, logging in every hundredth step) costs no usual step anything, and its gain
    shows in none, but over the recording it is paid as surely. `cost_ns` is what these steps take beyond the usual one,
    in all; per usual step it costs nothing, so the keys per step are null.
    """

    code = "rare_steps"
    severity = "medium"
    recognised = """steps after the warm-up, and those of the warm-up whose longest host work returns later, last more
    than 1.3 × «the step», are at most half of all, and make up half of what the mean is longer than «the step»; that is
    at least a tenth of the mean."""
    helps = """what stands in them, done less often, beside training, or at the same step on all ranks: `gc.freeze()`
    and collections at set steps, asynchronous checkpoints, logging in a thread."""
    misleads = """a short recording: what it holds once may return in every thousandth step only. Record more steps
    (`--active`) to learn how often."""

    steps: int
    """The long ones…"""
    of_steps: int
    """… of so many."""
    period: int
    """They are every so-manieth; 0 where they are at no regular distance, or too few to say."""
    usual_ns: int
    mean_ns: int
    more_ns: int
    """What a long one takes beyond the usual, on average."""
    place: str = ""
    """What the host did longest in them while the device was idle…"""
    cause: str = ""
    """… and the cause of stalls that it is, where its name tells."""

    def headline(self) -> str:
        return f"{self._which()} {self._take()} {units.duration(self.more_ns)} longer"

    def message(self) -> str:
        return f"{self.headline()}{self._where()}: {self.price()}"

    def shows(self) -> str:
        return f"{self.price()}: {self.headline().replace('Every', 'every', 1)}{self._where()}"

    def price(self) -> str:
        """What that makes of the mean step."""
        share = units.whole_share(self.mean_ns / self.usual_ns - 1)
        mean, usual = units.duration(self.mean_ns), units.duration(self.usual_ns)
        return f"the mean step takes {mean}, {share} more than the usual {usual}"

    def _which(self) -> str:
        if self.period:
            return f"Every {units.ordinal(self.period)} step"
        return f"{self.steps} of {units.plural(self.of_steps, 'step')}"

    def _take(self) -> str:
        return "takes" if self.period or self.steps == 1 else "take"

    def _where(self) -> str:
        remedy = "; gc.freeze() and collections at set steps spare it" if self.cause == "gc" else ""
        return f" (mostly {self.place}{remedy})" if self.place else ""


def _longer(steps: int, noun: str, longer: str, usual_ns: int, why: str, more_ns: int) -> str:
    verb = "takes" if steps == 1 else "take"
    return (
        f"{units.plural(steps, noun)} {verb} {longer} than the usual {units.duration(usual_ns)} ({why}): "
        f"{units.duration(more_ns)} more in all"
    )

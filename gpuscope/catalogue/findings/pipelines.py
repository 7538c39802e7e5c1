"""Pipelines, and ranks or stages that are slower than their peers."""

from __future__ import annotations

from gpuscope.catalogue.finding import Finding
from gpuscope.catalogue.prediction_sentences import outcome
from gpuscope.schema.provenance import PipelineGain
from gpuscope.when_used import dataclass
from gpuscope.words import units

SlowOperation = tuple[str, int, int, int]
"""(operation, rank, ns that it took, ns of its peers): the one furthest above the ideal."""
FILLED_BY_MORE = {
    "gpipe": "GPipe",
    "1f1b": "1F1B",
    "interleaved_1f1b": "interleaved 1F1B",
    "looped_bfs": "looped breadth-first",
}
"""Schedules in which more micro-batches hide the filling, and what they are called."""


def place(stage: int, stages: int) -> str:
    """` (the first)`, ` (the last)`; empty between."""
    return " (the first)" if not stage else " (the last)" if stage == stages - 1 else ""


def _measured(slowest: SlowOperation | None) -> str:
    if slowest is None:
        return ""
    name, rank, took_ns, peers_ns = slowest
    return f"{name} of rank {rank}: {units.duration(took_ns)} vs. {units.duration(peers_ns)} of its peers (measured)"


def _explained(explained: float, costs: bool) -> str:
    """What part of the slowdown goes with it; of more than all, all, and why."""
    if not costs:
        return (
            "the others are as much quicker than the mean, with which it is compared, so no time is lost against that"
        )
    if explained <= 1:
        return f"{units.share(explained)} of the slowdown by stragglers goes away with that (M = {explained:.3f})"
    return (
        f"all of the slowdown by stragglers goes away with that (M = {explained:.3f}, above 1 where the others are "
        "quicker than the mean)"
    )


@dataclass(frozen=True)
class SlowWorker(Finding):
    """One rank's operations are slower than those of its stage in other data-parallel replicas, and the whole job
    waits for it.
    """

    code = "slow_worker"
    recognised = """in the [what-if](definitions.md#slowdown) on an operation-level trace, the step gets at least 1 %
    shorter if this rank's operations take as long as their peers', and so do more than half of the steps. The message
    gives M, its share of the slowdown."""
    helps = """take the rank's machine out and repeat; look at its clocks, temperature, memory errors and neighbours
    on the host."""
    misleads = "a replica that gets longer sequences than the others; times of ranks whose clocks disagree."

    ranks: list[int]
    stage: int
    replica: int | None = None
    """None where it was found by comparing stages at equal work."""
    before_ns: int | None = None
    """The step by its operations, and with this rank at its peers' pace."""
    after_ns: int | None = None
    explained: float | None = None
    """M: the part of the slowdown that it explains (docs/definitions.md)."""
    costs: bool = True
    """Whether any time is lost against the mean of all."""
    slowest: SlowOperation | None = None
    slower_ns: int | None = None
    """What the same operations take longer here than on the other stages, per step, and what these idle for it."""
    idle_ns: int | None = None

    def message(self) -> str:
        if self.before_ns is None or self.after_ns is None or self.explained is None:
            return (
                f"{units.rank_words(self.ranks).capitalize()} (stage {self.stage}) {units.be(self.ranks)} slow: the "
                f"same operations on the same shapes take {units.duration(self.slower_ns)} of a step longer than on "
                f"the other stages, which idle {units.duration(self.idle_ns)} for it; the split of the layers is not "
                "the reason"
            )
        return f"{self.headline()}: {self.without()}; {_explained(self.explained, self.costs)}"

    def headline(self) -> str:
        if self.replica is None:
            return self.message()
        return f"Rank {self.ranks[0]} (replica {self.replica}, stage {self.stage}) is slow"

    def shows(self) -> str:
        return _measured(self.slowest) or f"{self.without()} (calculated)"

    def without(self) -> str:
        """What the step would take."""
        return (
            "at the mean pace of its peers, its own included, the step would take "
            f"{units.duration(self.after_ns)} instead of {units.duration(self.before_ns)}"
        )


@dataclass(frozen=True)
class SlowStage(Finding):
    """One pipeline stage is slower than the others in all replicas."""

    code = "slow_stage"
    recognised = """as for `slow_worker`, for all ranks of a stage, where no single one of them explains half of it.
    With one replica an uneven split can't be distinguished from a slow rank, and the message says so."""
    helps = "give the stage fewer layers. The last stage holds the loss and the head, the first the embedding."
    misleads = "stages that are slow because they share a slow host."

    stage: int
    stages: int
    replicas: int
    explained: float
    costs: bool
    slowest: SlowOperation | None

    def message(self) -> str:
        said = f"{self.headline()}: {self.without()}"
        if self.replicas > 1:
            return said
        return f"{said}; with one replica, an uneven split can't be distinguished from a slow rank"

    def headline(self) -> str:
        return f"Pipeline stage {self.stage}{place(self.stage, self.stages)} is slow"

    def shows(self) -> str:
        return _measured(self.slowest) or f"{self.without()} (calculated)"

    def without(self) -> str:
        """What goes away with its slowness."""
        return _explained(self.explained, self.costs)


@dataclass(frozen=True)
class SlowOperations(Finding):
    """Operations are slower at some times than at others, and no rank or stage explains half of the slowdown."""

    code = "slow_operations"
    recognised = "the same what-if; the type named is the one that explains most."
    helps = """batches of equal cost (sequence lengths), garbage collection at the same step on all ranks, for
    communication the network."""
    misleads = """a recording of too few steps to distinguish ranks that are slow now and then from one that always
    is."""

    slowdown: float
    ideal_ns: int
    worst: str
    """The type of operation that explains most."""
    explained: float
    slowest: SlowOperation | None

    def message(self) -> str:
        return f"{self.headline()}: {self.without()}; {self.worst} explains {self.explained:.3f} of that"

    def headline(self) -> str:
        return "Operations are slower than their peers, and no rank or stage explains most of it"

    def shows(self) -> str:
        return _measured(self.slowest) or f"{self.without()} (calculated)"

    def without(self) -> str:
        """What the step takes of what it would."""
        return f"the step takes {self.slowdown:.3f} times the ideal {units.duration(self.ideal_ns)}"


@dataclass(frozen=True)
class PipelineImbalance(Finding):
    """One stage of a pipeline has more to compute than the others, which wait for it. The cost is the part
    `imbalance` of the [bubble](definitions.md#pipeline), mean over stages and steps; the message gives the step that
    the replay predicts for an even split.
    """

    code = "pipeline_imbalance"
    recognised = """the stage is the busiest in more than half of the steps, its micro-batches take longer by three
    standard errors, the others idle at least 1 % of the step for it, and an even split is predicted to save at least
    that. With several pipelines the message says in how many it is so: a stage that is slow in one alone is a slow
    rank. Where the same operations on the same shapes take longer there, it is `slow_worker`; where
    there are more operations or larger ones, it is the layers. Without shapes the message says that the two can't be
    distinguished in a single pipeline."""
    helps = "give the stage fewer layers. The last stage holds the loss and the head, the first the embedding."
    misleads = "a split that can't be more even, because a layer can't be cut."

    stage: int
    stages: int
    own_ns: int
    """Of computing per micro-batch, and the mean of the other stages."""
    others_ns: int
    idle_ns: int
    """Of a stage, per step."""
    even: PipelineGain
    """What the replay says of an even split."""
    pipelines: int
    slow_in: int
    """Pipelines in which this stage is the busiest."""
    told_apart: bool
    """Whether the work of each rank is known, which tells an uneven split from a slow rank."""

    def message(self) -> str:
        said = (
            f"{self.headline()}: a stage idles {units.duration(self.idle_ns)} of a step on average because it has less "
            f"to compute. With an even split: {outcome(self.even)}"
        )
        if self.pipelines == 1 and not self.told_apart:
            return f"{said}; with one pipeline, an uneven split can't be distinguished from a slow rank"
        if self.pipelines > 1 and self.slow_in < self.pipelines:
            return (
                f"{said}; only in {self.slow_in} of {self.pipelines} pipelines, so a slow rank is more likely than an "
                "uneven split"
            )
        return said

    def shows(self) -> str:
        return self.headline()

    def headline(self) -> str:
        others = "the other one" if self.stages == 2 else "the others on average"
        return (
            f"Pipeline stage {self.stage}{place(self.stage, self.stages)} computes {units.duration(self.own_ns)} per "
            f"micro-batch, {others} {units.duration(self.others_ns)}"
        )


@dataclass(frozen=True)
class WorkOutsidePipeline(Finding):
    """One rank of a pipeline computes much longer than the others outside its forwards and backwards, and every stage
    waits for it. The cost is how much longer, per step.
    """

    code = "work_outside_pipeline"
    recognised = """what its device computes in a step beyond the pipeline's computations, less the median of the
    other ranks: at least 10 % of the step (what bounds a run), more than three standard errors over the steps, and
    beyond what waiting for a core explains."""
    helps = """move the work off the training thread, share it, or do it less often. Neither another split nor more
    micro-batches help, and the device is not slow."""
    misleads = """a step whose forwards and backwards are not all marked by ranges: what is not marked counts as
    outside."""

    rank: int
    stage: int
    own_ns: int
    """Of computing outside the pipeline's computations, per step, and how much more than the others."""
    more_ns: int

    def message(self) -> str:
        return f"{self.shows()}. Neither the schedule nor the split of the layers is the reason"

    def shows(self) -> str:
        return (
            f"Rank {self.rank} (stage {self.stage}) computes {units.duration(self.own_ns)} of a step outside the "
            f"pipeline's computations, {units.duration(self.more_ns)} more than the others: every stage waits for it"
        )


@dataclass(frozen=True)
class FewMicroBatches(Finding):
    """So few micro-batches that filling and draining the pipeline costs time. The cost is the parts `warm_up` and
    `drain` of the [bubble](definitions.md#pipeline), mean over stages and steps; the message gives the step that the
    replay predicts for twice the micro-batches.
    """

    code = "few_micro_batches"
    recognised = """a schedule that is recognised, m micro-batches of v model chunks with m·v below four times the
    number of stages (Huang et al. 2019: from there on the bubble is almost negligible), at least 1 % of the step."""
    helps = """more, smaller micro-batches; more accumulation; a schedule with several model chunks per stage or a
    zero-bubble one."""
    misleads = """micro-batches that can't get smaller without the device becoming idle: computing then takes longer,
    which the predicted step time knows only as far as operators' dispatch shows it."""

    micro_batches: int
    stages: int
    schedule: str
    idle_ns: int
    """Of a stage, per step."""
    ideal_bubble: float
    """With equal stages, of the pipeline's time."""
    more: PipelineGain
    """What the replay says of more of them."""

    def message(self) -> str:
        return (
            f"{self.headline()}: {self.shows()}; with equal stages it would be {units.share(self.ideal_bubble)} of the "
            f"pipeline's time. The same batch in {self.more['micro_batches']} micro-batches: {outcome(self.more)}"
        )

    def shows(self) -> str:
        return f"a stage idles {units.duration(self.idle_ns)} of a step on average while the pipeline fills and drains"

    def headline(self) -> str:
        batches = units.plural(self.micro_batches, "micro-batch", "micro-batches")
        return f"{batches} on {units.plural(self.stages, 'stage')} ({FILLED_BY_MORE[self.schedule]})"

"""A job that hung."""

from __future__ import annotations

from collections.abc import Iterable

from gpuscope.catalogue.finding import Finding
from gpuscope.when_used import dataclass
from gpuscope.words import units

CAUSES_NAMED = 4
LONGEST_RANKS = 40
"""Characters of the longest list of ranks in a sentence."""


@dataclass(frozen=True)
class Hang(Finding):
    """The job hung. The ranks of the finding are the first cause, not those who waited."""

    code = "hang"
    severity = "high"
    recognised = """Flight Recorder dumps. A rank waits where an operation of its own is unfinished and another member
    of the group has not enqueued it. A rank that is awaited in one operation while it waits in another is held up
    itself; the ranks that others wait for and that wait for nobody are the first cause. So are ranks that alone did
    not finish what all others finished, and those that called another operation, size or type than the majority.
    Stacks, logs and processes' states say what they did instead. Without dumps: who died or is stopped; where a
    watchdog's time was up, who had enqueued less, whose watchdog stands still, who reports nothing (by the files, the
    group's size, what a gather makes of its input), who waits in another group's operation; else whose stack is not in
    a collective, who compiles, whose network failed."""
    helps = """what is told as next. For a mismatch, the branch of code that only some ranks take."""
    misleads = """dumps of a job that still ran; one stack, which is one moment; dumps taken long after each
    other; missing dumps (then only the missing rank is under suspicion); sends and receives in groups of more than two
    ranks, matched by count."""

    causes: list[tuple[str, list[int]]]
    """Why ranks are the first cause, and which."""
    only_waited: list[int]

    def message(self) -> str:
        parts = [sentence(f"{rank_list(own)}: {why}") for why, own in self.causes[:CAUSES_NAMED]]
        if len(self.causes) > CAUSES_NAMED:
            parts.append(f"And {units.plural(len(self.causes) - CAUSES_NAMED, 'more first cause')}")
        if self.only_waited:
            parts.append(sentence(f"{rank_list(self.only_waited)} only waited"))
        return ". ".join(["The job hung", *parts])


@dataclass(frozen=True)
class LateInDumps(Finding):
    """A rank comes last to the collectives that Flight Recorder dumps time."""

    code = "late_in_dumps"
    recognised = """Flight Recorder dumps of several ranks, without a profiler. With `TORCH_NCCL_ENABLE_TIMING=1` they
    hold how long each collective ran on each device (`duration_ms`): it ends together everywhere, so the rank with the
    shortest one came last, and the others waited for what theirs are longer. Without it, the times at which a rank
    enqueued it tell, on clocks compared by when the watchdogs saw it done, which they do to 100 ms; then only lateness
    of 200 ms counts. The rank must come last more often than chance does in one job of a hundred, and in three
    quarters of the collectives, or of those since it began to (Pettitt's test)."""
    helps = """a recording of that rank and another one (`gpuscope record`), which says what it does meanwhile."""
    misleads = """a rank that enqueues late need not come late: the device may still be busy with earlier work."""

    last: int
    """Collectives in which it came last."""
    of: int
    wait_ns: int
    """What the others waited for it in one of them, median."""
    device: bool
    """Whether the devices' own times tell it."""
    since: int | None
    """Number of the collective from which on it is late; None: from the first that is recorded."""

    def message(self) -> str:
        begin = "" if self.since is None else f" since number {self.since}"
        basis = "the durations on the devices" if self.device else "when it enqueued them, to 100 ms"
        return (
            f"Comes last to {self.last} of {self.of} collectives in the Flight Recorder's dumps{begin}, by {basis}: "
            f"the others wait {units.duration(self.wait_ns)} each time, in the median"
        )


@dataclass(frozen=True)
class TransfersInDumps(Finding):
    """Transfers take much of the time that Flight Recorder dumps cover."""

    code = "transfers_in_dumps"
    recognised = """Flight Recorder dumps with `duration_ms` (`TORCH_NCCL_ENABLE_TIMING=1`): the shortest duration of a
    collective over its ranks is its transfer, and those of one group together take a tenth of the recorded time or
    more. Whether computation hides them the dumps can't tell."""
    helps = """a recording by torch.profiler or Nsight Systems shows how much of it is exposed."""
    misleads = """collectives of several groups at once; work of others on the same links."""

    op: str
    group: str
    count: int
    median_ns: int

    def message(self) -> str:
        return (
            f"{units.plural(self.count, 'transfer')} ({self.op}, group {self.group}) of "
            f"{units.duration(self.median_ns)} in the median, by the Flight Recorder's durations on the devices"
        )


def rank_list(numbers: Iterable[int]) -> str:
    """`rank 9`, or `ranks 0-3 and 9`; of very many that make no ranges, the number and the first few."""
    found = sorted(set(numbers))
    text = units.ranks(found)
    if len(text) > LONGEST_RANKS:
        return f"{len(found)} ranks ({','.join(text[:LONGEST_RANKS].split(',')[:-1])},…)"
    *first, last = text.split(",")
    return f"{'rank' if len(found) == 1 else 'ranks'} {', '.join(first)}{' and ' if first else ''}{last}"


def sentence(text: str) -> str:
    """With a capital."""
    return text[0].upper() + text[1:]

"""A job that hung."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from gpuscope.catalogue.finding import Finding
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
    not finish what all others finished, and those that called another operation, size or type than the majority."""
    helps = """the stack of the named rank (`py-spy dump`, `faulthandler`), its host's log, `dmesg` and `nvidia-smi
    -q` for errors of its GPU. For a mismatch, the branch of code that only some ranks take."""
    misleads = """dumps of a job that still ran; dumps taken long after each other; missing dumps (then only the
    missing rank is under suspicion); sends and receives in groups of more than two ranks, matched by count."""

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


def rank_list(numbers: Iterable[int]) -> str:
    """`rank 9`, or `ranks 0-3,9`; of very many that make no ranges, the number and the first few."""
    found = sorted(set(numbers))
    text = units.ranks(found)
    if len(text) > LONGEST_RANKS:
        return f"{len(found)} ranks ({','.join(text[:LONGEST_RANKS].split(',')[:-1])},…)"
    return f"{'rank' if len(found) == 1 else 'ranks'} {text}"


def sentence(text: str) -> str:
    """With a capital."""
    return text[0].upper() + text[1:]

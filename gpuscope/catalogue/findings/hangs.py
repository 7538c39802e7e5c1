"""A job that hung."""

from __future__ import annotations

from dataclasses import dataclass

from gpuscope.catalogue.finding import Finding


@dataclass(frozen=True)
class Hang(Finding):
    """The job hung. The ranks of the finding are the first cause, not those who waited."""

    code = "hang"
    recognised = """Flight Recorder dumps. A rank waits where an operation of its own is unfinished and another member
    of the group has not enqueued it. A rank that is missing somewhere while it waits elsewhere has an excuse; the
    ranks that others wait for and that wait for nobody are the first cause. So are ranks that alone did not finish
    what all others finished, and those that called another operation, size or type than the majority."""
    helps = """the stack of the named rank (`py-spy dump`, `faulthandler`), its host's log, `dmesg` and `nvidia-smi
    -q` for errors of its GPU. For a mismatch, the branch of code that only some ranks take."""
    misleads = """dumps of a job that still ran; dumps taken long after each other; missing dumps (then only the
    missing rank is under suspicion); sends and receives in groups of more than two ranks, matched by count."""

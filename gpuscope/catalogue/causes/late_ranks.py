"""Ranks that wait for a late one."""

from __future__ import annotations

from gpuscope.catalogue.cause import Cause, FindingFacts, Look
from gpuscope.catalogue.straggler_sentences import culprits, whose
from gpuscope.words import palette


def _whose(facts: FindingFacts) -> str:
    if not facts.stragglers:
        return ""
    return f"; {whose(facts.stragglers, facts.testable, facts.clock_error_ns)}"


def _culprits(facts: FindingFacts) -> list[int]:
    """The late ranks, not the waiting ones; the table of causes shows those."""
    return sorted(entry["rank"] for entry in culprits(facts.stragglers))


CAUSE = Cause(
    code="straggler",
    place=60,
    class_name="communication",
    label="waiting for a late rank",
    meaning="exposed time of a collective before the last rank has arrived",
    message="Collectives wait for the last rank to arrive",
    look=Look(palette.ORANGE, "/"),
    detail=_whose,
    ranks=_culprits,
    about="Collectives wait for the last rank to arrive.",
    recognised=(
        "matching every collective over all ranks of its group. From a rank's own start to the last rank's "
        "start it waits; what of that is exposed is counted. The finding names the ranks to whom the waiting "
        "goes back, what they were doing, and the [reason](definitions.md#why-a-rank-is-late) where the trace "
        "shows one: its device, its data or its host. The table of causes shows the ranks that **wait**. A "
        "long collective kernel is not evidence of a slow network."
    ),
    helps=(
        "what answers the reason. `device`: its clocks, temperature and memory errors; drain or replace its "
        "node. `data`: batches of equal cost (bucketed or packed sequences, a balanced router). `host`: the "
        "cpu cause that is named, on that rank. A rank that is not recurrent is noise until more steps show "
        "otherwise. A group (four ranks of one host) is mended as a whole: the others wait for whoever is left."
    ),
    misleads=(
        "files of one side only (the cause abstains); clocks that nothing ties together: no claim is finer "
        "than `clock_error_ns`; ranks that run different programs (pipeline stages): there the trail of a "
        "late rank ends, and its wait is traced to no rank. Without recorded shapes a slow device can't be "
        "distinguished from longer data."
    ),
)

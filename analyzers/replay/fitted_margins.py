"""What the range of a change on a GPU takes beyond its known sources of error, fitted to simulated jobs."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import NamedTuple

from gpuscope.analyzers import changes
from gpuscope.analyzers.changes import Change


class Margin(NamedTuple):
    """`share` of the step on either side, so that nine in ten of so many `predictions` were held. Less than 0 where
    what is known to be uncertain holds more alone."""

    share: float
    predictions: int


MARGINS: Mapping[type[Change], Margin] = {}
"""The split-conformal quantile (Y. Romano and others, «Conformalized quantile regression», NeurIPS 2019) of
`python -m benchmarks.verdicts --only changes --fit --seed 10000 --seed 15000 --seed 20000 --jobs 40`, 2026-11-25."""
INFERRED = 2.0
"""How many times as much where streams' waits are not recorded but inferred. Chosen, and checked on simulated jobs."""
MEETING = (changes.WireBytes, changes.Overlap, changes.Prefetch, changes.KeepParameters, changes.GroupModules)
"""Changes of when or for how long collectives run…"""
ON_ONE_LINK = Margin(0.0, 0)
"""… and their margin where those of two streams may meet on one link."""
TOGETHER = Margin(0.0, 0)
"""Beyond the largest of several changes."""


def margin(made: Collection[Change], crowded: bool) -> float:
    """Of changes, where streams of collectives share a link or not."""
    own = [
        ON_ONE_LINK if crowded and isinstance(one, MEETING) else MARGINS.get(type(one), Margin(0.0, 0)) for one in made
    ]
    most = max((one.share for one in own), default=0.0)
    return most + TOGETHER.share if len(own) > 1 else most

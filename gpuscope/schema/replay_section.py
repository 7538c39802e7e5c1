"""The `replay` section of the report, how well the trace's own graph gives back its step time, and what it predicts."""

from __future__ import annotations

from typing import NotRequired

from gpuscope.schema.provenance import Provenance
from gpuscope.when_used import TypedDict


class Replay(TypedDict):
    """The trace replayed without a change ([how](architecture.md#the-replay)); what predictions rest on. Times are
    means over ranks and replayed steps."""

    measured_step_ns: int | None
    """As recorded; null where nothing could be replayed."""
    replayed_step_ns: int | None
    """Of the baseline replay."""
    error_frac: float | None
    """|replayed − measured| / measured."""
    steps: int
    """Steps replayed."""
    inferred_waits: NotRequired[int | None]
    """Waits of a stream for another that were not recorded but inferred; None where nothing was replayed."""
    why: str
    """Why nothing is predicted; empty where changes can be."""


class Prediction(TypedDict):
    """The step time that a change leads to, in ns; `low_ns` and `high_ns` bound `step_ns_after`."""

    step_ns_before: int
    """«the step» (`step_time.median_ns`); without steps the window."""
    step_ns_after: int
    """Never below what the device must compute."""
    low_ns: int
    """Lower bound of `step_ns_after`; the two bounds are meant to hold in nine cases of ten."""
    high_ns: int
    """Upper bound of `step_ns_after`."""
    basis: str
    """What the prediction rests on."""
    provenance: Provenance
    """`inferred` by a replay; `assumed` where costs in it are a link's figures and not fitted to the trace, or the
    share of a micro-batch's time that does not shrink with it."""

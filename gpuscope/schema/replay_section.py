"""The `replay` section of the report, how well the trace's own graph gives back its step time, and what it predicts."""

from __future__ import annotations

from typing import NotRequired, TypedDict

from gpuscope.schema.provenance import Provenance


class Replay(TypedDict):
    """The unchanged replay. Step times are means over ranks and replayed steps."""

    measured_step_ns: int | None
    replayed_step_ns: int | None
    error_frac: float | None
    """|replayed − measured| / measured."""
    steps: int
    inferred_waits: NotRequired[int | None]
    """Waits of a stream for another that were not recorded but inferred; None where nothing was replayed."""
    why: str
    """Why nothing is predicted; empty where changes can be."""


class Prediction(TypedDict):
    """The step time that a change leads to, in ns; `low_ns` and `high_ns` bound `step_ns_after`."""

    step_ns_before: int
    step_ns_after: int
    low_ns: int
    high_ns: int
    basis: str
    provenance: Provenance
    """`inferred` by a replay; `assumed` where costs in it are a link's figures and not fitted to the trace, or the
    share of a micro-batch's time that does not shrink with it."""

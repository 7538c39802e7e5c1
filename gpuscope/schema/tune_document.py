"""What `gpuscope tune` found, as one JSON document (docs/tuning.md).

Times are integer ns, of steps without a profiler.
"""

from __future__ import annotations

from typing import Literal

from gpuscope.when_used import TypedDict

TUNE_VERSION = 1
RESULT = "result.json"
"""Its name in the folder."""

Outcome = Literal[
    "faster",
    "no_gain",
    "not_beyond_chance",
    "losses_moved",
    "losses_not_seen",
    "not_applied",
    "hung",
    "failed",
    "no_steps",
    "budget",
    "not_confirmed",
]
Ended = Literal["done", "nothing_applicable", "no_advice", "budget", "interrupted"]
Compared = Literal["equal", "within_noise", "seen_once", "not_seen"]


class Setting(TypedDict):
    """What a run was started with: `gpuscope record --set NAME=VALUE`."""

    name: str
    """The knob."""
    value: str
    """What it is set to."""


class TriedChange(TypedDict):
    """One suggestion that was followed, measured, and kept or not."""

    code: str
    """The suggestion's code."""
    action: str
    """What it says."""
    setting: str
    """Name and value as the report has them."""
    changes: list[Setting]
    """What the trial was started with for it."""
    before_ns: int
    """The step it was judged against: that of the best so far."""
    predicted_ns: int | None
    """The step it should lead to: `before_ns` times the predicted ratio; null where the trace gives no figure."""
    low_ns: int | None
    """Lower end of the range predicted for what is measured, nine chances in ten: what runs differ by is in it."""
    high_ns: int | None
    """Its upper end."""
    measured_ns: int | None
    """The step measured; null where the trial ended before."""
    ratio_low: float | None
    """Lower end of the 95 % interval of measured / before."""
    ratio_high: float | None
    """Its upper end: below 0.99 where the change is kept."""
    kept: bool
    """Whether it is part of the best."""
    outcome: Outcome
    """Why, in one word."""
    why: str
    """Why, in a sentence."""
    runs: int
    """Recordings it took, those of the best that were repeated for it included."""


class ByHand(TypedDict):
    """A suggestion that can't be tried from outside the script, or work of the script's own."""

    code: str
    """The suggestion's code; of the script's own work that none answers the finding's, `host_other`."""
    action: str
    """What to do."""
    setting: str
    """Name and value."""
    why: str
    """Why it was not tried."""


class TuneDocument(TypedDict):
    """The whole result."""

    tune_version: int
    """Version of this document: 1."""
    gpuscope_version: str
    """Version that tuned."""
    command: list[str]
    """What was tuned."""
    folder: str
    """Where the recordings are."""
    ended: Ended
    """`done` where nothing was left to try, `no_advice` where the profiled run or its analysis failed."""
    now: str
    """What goes on; empty once it has ended."""
    baseline_step_ns: int
    """The step as the command stands."""
    best_step_ns: int
    """The step with the changes kept."""
    ratio_low: float | None
    """Lower end of the 95 % interval of best / baseline; null where nothing is kept."""
    ratio_high: float | None
    """Its upper end."""
    noise_frac: float | None
    """How much one run's step differs from the next one's with the same settings, standard deviation; null where none
    ran twice."""
    losses: Compared
    """How the first losses of runs with the same settings compare with each other."""
    changes: list[TriedChange]
    """What was tried, in order."""
    by_hand: list[ByHand]
    """What was not, because it needs a change of the script or a permission."""
    runs: int
    """Recordings made."""
    seconds: float
    """Time it took."""
    seconds_of_runs: float
    """Of it, runs of the command."""
    seconds_of_analysis: float
    """Of it, the analysis of profiled ones."""
    budget: str
    """As given."""
    take: list[str]
    """What to take along for the changes kept: variables, arguments, lines of the script; as in the file `take.txt`."""
    written: list[str]
    """Files of the working directory that changed meanwhile: the script's own output."""

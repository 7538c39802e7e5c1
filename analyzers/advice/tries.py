"""What the replay says of changes to one run, each combination asked for once."""

from __future__ import annotations

from collections.abc import Sequence

from gpuscope.analyzers.advice.rule import Estimate, Predict, Proposal
from gpuscope.analyzers.changes import Change, Predicted, Refused, in_order

MIN_GAIN_FRAC = 0.01
"""A gain below one percent of the step is within what two runs differ by: not worth a change."""
TIE_FRAC = MIN_GAIN_FRAC / 2
"""Of the step as it is: values of one knob that come closer to the best one are equally good."""
UNCERTAIN_GAIN_FRAC = 0.03
"""Gains from which a suggestion is worth knowing though its range holds no gain as well: as much as a finding of medium
severity costs."""


class Tries:
    """Estimates and predictions of one run."""

    def __init__(self, predict: Predict, estimate: Estimate | None = None) -> None:
        self._predict, self._estimate = predict, estimate
        self._predicted: dict[tuple[Change, ...], Predicted | Refused] = {}
        self._estimated: dict[tuple[Change, ...], int | Refused] = {}

    def predict(self, changes: Sequence[Change]) -> Predicted | Refused:
        """A prediction with its range."""
        key = tuple(changes)
        if key not in self._predicted:
            self._predicted[key] = self._predict(key)
        return self._predicted[key]

    def after(self, changes: Sequence[Change]) -> int | Refused:
        """The step alone, ns."""
        key = tuple(changes)
        if self._estimate is None or key in self._predicted:
            outcome = self.predict(key)
            return outcome if isinstance(outcome, Refused) else outcome.after
        if key not in self._estimated:
            self._estimated[key] = self._estimate(key)
        return self._estimated[key]

    def hopeless(self, proposal: Proposal, after: int) -> bool:
        """Whether the step that a proposal leads to is known, without its range, to be no gain."""
        before = self.after(()) if self._estimate is not None and proposal.gains_time else Refused("")
        return not isinstance(before, Refused) and after > before * (1 - MIN_GAIN_FRAC)

    def step(self, proposal: Proposal) -> int | Refused:
        """The step that a proposal alone leads to, ns."""
        if (known := proposal.known) is not None:
            return known if isinstance(known, Refused) else known.after
        return self.after(proposal.changes)

    def outcome(self, proposal: Proposal) -> Predicted | Refused:
        """What a proposal alone leads to, with its range."""
        return proposal.known or self.predict(proposal.changes)

    def if_unused(self, proposal: Proposal) -> Predicted | Refused:
        """The same where the host does not need what it reads."""
        return self.predict(proposal.if_unused)

    def together(self, proposals: Sequence[Proposal]) -> int | Refused:
        """The step that proposals made together lead to, ns."""
        return self.after(_changes(proposals))

    def predict_together(self, proposals: Sequence[Proposal]) -> Predicted | Refused:
        """The same with its range."""
        return self.predict(_changes(proposals))


def _changes(proposals: Sequence[Proposal]) -> list[Change]:
    return in_order(change for proposal in proposals for change in proposal.changes)


def is_gain(predicted: Predicted) -> bool:
    """Whether the step gets at least `MIN_GAIN_FRAC` shorter, and shorter for certain."""
    return predicted.after <= predicted.before * (1 - MIN_GAIN_FRAC) and predicted.high < predicted.before


def may_gain(predicted: Predicted) -> bool:
    """Whether the step is expected to get clearly shorter, though its range holds no gain as well."""
    return predicted.after <= predicted.before * (1 - UNCERTAIN_GAIN_FRAC) and not is_gain(predicted)

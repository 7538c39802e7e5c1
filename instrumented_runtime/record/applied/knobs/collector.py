"""Python's garbage collector: not in the middle of steps."""

from __future__ import annotations

import gc

from gpuscope.instrumented_runtime.record.applied.knob import Family, Knob, at_least
from gpuscope.instrumented_runtime.record.applied.ledger import Ledger

NAME = "gc.mode"


def mode(value: str) -> int | None:
    """Steps between collections; 0: none, None: as Python does, of what is new since the first step."""
    if value == "freeze":
        return None
    return 0 if value == "off" else at_least(1)(value.removeprefix("every:") if value.startswith("every:") else "")


def _install(ledger: Ledger) -> None:
    wanted = ledger.wanted(NAME)

    def after(step: int) -> None:
        every = wanted[NAME]
        if step == 0:  # all that the script made up to here stays
            gc.collect()
            gc.freeze()
            if every is not None:
                gc.disable()
            ledger.applied(NAME)
        elif every and step % every == 0:
            gc.collect(1)

    if wanted:
        ledger.at_step.append(after)
    ledger.at_end.append(lambda: _look(ledger))


def _look(ledger: Ledger) -> None:
    ledger.seen("gc.enabled", gc.isenabled())
    ledger.seen("gc.frozen", gc.get_freeze_count() > 0)
    ledger.seen("gc.threshold", ",".join(map(str, gc.get_threshold())))


FAMILY = Family(
    "collector",
    (
        Knob(
            name=NAME,
            takes="freeze, off or every:N steps",
            read=mode,
            alters="Nothing computed; unreachable cycles stay in memory until they are collected, with off for good.",
            shown_by="test_process.py",
        ),
    ),
    _install,
)

"""Roles of steps: set-up, warm-up, steady, outlier, cut off; durations in ms, worked by hand."""

from __future__ import annotations

import pytest

from gpuscope.analyzers.base.evidence import Role, StepFacts, leading_fast, roles

LETTER = {"w": Role.WARMUP, "s": Role.STEADY, "o": Role.OUTLIER, "p": Role.PARTIAL, "b": Role.BEFORE_SHIFT}


def steps(*durations: int) -> list[StepFacts]:
    return [StepFacts(duration * 1_000_000) for duration in durations]


@pytest.mark.parametrize(
    ("durations", "expected"),
    [
        # Later half of 2200 1000 1000 1000 is 1000 1000: long above 1100. The last step lacks its successor.
        ([2200, 1000, 1000, 1000, 900], "wsssp"),
        # A checkpoint in one of five steps after the warm-up is an outlier …
        ([2200, 1000, 1000, 3000, 1000, 1000, 900], "wssossp"),
        # … two of five are how the job runs.
        ([2200, 1000, 3000, 1000, 3000, 1000, 900], "wsssssp"),
        # Too few others: the last step counts.
        ([1000, 1000], "ss"),
        ([1000], "s"),
        # Exactly a tenth longer is usual, more is not: later half 1000 1000.
        ([1100, 1000, 1000, 1000, 1000], "ssssp"),
        ([1101, 1000, 1000, 1000, 1000], "wsssp"),
        # Faster at the beginning by less than a shift is steady; the jump is a finding of its own.
        ([800, 800, 1000, 1000, 1000], "ssssp"),
        # A shift: only what follows it is steady, whichever side is faster.
        ([116, 115, 1015, 1068, 1076], "bbssp"),
        ([1000, 1000, 1000, 1000, 1000, 1000, 1000, 700, 690, 695], "bbbbbbbssp"),
        # By 1.3 times, not more, is none.
        ([100, 100, 130, 130, 130], "ssssp"),
        # One step on a side is none; nor are later ones that are at most a fifth of all.
        ([100, 200, 200, 200, 200], "ssssp"),
        ([100, 100, 100, 100, 100, 100, 100, 100, 200, 200, 200], "ssssssssoop"),
        # A single step above twice its side's median, of six, hides none …
        ([100, 100, 250, 100, 100, 100, 200, 230, 260, 230, 200, 260, 230], "bbbbbbssssssp"),
        # … two of six do; an outlier stays one.
        ([100, 250, 250, 100, 100, 100, 200, 230, 260, 230, 200, 260, 230], "ssssssssssssp"),
        ([100, 100, 100, 250, 100, 100, 200, 200, 200, 200, 200, 200], "bbbobbsssssp"),
        # After a shift the roles are found anew: there a checkpoint is an outlier.
        ([100, 100, 100, 100, 200, 200, 500, 200, 200, 200, 200], "bbbbssosssp"),
        # Steps that alternate shift nowhere.
        ([100, 200, 100, 200, 100, 200, 100], "ssssssp"),
        # Of several shifts the last one counts.
        ([100, 100, 100, 200, 200, 200, 400, 400, 400, 400], "bbbbbbsssp"),
        # Spread: later half 900 1000 1100, MAD 100, long above 1000 + 3·148.26 = 1444.8.
        ([1450, 1000, 1000, 900, 1000, 1100, 1000], "wsssssp"),
        # Of fewer than eight the spread tells nothing after the warm-up: long above 1300 …
        ([1440, 1000, 1000, 900, 1000, 1100, 1000], "osssssp"),
        ([1000, 1300, 1000, 900, 1000, 1100, 1000], "ssssssp"),
        ([1000, 1301, 1000, 900, 1000, 1100, 1000], "sossssp"),
        # … of eight it does: later half 900 1000 1000 1100, the lower median of both 1000 and its deviations: 0.
        ([1000, 1000, 1000, 1101, 900, 1000, 1000, 1100, 1000], "sssossssp"),
        # A single long one, while two others remain; later half 219 427: of two the lower.
        ([212, 219, 427, 209], "ssop"),
        ([1000, 2000, 1000], "ssp"),
    ],
)
def test_roles_by_duration(durations: list[int], expected: str) -> None:
    assert roles(steps(*durations)) == [LETTER[letter] for letter in expected]


def test_a_leading_step_that_compiles_is_warm_up() -> None:
    """5 % of a step in compilation is enough, at the beginning; later it is the job."""
    facts = [StepFacts(1000, compiling=share) for share in (0.05, 0.04, 0.5, 0.0, 0.0)]
    assert roles(facts) == [Role.WARMUP, Role.STEADY, Role.STEADY, Role.STEADY, Role.PARTIAL]


@pytest.mark.parametrize(("usually", "expected"), [(frozenset(), "sssssssssp"), (frozenset({"update"}), "sssosssssp")])
def test_a_long_step_that_alone_holds_the_update_is_training(usually: frozenset[str], expected: str) -> None:
    """The update every so many steps (gradients accumulated), or a checkpoint in one of steps that all update."""
    facts = [StepFacts(1000, needed=usually) for _ in range(10)]
    facts[3] = StepFacts(1600, needed=frozenset({"update"}))
    assert roles(facts) == [LETTER[letter] for letter in expected]


def test_a_step_that_the_recording_cut_is_partial() -> None:
    facts = [StepFacts(400, cut=True), *(StepFacts(1000) for _ in range(3))]
    assert roles(facts) == [Role.PARTIAL, Role.STEADY, Role.STEADY, Role.PARTIAL]


def test_no_steps_have_no_roles() -> None:
    assert roles([]) == []


@pytest.mark.parametrize(
    ("durations", "expected"),
    [([800, 810, 1000, 1000, 1000], 2), ([115, 116, 1050, 1050, 1050], 0), ([1000, 1000, 1000], 0)],
)
def test_a_leading_run_that_is_faster(durations: list[int], expected: int) -> None:
    facts = steps(*durations)
    assert leading_fast(facts, roles(facts)) == expected

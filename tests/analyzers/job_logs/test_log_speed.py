"""What makes the reading of long logs quick changes nothing of what is read."""

from __future__ import annotations

import re
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuscope.analyzers.job_logs import line_shapes
from gpuscope.analyzers.job_logs.line_shapes import may_tell, shape_of
from gpuscope.analyzers.job_logs.numbers_in_lines import stamp_ns
from gpuscope.sources.pytorch import log_signs
from tests.helpers.job_logs import LINES

TELLS = re.compile(
    rb"step|iter|\bit\b|epoch|/s\b|s/|loss|MLLOG|checkpoint|saving|saved|eval|valid|restart|attempt|resum|took|batch"
    rb"|throughput|preempt|captur|warm|rendezvous|compil|'train_|\(\d+\.\d+, \d+\.\d+\)|TTFT|ime to first|num_updates",
    re.IGNORECASE,
)
"""The words of lines that tell something, in one pattern."""
TEXT = st.lists(
    st.sampled_from(
        ["it", "IT", "ite", "bit", "_it", "/s", "/S", "/sec", "(1.0, 2.5)", "(1, 2)", " ", "4", "Step", "é"]
    )
    | st.text(max_size=3)
).map("".join)
SIGN_PATTERNS = [pattern for _, pattern in log_signs._SIGNS]
ALL_LINES = [write(step, 0.25 * step, 7.0 * step, 5000) for _, write in LINES.values() for step in (1, 10, 987)]


@given(TEXT)
def test_a_line_that_may_tell_is_one_with_a_word_of_the_pattern(text: str) -> None:
    raw = text.encode()
    assert may_tell(raw) == (TELLS.search(raw) is not None)


@pytest.mark.parametrize("pattern", SIGN_PATTERNS)
def test_every_sign_of_trouble_has_a_word_that_is_looked_for_first(pattern: str) -> None:
    @given(st.from_regex(re.compile(pattern, re.MULTILINE)))
    def holds(text: str) -> None:
        assert log_signs.shows_sign(text) == (log_signs._ANY.search(text) is not None)

    holds()


@given(st.sampled_from(ALL_LINES), st.randoms(use_true_random=False))
def test_where_a_line_tells_something_does_not_depend_on_its_digits(line: str, random: Random) -> None:
    line = "".join(random.choice("0123456789") if letter.isdigit() else letter for letter in line)
    shape = shape_of(line)
    for patterns, places in (
        (line_shapes._TIMED, shape.timed),
        (line_shapes._FIGURES, shape.figures),
        (line_shapes._PER_SECOND, shape.per_second),
        (line_shapes._SETTINGS, shape.settings),
        (line_shapes._PARTS, shape.parts),
    ):
        expected = [(name, match.span()) for name, pattern in patterns if (match := pattern.search(line)) is not None]
        read = [(name, match.span()) for name, pattern, at in places if (match := pattern.match(line, at)) is not None]
        assert read == expected
    for patterns, places in ((line_shapes.FORMATS, shape.formats), (line_shapes._EVENTS, shape.events)):
        may = {name for name, _, _ in places}
        assert {name for name, pattern in patterns if pattern.search(line) is not None} <= may


def test_a_restart_is_counted_from_one_though_its_line_has_the_shape_of_the_first_start() -> None:
    """`attempt 0` is the job's start: both lines differ in a digit alone."""
    assert line_shapes.said_by("starting attempt 0") is None
    said = line_shapes.said_by("starting attempt 3")
    assert said is not None
    assert [event.what for event in said.events] == ["restart"]


@pytest.mark.parametrize(
    "stamp",
    ["2025-06-02 10:00:01,5", "06/02/2025 10:00:01 PM", "20250602-10:00:01", "06-02 10:00:01", "Jun  2 10:00:01"],
)
def test_every_form_of_a_time_stamp_is_still_found(stamp: str) -> None:
    assert stamp_ns(f"{stamp} x") is not None

"""Settings are there to be copied: no line ends inside one of their words."""

from __future__ import annotations

import copy
import io

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from rich.console import Console

from gpuscope.analyzers.advice.settings.settings import KNOWN
from gpuscope.catalogue.prediction_sentences import setting_words
from gpuscope.report.terminal import first_screen, report_text
from gpuscope.report.terminal.screen import Writer
from gpuscope.schema.document import Report, SuggestionEntry, UnpredictedEntry

LONG = (
    ("config", "--num-virtual-stages-per-pipeline-rank", "2"),
    ("config", "zero_optimization.stage3_param_persistence_threshold", "1000000"),
    ("python", "DistributedDataParallel.register_comm_hook", "(None, default_hooks.fp16_compress_hook)"),
    ("python", "FSDPModule.set_modules_to_forward_prefetch", "the next 2 modules"),
    ("env", "NCCL_DEBUG_SUBSYS", "INIT,ENV,TUNING,COLL,P2P,NET,GRAPH"),
)
VALUES = st.sampled_from(("2", "True", "None  # the default", "64000000", '"reduce-overhead"'))
NAMED = st.builds(lambda known, value: (known.kind, known.name, value), st.sampled_from(list(KNOWN.values())), VALUES)
SETTING = st.one_of(st.sampled_from(LONG), NAMED)


def printed(report: Report, width: int, *, full: bool) -> list[str]:
    file = io.StringIO()
    console = Console(file=file, width=width, _environ={}, force_terminal=False)
    if full:
        report_text.render(report, console)
    else:
        first_screen.render(report, Writer(console))
    return file.getvalue().splitlines()


def told(report: Report) -> list[SuggestionEntry | UnpredictedEntry]:
    return [*report["suggestions"], *report["advice"]["unpredicted"]]


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(width=st.integers(60, 140), asked=st.lists(SETTING, min_size=4, max_size=4), full=st.booleans())
def test_no_line_ends_inside_a_word_of_a_setting(
    input_bound: Report, width: int, asked: list[tuple[str, str, str]], full: bool
) -> None:
    report = copy.deepcopy(input_bound)
    report["suggestions"] = [copy.deepcopy(report["suggestions"][0]) for _ in asked]
    entries = told(report)
    for one, (kind, name, value) in zip(entries, asked, strict=True):
        one["setting"] = {"kind": kind, "name": name, "value": value}  # type: ignore[typeddict-item]
    lines = printed(report, width, full=full)
    text = "\n".join(lines)
    squeezed = "".join(text.split())
    for one in entries:
        words = setting_words(one, brief=not full)
        if "".join(words.split()) not in squeezed:
            continue  # not on this screen
        for word in words.split():
            assert len(word) > width - 12 or any(word in line for line in lines), word


@pytest.mark.parametrize("width", [60, 80, 100])
def test_the_fixture_shows_its_settings(input_bound: Report, width: int) -> None:
    """The property above would hold of a screen without settings."""
    text = "".join("".join(printed(input_bound, width, full=False)).split())
    shown = [one for one in told(input_bound) if "".join(setting_words(one).split()) in text]
    assert shown

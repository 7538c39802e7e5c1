"""The address is the whole state."""

from __future__ import annotations

from gpuscope.dashboards.state import View, parse


def test_a_view_survives_its_address() -> None:
    view = View(
        "2",
        frozenset({0, 1, 2, 7}),
        (3, 8),
        (1_694_128_201_545_123_456, 1_694_128_201_545_123_999),
        "d12",
        {"find": "nccl & <b>"},
    )
    assert view.query() == (
        "?run=2&ranks=0-2,7&steps=3-8&from=1694128201545123456&to=1694128201545123999&event=d12&find=nccl+%26+%3Cb%3E"
    )
    assert parse(view.query()) == view


def test_the_default_view_has_no_query() -> None:
    assert View().query() == ""
    assert parse("") == parse(None) == View()


def test_an_invalid_parameter_is_ignored_and_listed() -> None:
    view = parse("?ranks=x&steps=9-3&from=5&to=4")
    assert (view.ranks, view.steps, view.window) == (None, None, None)
    assert set(view.wrong) == {"ranks", "steps", "from"}


def test_filters() -> None:
    view = parse("?ranks=1&steps=3-4")
    assert [rank for rank in (0, 1) if view.has_rank(rank)] == [1]
    assert [step for step in (None, 2, 3, 4, 5) if view.has_step(step)] == [3, 4]
    assert View().has_step(None)


def test_a_link_changes_only_what_it_names() -> None:
    assert parse("?run=2&ranks=1").link("/timeline", event="h3") == "/timeline?run=2&ranks=1&event=h3"

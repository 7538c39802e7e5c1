"""Answers are kept once made, up to a size; the oldest go first."""

from __future__ import annotations

from gpuscope.dashboards.web.timeline_data import KeptAnswers


def test_an_answer_is_made_once_while_it_is_kept() -> None:
    made: list[str] = []

    def make(name: str, size: int) -> bytes:
        made.append(name)
        return name.encode() * size

    kept = KeptAnswers(limit=10)
    for name in "aab":
        assert kept.get(name, lambda name=name: make(name, 4)) == name.encode() * 4
    assert made == ["a", "b"]
    kept.get("a", lambda: make("a", 4))  # asked for again: b is now the oldest
    kept.get("c", lambda: make("c", 4))
    kept.get("a", lambda: make("a", 4))
    assert made == ["a", "b", "c"]
    kept.get("b", lambda: make("b", 4))
    assert made == ["a", "b", "c", "b"]
    assert kept.get("large", lambda: make("l", 99)) == b"l" * 99  # too large to be kept, and drives nothing out
    kept.get("b", lambda: make("b", 4))
    assert made == ["a", "b", "c", "b", "l"]

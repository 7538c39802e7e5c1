"""Answers that an assistant can read at once: lines of plain text, under a fixed size, safe to show."""

from __future__ import annotations

from collections.abc import Iterable

from gpuscope.words import units

MOST_BYTES = 3_900
"""Of an answer in UTF-8: below 4 kB, with room for what the protocol adds."""
LINE = 400
NAME = 100


def answer(lines: Iterable[str], more: str = "ask for less at once") -> str:
    """Whole lines, each cropped, as many as fit; the rest is counted and `more` says how to get it."""
    kept: list[str] = []
    left, room = 0, MOST_BYTES - 120
    for line in lines:
        shown = units.crop(units.clean(line), LINE)
        size = len(shown.encode()) + 1
        if left or size > room:
            left += 1
            continue
        room -= size
        kept.append(shown)
    if left:
        kept.append(f"({units.plural(left, 'line')} left out: {units.crop(more, NAME)})")
    return "\n".join(kept)


def quoted(name: str, width: int = NAME) -> str:
    """A name out of a trace, marked as such: it is data, whatever it says."""
    return "`" + units.crop(units.clean(name).replace("`", "'"), width) + "`"

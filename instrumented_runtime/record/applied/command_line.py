"""Options of command lines that the job is started by."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path


def program(words: Sequence[str], fits: Callable[[str], bool]) -> int | None:
    """The place of the word that names a program: a path of that name, or a module behind `-m`."""
    return next((at for at, word in enumerate(words) if fits(Path(word).name)), None)


def value_of(words: Sequence[str], option: str) -> str | None:
    """The value of an option, `--x VALUE` or `--x=VALUE`; None without it."""
    for at, word in enumerate(words):
        name, equals, value = word.partition("=")
        if _same(name, option):
            return value if equals else words[at + 1] if at + 1 < len(words) else None
    return None


def with_option(words: Sequence[str], option: str, value: str | None, *, at: int | None = None) -> list[str]:
    """The words with an option set, where it stands already, else at a place; at the end where none is given. An
    option without a value is a flag."""
    found = list(words)
    set_to = [option] if value is None else [option, value]
    for place, word in enumerate(found):
        name, equals, _ = word.partition("=")
        if _same(name, option):
            found[place : place + (1 if equals or value is None else 2)] = set_to
            return found
    place = len(found) if at is None else at
    found[place:place] = set_to
    return found


def without_flag(words: Sequence[str], option: str) -> list[str]:
    """The words without a flag."""
    return [word for word in words if not _same(word, option)]


def with_flag(words: Sequence[str], option: str, *, on: bool) -> list[str]:
    """The words with a flag set, or without it."""
    return with_option(words, option, None) if on else without_flag(words, option)


def _same(word: str, option: str) -> bool:
    return word.startswith("--") and word.replace("_", "-") == option.replace("_", "-")

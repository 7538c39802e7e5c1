"""What became of the changes in one rank, and the settings that were in effect there, changed or not."""

from __future__ import annotations

import functools
import inspect
import os
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from gpuscope.errors import UsageError


def spelled(value: object) -> str:
    """A value that was seen, as a change spells it."""
    return str(value).lower() if isinstance(value, bool) or value is None else str(value)


class Ledger:
    """Changes by name with their values as used, how often each was applied or not, and what was seen."""

    def __init__(self, changes: Mapping[str, str], values: Mapping[str, Any]) -> None:
        self.changes, self._values = dict(changes), dict(values)
        self.at_step: list[Callable[[int], None]] = []
        """Called when a training step has ended, with its number."""
        self.at_end: list[Callable[[], None]] = []
        """Called before the facts are taken."""
        self.problems: list[str] = []
        self._times = dict.fromkeys(changes, 0)
        self._not: dict[str, dict[tuple[str, str], int]] = {name: {} for name in changes}
        self._seen: dict[str, dict[tuple[str, str], int]] = {}

    def wanted(self, *names: str) -> dict[str, Any]:
        """Of these knobs the values that are asked for."""
        return {name: self._values[name] for name in names if name in self._values}

    def applied(self, name: str) -> None:
        """A change was made once."""
        self._times[name] += 1

    def refused(self, name: str, why: str, where: str = "") -> None:
        """A change could not be made."""
        key = (why, where)
        self._not[name][key] = self._not[name].get(key, 0) + 1

    def seen(self, name: str, value: object, where: str = "") -> None:
        """A setting is in effect."""
        rows, key = self._seen.setdefault(name, {}), (spelled(value), where)
        rows[key] = rows.get(key, 0) + 1

    def problem(self, what: str) -> None:
        """Something of ours failed; the job goes on."""
        if what not in self.problems:
            self.problems.append(what)
            print(f"gpuscope: pid {os.getpid()}: a setting was left as it is: {what}", file=sys.stderr)

    def facts(self) -> dict[str, Any]:
        """`applied`: per change its value, how often it was made, and where not and why. `settings`: per setting the
        values in effect, in order of appearance."""
        for each in self.at_end:
            try:
                each()
            except Exception as error:  # what else is known must not be lost
                self.problem(repr(error))
        return {
            "applied": {
                name: {
                    "value": value,
                    "times": self._times[name],
                    "not": [{"why": why, "where": at, "times": n} for (why, at), n in self._not[name].items()],
                }
                for name, value in self.changes.items()
            },
            "settings": {
                name: [{"value": value, "where": at, "times": n} for (value, at), n in rows.items()]
                for name, rows in self._seen.items()
            },
        }


def caller() -> str:
    """`file.py:line` of the script's own code that led here: not of torch, not ours."""
    import torch

    inside = (os.path.dirname(torch.__file__), os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_code.co_filename.startswith((*inside, "<")):
        frame = frame.f_back
    return f"{os.path.basename(frame.f_code.co_filename)}:{frame.f_lineno}"


# Constructors that take changed arguments: `__init__` is wrapped in place, so that classes, pickles and signatures
# stay as they are. No error of ours stops the user's job: it is told in the ledger, and the script's arguments are
# kept.

_being_made: set[int] = set()
"""Objects within their outermost constructor: a subclass calls its base's, which is wrapped too."""


Edit = Callable[[dict[str, Any], str], Iterable[str]]
"""Changes the arguments of one call, given by name without defaults, and is told where the script makes it; returns the
names of the changes made."""

Look = Callable[[Any, str], None]
"""Sees the finished object, or what a function returned, and where the script made it."""


@dataclass(frozen=True)
class Wrapping:
    """What is done around each call."""

    ledger: Ledger
    edit: Edit
    look: Look
    retry: bool = False
    """A call that fails with the changed arguments is made again with the script's own."""
    prepare: Callable[[dict[str, Any]], None] | None = None
    """Makes the script's own arguments readable twice."""

    def around_init(self, owner: Any) -> None:
        """Wrap the constructor of a class, and so of its subclasses."""
        make = owner.__init__
        signature = inspect.signature(make)

        @functools.wraps(make)
        def init(made: Any, *args: Any, **kwargs: Any) -> None:
            if id(made) in _being_made:
                make(made, *args, **kwargs)
                return
            _being_made.add(id(made))
            try:
                self._call(make, signature, (made, *args), kwargs)
            finally:
                _being_made.discard(id(made))
            self._attempt(lambda: self.look(made, caller()))

        owner.__init__ = init

    def around(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """The function, wrapped."""
        signature = inspect.signature(function)

        @functools.wraps(function)
        def wrapped(*args: Any, **kwargs: Any) -> Any:
            result = self._call(function, signature, args, kwargs)
            self._attempt(lambda: self.look(result, caller()))
            return result

        return wrapped

    def _call(
        self, make: Callable[..., Any], signature: inspect.Signature, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        own = _by_name(signature, args, kwargs)
        if own is None:
            return make(*args, **kwargs)  # which tells what is wrong with them
        if self.prepare is not None:
            prepare = self.prepare
            self._attempt(lambda: prepare(own))
        changed, where = dict(own), caller()
        made: list[str] = []
        if not self._attempt(lambda: made.extend(self.edit(changed, where))):
            changed, made = own, []
        try:
            result = make(**changed)
        except (TypeError, ValueError, RuntimeError) as error:
            if not self.retry or not made:
                raise
            for name in made:
                self.ledger.refused(name, f"{type(error).__name__}: {error}", where)
            return make(**own)
        for name in made:
            self.ledger.applied(name)
        return result

    def _attempt(self, what: Callable[[], object]) -> bool:
        try:
            what()
        except Exception as error:
            self.ledger.problem(repr(error))
            return False
        return True


def _by_name(signature: inspect.Signature, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any] | None:
    """All arguments by name; None where they do not fit, or some can't be given by name."""
    try:
        bound = signature.bind(*args, **kwargs).arguments
    except TypeError:
        return None
    kinds = {name: one.kind for name, one in signature.parameters.items()}
    if any(kinds[name] in (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.POSITIONAL_ONLY) for name in bound):
        return None
    collected = next((name for name, kind in kinds.items() if kind is inspect.Parameter.VAR_KEYWORD), "")
    further = bound.pop(collected, {})
    return {**bound, **further}


# What a knob is, and a family of knobs: one file of `knobs/` each. Light to import: no torch.

How = Literal["environment", "torch", "framework option"]


@dataclass(frozen=True, kw_only=True)
class Knob:
    """One setting that a job can be started with, without a change of its script."""

    name: str
    takes: str
    """Its values, in words."""
    read: Callable[[str], Any]
    """The value as it is used. Raises `ValueError`."""
    how: How = "torch"
    alters: str
    """What it may alter besides time, in one sentence."""
    allow: str = ""
    """The group that has to be allowed, where what training computes changes by more than the order of sums."""
    shown_by: str = ""
    """The test that shows it, of tests/runtime/record/applied."""

    redraws: bool = False
    """Whether it makes the data's random numbers others: workers draw from generators of their own."""

    @property
    def preserving(self) -> bool:
        """Whether training computes the same, but for the order of sums and of random draws."""
        return not self.allow

    def check(self, value: str) -> None:
        """Raises `UsageError` on a value that it does not take."""
        try:
            self.read(value)
        except ValueError:
            raise UsageError(f"{self.name}={value} is no value of it", hint=f"{self.name} takes {self.takes}") from None


@dataclass(frozen=True)
class Family:
    """Knobs that are applied at one place."""

    name: str
    knobs: tuple[Knob, ...]
    install: Callable[[Ledger], None] | None = None
    """In a rank that has imported torch: have what the script makes take the changes, and tell what it makes."""
    rewrite: Callable[[list[str], str, str, Path | None], list[str] | None] | None = None
    """The words of a command, a knob's name and value, and a folder for copies of files that the command names (without
    one, these stay as they are): the words with the option set; None where it is not a command of this framework."""


def boolean(value: str) -> bool:
    """`true` or `false`."""
    try:
        return {"true": True, "false": False}[value.lower()]
    except KeyError:
        raise ValueError(value) from None


def one_of(*values: str) -> Callable[[str], str]:
    """One of these words."""

    def read(value: str) -> str:
        if value not in values:
            raise ValueError(value)
        return value

    return read


def at_least(least: int) -> Callable[[str], int]:
    """A whole number from `least` on."""

    def read(value: str) -> int:
        number = int(value)
        if number < least:
            raise ValueError(value)
        return number

    return read


# Options of command lines that the job is started by.


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

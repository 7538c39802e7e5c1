"""What a knob is, and a family of knobs: one file of `knobs/` each. Light to import: no torch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from gpuscope.errors import UsageError
from gpuscope.instrumented_runtime.record.applied.ledger import Ledger

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
    """The words of a command, a knob's name and value, and a folder for copies of files that the command names: the
    words with the option set; None where it is not a command of this framework."""


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

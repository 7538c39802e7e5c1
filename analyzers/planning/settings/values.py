"""The settings of a framework's file by dotted key, and what is to be said of them."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any, Literal

from gpuscope.analyzers.planning.layout import Layout
from gpuscope.errors import InputError
from gpuscope.schema.plan_document import PlanRemark

Kind = Literal["contradiction", "no_effect", "slow", "renamed", "unknown", "assumed"]
AUTO = "auto"
"""Of DeepSpeed's files: Transformers' Trainer fills it in."""


@dataclass(frozen=True)
class Setup:
    """What a file asks for."""

    framework: str
    layout: Layout | None
    """None where its sizes do not make the cluster."""
    batch: int | None
    """Sequences of a step; None where the file leaves it open."""
    precision: str
    sequence: int | None
    recomputes: bool
    """Whether the file says what is recomputed; else the least that fits is taken."""
    remarks: list[PlanRemark]


class Values:
    """The settings of a file. A value of a wrong type is an `InputError` that names it."""

    def __init__(self, path: Path, nested: Mapping[str, Any]) -> None:
        self.path = path
        flat = dict(_flat(nested))
        self.automatic = [key for key, value in flat.items() if value == AUTO]
        self._flat = {key: value for key, value in flat.items() if value != AUTO and value is not None}
        self.remarks: list[PlanRemark] = []

    def __contains__(self, key: str) -> bool:
        return key in self._flat

    @property
    def parts(self) -> set[str]:
        """Its settings of the outermost level."""
        return {key.partition(".")[0] for key in (*self._flat, *self.automatic)}

    def move(self, renamed: Mapping[str, str]) -> None:
        """Give settings the names that they have today, and say so."""
        for old, new in renamed.items():
            if old in self._flat:
                self.say("renamed", old, f"is called {new} today" if new else "is no longer there")
                value = self._flat.pop(old)
                if new:
                    self._flat.setdefault(new, value)

    def count(self, key: str, default: int = 1, least: int = 1, most: int = 1 << 40) -> int:
        """A whole number within bounds."""
        value = self._flat.get(key, default)
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
            raise self._wrong(key, f"a whole number from {least}" + (f" to {most}" if most < 1 << 40 else ""))
        return value

    def given(self, key: str) -> int | None:
        """A whole number of 1 or more, None where absent."""
        return self.count(key) if key in self else None

    def flag(self, key: str, default: bool = False) -> bool:
        """True or false."""
        value = self._flat.get(key, default)
        if not isinstance(value, bool):
            raise self._wrong(key, "true or false")
        return value

    def word(self, key: str, default: str = "", known: Collection[str] = ()) -> str:
        """A string, one of `known` where these are named."""
        value = self._flat.get(key, default)
        if not isinstance(value, str) or (known and value not in known):
            raise self._wrong(key, f"one of {', '.join(known)}" if known else "a string")
        return value

    def words(self, key: str) -> list[str]:
        """A list of strings."""
        value = self._flat.get(key, [])
        value = value.split(",") if isinstance(value, str) else value
        if not isinstance(value, list) or not all(isinstance(one, str) for one in value):
            raise self._wrong(key, "a list of strings")
        return value

    def say(self, kind: Kind, key: str, message: str) -> None:
        """A remark of one setting."""
        self.remarks.append({"key": key, "kind": kind, "message": message})

    def idle(self, keys: Collection[str], where: str) -> None:
        """Say of each setting that is there that it has no effect."""
        for key in keys:
            if key in self and self._flat[key] not in (False, 0):
                self.say("no_effect", key, f"has no effect {where}")

    def idle_part(self, part: str, where: str) -> None:
        """The same of all that is in a part of the file."""
        if part in self.parts:
            self.say("no_effect", part, f"has no effect {where}")

    def left(self, gpus: int, sizes: Mapping[str, int]) -> int:
        """Ranks for data parallelism beside these sizes; 0, and a remark, where they do not divide the GPUs."""
        others = prod(sizes.values())
        if gpus % others == 0:
            return gpus // others
        key = max(sizes, key=lambda one: sizes[one])
        self.say("contradiction", key, f"{' x '.join(map(str, sizes.values()))} does not divide {gpus} GPUs")
        return 0

    def unknown(
        self,
        known: Collection[str],
        parts: Collection[str],
        kind: Kind = "unknown",
        message: str = "is not known here; it was left out of the estimate",
    ) -> None:
        """Name what is neither known nor in one of the `parts` of a file that are not looked into."""
        for key in self._flat:
            if key not in known and key.partition(".")[0] not in parts:
                self.say(kind, key, message)

    def _wrong(self, key: str, wanted: str) -> InputError:
        return InputError(f"{self.path}: {key} = {self._flat[key]!r} is not {wanted}")


def _flat(nested: Mapping[str, Any], before: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in nested.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{before}{key}.")
        else:
            yield f"{before}{key}", value

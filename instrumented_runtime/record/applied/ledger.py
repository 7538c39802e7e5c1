"""What became of the changes in one rank, and the settings that were in effect there, changed or not."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping
from typing import Any


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

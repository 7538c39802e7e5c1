"""What the sections of a configuration are made of: an option with its line of help, and its checks."""

from __future__ import annotations

from dataclasses import field
from typing import Any

from gpuscope.errors import UsageError


def option(default: Any, text: str) -> Any:
    """A dataclass field with a line of help."""
    return field(default=default, metadata={"help": text})


def check(good: bool, name: str, problem: str, hint: str | None = None) -> None:
    """Raise `UsageError` that names the option unless `good`."""
    if not good:
        raise UsageError(f"{name}: {problem}", hint=hint)


def at_least(section: str, config: Any, least: int, *names: str) -> None:
    """Raise `UsageError` that names the first of these options of a section that is below `least`."""
    for name in names:
        value = getattr(config, name)
        check(value >= least, f"{section}.{name}", f"must be at least {least}, not {value}")

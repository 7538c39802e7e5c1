"""What the upper packages and other distributions plug into gpuscope, by entry point.

`gpuscope` never imports `analyzers`, `dashboards` or `instrumented_runtime`: they name their
commands and functions under an entry-point group, and are loaded when asked for.
"""

from __future__ import annotations

from functools import cache
from importlib.metadata import EntryPoint, entry_points
from typing import Any

COMMANDS = "gpuscope.commands"
SOURCES = "gpuscope.sources"
API = "gpuscope.api"


@cache
def plugins(group: str) -> dict[str, EntryPoint]:
    """The entry points of a group by name, not loaded yet."""
    return {entry.name: entry for entry in entry_points(group=group)}


def load(group: str, name: str) -> Any:
    """Import and return one plugin. Raises `LookupError` when nothing of that name is installed."""
    try:
        entry = plugins(group)[name]
    except KeyError:
        raise LookupError(f"nothing installed provides {name!r} in {group!r}; reinstall gpuscope") from None
    return entry.load()

"""How parts are found: by listing the modules below a package, and from other distributions by entry point.

`gpuscope` never imports `analyzers`, `dashboards` or `instrumented_runtime`: they name their
commands and functions under an entry-point group, and are loaded when asked for.
"""

from __future__ import annotations

import pkgutil
from collections.abc import Iterator
from functools import cache
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from typing import Any

COMMANDS = "gpuscope.commands"
SOURCES = "gpuscope.sources"


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


def listed(package: str, attribute: str) -> list[Any]:
    """`attribute` of every module below `package`, folders included, that has it; by the module's own name."""
    names = sorted(_modules(package), key=lambda name: (name.rpartition(".")[2], name))
    parts = (getattr(import_module(name), attribute, None) for name in names)
    return [part for part in parts if part is not None]


def _modules(package: str) -> Iterator[str]:
    """Names of the modules below a package. A package's own `__init__` holds no part."""
    for info in pkgutil.iter_modules(import_module(package).__path__, f"{package}."):
        if info.ispkg:
            yield from _modules(info.name)
        else:
            yield info.name

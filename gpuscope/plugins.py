"""How parts are found: by listing the modules below a package, and from other distributions by entry point.

`gpuscope` never imports `analyzers`, `dashboards` or `instrumented_runtime`: their folders of commands are listed by
name, and what is in them is loaded when asked for.
"""

from __future__ import annotations

import pkgutil
from collections.abc import Iterator
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

COMMANDS = "gpuscope.commands"
SOURCES = "gpuscope.sources"
COMMAND_FOLDERS = (
    "gpuscope.commands", "gpuscope.analyzers.commands", "gpuscope.instrumented_runtime.commands",
    "gpuscope.dashboards.commands",
)  # fmt: skip
"""Every module in them that defines a `command` is a subcommand of its own name."""


FOLLOWED = "gpuscope.instrumented_runtime.tune.followed"
"""What knows the settings of run folders, and which suggestions they follow."""


def followed(before: Any, after: Any) -> str:
    """The code of the suggestion of one report that the run of another follows. Raises `UsageError` where that is not
    clear."""
    code: str = import_module(FOLLOWED).of_reports(before, after)
    return code


@cache
def plugins(group: str) -> dict[str, EntryPoint]:
    """The entry points of a group by name, not loaded yet."""
    return {entry.name: entry for entry in installed().select(group=group)}


@cache
def installed() -> Any:
    """Of every group: looking for one reads as many files as looking for all."""
    from importlib.metadata import entry_points  # imports the parsers of mail and CSV

    return entry_points()


@cache
def own_commands() -> dict[str, str]:
    """The modules of gpuscope's own commands by the commands' names, not loaded yet."""
    found = (name for folder in COMMAND_FOLDERS for name in _modules(folder, "def command("))
    return {name.rpartition(".")[2]: name for name in found}


def load(group: str, name: str) -> Any:
    """Import and return one plugin, or a command of our own. Raises `LookupError` where there is none of that name."""
    if group == COMMANDS and name in own_commands():
        return import_module(own_commands()[name]).command
    try:
        entry = plugins(group)[name]
    except KeyError:
        raise LookupError(f"nothing installed provides {name!r} in {group!r}; reinstall gpuscope") from None
    return entry.load()


def listed(package: str, attribute: str) -> list[Any]:
    """`attribute` of every module below `package`, folders included, that has it; by the module's own name. What does
    not assign it is not imported."""
    names = sorted(_modules(package, attribute), key=lambda name: (name.rpartition(".")[2], name))
    parts = (getattr(import_module(name), attribute, None) for name in names)
    return [part for part in parts if part is not None]


def submodules(package: str) -> None:
    """Import every module below `package`, folders included: what they define is then known."""
    for info in pkgutil.walk_packages(import_module(package).__path__, f"{package}."):
        import_module(info.name)


def _modules(package: str, attribute: str) -> Iterator[str]:
    """Names of the modules below a package with a line that begins with `attribute`; its own `__init__` is none."""
    for folder in import_module(package).__path__:
        for info in pkgutil.iter_modules([folder], f"{package}."):
            if info.ispkg:
                yield from _modules(info.name, attribute)
            elif _assigns(Path(folder, f"{info.name.rpartition('.')[2]}.py"), attribute):
                yield info.name


def _assigns(module: Path, attribute: str) -> bool:
    """Whether a line of a module begins with an attribute; taken for granted where its source can't be read."""
    try:
        return f"\n{attribute}".encode() in module.read_bytes()
    except OSError:
        return True

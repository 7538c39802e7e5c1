"""How parts are found: by listing the modules below a package, and from other distributions by entry point.

`gpuscope` never imports `analyzers`, `dashboards` or `instrumented_runtime`: their folders of commands are listed by
name, and what is in them is loaded when asked for.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Collection, Iterator
from contextlib import suppress
from functools import cache, reduce
from importlib import import_module
from typing import Any

COMMANDS = "gpuscope.commands"
SOURCES = "gpuscope.sources"
COMMAND_FOLDERS = (
    "gpuscope.commands",
    "gpuscope.analyzers.commands",
    "gpuscope.instrumented_runtime.commands",
    "gpuscope.dashboards.commands",
)
"""Every module in them that defines a `command` is a subcommand of its own name."""


FOLLOWED = "gpuscope.instrumented_runtime.tune.rerun"
"""What knows the settings of run folders, and which suggestions they follow."""


def followed(before: Any, after: Any) -> str:
    """The code of the suggestion of one report that the run of another follows. Raises `UsageError` where that is not
    clear."""
    code: str = import_module(FOLLOWED).of_reports(before, after)
    return code


@cache
def plugins(group: str) -> dict[str, str]:
    """The entry points of a group by name, as `module:attribute`, not loaded yet."""
    found: dict[str, str] = {}
    for of, name, place in (*installed(), *_OWN):
        if of == group:
            found.setdefault(name, place)
    return found


_OWN = (
    ("gpuscope.sources", "reduced", "gpuscope.analyzers.run.reduction.reduced_file:SOURCE"),
    ("gpuscope.sources", "step-log", "gpuscope.analyzers.job_logs.log_source:SOURCE"),
)
"""The entry points of pyproject.toml, for a clone that was installed before it had them."""


@cache
def installed() -> tuple[tuple[str, str, str], ...]:
    """Of gpuscope's groups: group, name and `module:attribute`, by `sys.path`. Read here: `importlib.metadata` imports
    the parsers of mail and CSV, and reads them of every distribution."""
    found: list[tuple[str, str, str]] = []
    for folder in dict.fromkeys(sys.path):
        names: list[str] = []
        with suppress(OSError):
            names = sorted(name for name in os.listdir(folder or os.curdir) if name.endswith("-info"))
        for name in names:
            group = text = ""
            with suppress(OSError), open(os.path.join(folder, name, "entry_points.txt"), "rb", 0) as file:
                text = file.read().decode(errors="replace")
            for line in text.splitlines():
                name, given, place = (part.strip() for part in line.partition("="))
                if name.startswith("["):
                    group = name.strip("[] ")
                elif given and group.startswith("gpuscope.") and not name.startswith(("#", ";")):
                    found.append((group, name, place.partition("[")[0].strip()))
    return tuple(found)


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
        module, _, attribute = plugins(group)[name].partition(":")
    except KeyError:
        raise LookupError(f"nothing installed provides {name!r} in {group!r}; reinstall gpuscope") from None
    return reduce(getattr, attribute.split(".") if attribute else (), import_module(module))


def listed(package: str, attribute: str, words: Collection[str] = ("",)) -> list[Any]:
    """`attribute` of every module below `package`, folders included, that has it, or all of a module's in the plural
    (`RULES`); by the module's own name. What does not assign it, or holds none of `words`, is not imported."""
    names = sorted(_modules(package, attribute, words), key=lambda name: (name.rpartition(".")[2], name))
    found: list[Any] = []
    for module in map(import_module, names):
        found += getattr(module, _plural(attribute), ()) or [getattr(module, attribute, None)]
    return [part for part in found if part is not None]


def _plural(attribute: str) -> str:
    return f"{attribute[:-1]}IES" if attribute.endswith("Y") else f"{attribute}S"


def submodules(package: str) -> None:
    """Import every module below `package`, folders included: what they define is then known."""
    for name, _ in _below(package):
        import_module(name)


def _modules(package: str, attribute: str, words: Collection[str] = ("",)) -> Iterator[str]:
    """Names of the modules below a package with a line that begins with `attribute`; its own `__init__` is none."""
    return (name for name, path in _below(package) if _assigns(path, attribute, words))


def _below(package: str) -> Iterator[tuple[str, str]]:
    """Names and paths of the modules below a package, by name. `pkgutil` takes ten times as long, and a start-up lists
    forty folders."""
    whole = import_module(package)
    if not hasattr(whole, "__path__"):  # a folder that became one module
        yield package, str(whole.__file__)
    for folder in getattr(whole, "__path__", ()):
        for found in sorted(os.listdir(folder)):
            stem, suffix = os.path.splitext(found)
            path = os.path.join(folder, found)
            if suffix in (".py", ".pyc") and stem != "__init__" and "." not in stem:  # `.#one.py` is an editor's
                yield f"{package}.{stem}", path
            elif not suffix and any(os.path.exists(os.path.join(path, own)) for own in ("__init__.py", "__init__.pyc")):
                yield from _below(f"{package}.{found}")


def _assigns(module: str, attribute: str, words: Collection[str]) -> bool:
    """Whether a line of a module begins with an attribute, and it holds one of the words; taken for granted of bytecode
    alone, not if unreadable."""
    if module.endswith(".pyc"):
        return True
    with suppress(OSError), open(module, "rb", 0) as file:
        text = file.read()
        assigned = any(f"\n{name}".encode() in text for name in (attribute, _plural(attribute)))
        return assigned and any(word.encode() in text for word in words)
    return False

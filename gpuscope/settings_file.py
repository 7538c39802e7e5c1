"""The settings file: `[tool.gpuscope]` of a pyproject.toml or a gpuscope.toml, here or in a folder above.

Top-level keys are `store`, `nsys` and `hardware` (a file of link rates that overrides the built-in table); a table per
command holds defaults of its options, by their long names: `[tool.gpuscope.check]` with `fail-on = "2%"`. The command
line and environment variables win.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from gpuscope.errors import InputError, UsageError
from gpuscope.hardware.link_rates import ENV_HARDWARE
from gpuscope.when_used import dataclass

ENV = "GPUSCOPE_CONFIG"
"""Names a settings file; `none` uses none."""
COMMON = ("store", "nsys", "hardware")


@dataclass(frozen=True)
class Settings:
    """A settings file: where it is, and what it says."""

    path: Path
    values: Mapping[str, Any]

    def place(self, value: str) -> str:
        """A path in the file, which is relative to the file's folder."""
        return str(self.path.parent / Path(value).expanduser())


def found(start: Path | None = None) -> Settings | None:
    """The nearest settings file from `start` upwards; None where there is none. Raises `InputError` for what is no
    TOML, and where `GPUSCOPE_CONFIG` names no file."""
    named = os.environ.get(ENV)
    if named == "none":
        return None
    if named:
        return _read(Path(named)) or Settings(Path(named), {})
    here = (start or Path.cwd()).absolute()
    for folder in (here, *here.parents):
        for name in ("gpuscope.toml", "pyproject.toml"):
            settings = _read(folder / name) if (folder / name).is_file() else None
            if settings is not None:
                return settings
    return None


def _read(path: Path) -> Settings | None:
    """None for a pyproject.toml without the table."""
    try:
        text = path.read_text(encoding="utf-8")
        if path.name == "pyproject.toml" and "gpuscope" not in text:
            return None  # as most have none: parsing takes a tenth of a start
        import tomllib

        document = tomllib.loads(text)
    except OSError as error:
        raise InputError(f"{path}: {error.strerror}", hint=f"{ENV}=none uses no settings file") from error
    except ValueError as error:  # no UTF-8, or no TOML
        if path.name == "pyproject.toml":
            return None  # not ours to complain about
        raise InputError(f"{path} is not TOML: {error}", hint=f"{ENV}=none uses no settings file") from error
    if path.name == "pyproject.toml":
        document = document.get("tool", {}).get("gpuscope")
        if document is None:
            return None
    return Settings(path, document)


def defaults(settings: Settings, name: str, command: click.Command, commands: list[str]) -> dict[str, Any]:
    """Defaults of a command's options by parameter, as click's `default_map` wants them. Raises `UsageError` for a key
    that is none."""
    own = settings.values.get(name, {})
    for key, value in settings.values.items():
        if key not in COMMON and not isinstance(value, dict):
            raise _unknown(settings, key, [*COMMON, *commands])
        if isinstance(value, dict) and key not in commands:
            raise _unknown(settings, key, commands)
    options = {option.lstrip("-"): param for param in command.params for option in param.opts if option[:2] == "--"}
    made: dict[str, Any] = {}
    for key in ("store", "nsys"):
        if key in settings.values and key in options:
            made[key] = _value(settings, options[key], settings.values[key])
    for key, value in own.items():
        if (option := key.replace("_", "-")) not in options:
            raise _unknown(settings, f"{name}.{key}", [f"{name}.{one}" for one in options])
        made[str(options[option].name)] = _value(settings, options[option], value)
    return made


def use_hardware(settings: Settings) -> None:
    """Let this process and its workers read the file of link rates that the settings name."""
    if "hardware" in settings.values:
        os.environ.setdefault(ENV_HARDWARE, settings.place(str(settings.values["hardware"])))


def _value(settings: Settings, param: click.Parameter, value: Any) -> Any:
    is_path = isinstance(param.type, click.Path) or (param.name == "nsys" and "/" in str(value))
    return settings.place(str(value)) if is_path else value


def _unknown(settings: Settings, key: str, known: list[str]) -> UsageError:
    from difflib import get_close_matches

    close = get_close_matches(key, known, 1)
    hint = f"did you mean {close[0]}?" if close else f"there are: {', '.join(sorted(known))}"
    return UsageError(f"{settings.path}: no setting {key!r}", hint=hint)

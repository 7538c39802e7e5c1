"""A setting as a framework has it."""

from __future__ import annotations

from collections.abc import Iterator
from types import ModuleType
from typing import Literal

from gpuscope.schema.document import Setting
from gpuscope.when_used import dataclass


@dataclass(frozen=True)
class Known:
    """One setting of a framework."""

    kind: Literal["env", "python", "config"]
    name: str
    """As advice names it."""
    default: str | None
    """Its value where nobody sets it, as advice would write it; None where it has none, or that depends on others."""
    source: str
    """File of the framework's repository that says so."""
    package: str
    """The distribution whose version decides, as a run's `environment/` names it."""
    since: tuple[int, ...] = ()
    """The first version that has it; () where all in use do, or no source says which."""
    restores: bool = False
    """Whether rules propose it only where the trace shows another value than the default, to go back to it."""
    same: tuple[str, ...] = ()
    """Other ways to write the default: what the framework makes of None."""
    default_since: tuple[int, ...] = ()
    """The first version that has this default; () where all have it."""

    def to(self, value: str) -> Setting:
        """The setting with a value, as a suggestion names it."""
        return {"kind": self.kind, "name": self.name, "value": value}

    def exists(self, version: tuple[int, ...]) -> bool:
        """Whether that version has it; () where it is not recorded, which is taken for the newest."""
        return not version or version >= self.since

    def is_default(self, value: str, version: tuple[int, ...] = ()) -> bool:
        """Whether a job of that version has this value where nobody sets it, however it is written."""
        if self.default is None or (version and version < self.default_since):
            return False
        return _plain(value) in {_plain(one) for one in (self.default, *self.same)}

    def alike(self, one: str, other: str) -> bool:
        """Whether two ways to write a value mean the same."""
        return _plain(one) == _plain(other)


def _plain(value: str) -> str:
    """A value without what is said about it; numbers, quotes and truth as they compare."""
    bare = value.partition(";")[0].partition("  #")[0].strip().strip("\"'").lower()
    try:
        return repr(float(bare))
    except ValueError:
        return bare


@dataclass(frozen=True)
class File:
    """A file of a framework's repository that says what its settings are called; call it to note one."""

    package: str
    path: str
    kind: Literal["env", "python", "config"]

    def __call__(
        self,
        name: str,
        default: str | None = None,
        since: tuple[int, ...] = (),
        *,
        restores: bool = False,
        same: tuple[str, ...] = (),
        default_since: tuple[int, ...] = (),
    ) -> Known:
        return Known(self.kind, name, default, self.path, self.package, since, restores, same, default_since)


def settings_of(module: ModuleType) -> Iterator[Known]:
    """All settings that a module notes, alone or by class."""
    for noted in vars(module).values():
        for one in noted.values() if isinstance(noted, dict) else (noted,):
            if isinstance(one, Known):
                yield one

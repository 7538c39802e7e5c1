"""A setting as a framework has it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True)
class Known:
    """One setting of a framework."""

    name: str
    """As advice names it."""
    default: str | None
    """Its value where nobody sets it, as advice would write it; None where it has none, or that depends on others."""
    source: str
    """File of the framework's repository that says so."""
    package: str = ""
    """The distribution whose version decides, as a run's `environment/` names it; empty where none is recorded."""
    since: tuple[int, ...] = ()
    """The first version that has it; () where all in use do."""
    until: tuple[int, ...] = ()
    """The first that has it no more."""
    restores: bool = False
    """Whether rules propose it only where the trace shows another value than the default, to go back to it."""

    def fits(self, value: str, version: tuple[int, ...]) -> bool:
        """Whether it is worth proposing with this value to a job of that version, () where that is not recorded."""
        if version and (version < self.since or (self.until and version >= self.until)):
            return False
        return self.restores or value != self.default


def table(package: str, source: str, *rows: tuple[str, str | None] | Known) -> dict[str, Known]:
    """Settings by name; a row is (name, default), or whole where there is more to say."""
    made: Iterable[Known] = (
        row if isinstance(row, Known) else Known(row[0], row[1], source, package) for row in rows
    )  # fmt: skip
    return {one.name: one for one in made}

"""A change of how a job runs, as the command line and manifests spell it: `NAME=VALUE`."""

from __future__ import annotations

from dataclasses import dataclass

from gpuscope.errors import UsageError


@dataclass(frozen=True)
class Change:
    """One knob and the value it is set to."""

    name: str
    value: str

    @classmethod
    def parse(cls, text: str) -> Change:
        """From `NAME=VALUE`. Raises `UsageError`."""
        name, equals, value = text.partition("=")
        if not equals or not name.strip():
            raise UsageError(f"{text!r} is no change", hint="NAME=VALUE, such as ddp.bucket_cap_mb=50")
        return cls(name.strip(), value.strip())

    @property
    def times(self) -> int | None:
        """Of `xN`, a multiple of the script's own value: N."""
        times = self.value.removeprefix("x")
        return int(times) if times != self.value and times.isdigit() else None

    def number(self, own: int | None) -> int | None:
        """The number that it leads to from the script's own; None of no number, or a multiple of what is unknown."""
        if self.times is not None:
            return None if own is None else own * self.times
        return int(self.value) if self.value.isdigit() else None

    def __str__(self) -> str:
        return f"{self.name}={self.value}"

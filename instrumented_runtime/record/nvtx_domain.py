"""The NVTX domain «gpuscope»: category, colour and payload of a range, for every nvtx package in use.

`connect()` returns None unless a tool listens, so that the caller can skip NVTX altogether. Tools attach
when the process starts (`nsys profile`, `NVTX_INJECTION64_PATH`), so one check is enough.
"""

from __future__ import annotations

import os
from functools import cache
from typing import Any, Protocol

DOMAIN = "gpuscope"

# Category and ARGB colour by the first word of a range's name; anything else is «other», grey.
CATEGORIES: dict[str, tuple[str, int]] = {
    "step": ("step", 0xFF7F7F7F),
    "data": ("input", 0xFFEDC948),
    "forward": ("compute", 0xFF59A14F),
    "loss": ("compute", 0xFF59A14F),
    "backward": ("compute", 0xFF4E79A7),
    "optimizer": ("optimizer", 0xFF76B7B2),
    "all_reduce": ("communication", 0xFFE15759),
    "all_gather": ("communication", 0xFFE15759),
    "reduce_scatter": ("communication", 0xFFE15759),
    "all_to_all": ("communication", 0xFFE15759),
    "broadcast": ("communication", 0xFFE15759),
    "barrier": ("communication", 0xFFE15759),
    "send": ("pipeline", 0xFFF28E2B),
    "recv": ("pipeline", 0xFFF28E2B),
    "checkpoint": ("checkpoint", 0xFFB07AA1),
    "gc": ("gc", 0xFF9C755F),
}
OTHER = ("other", 0xFFBAB0AC)


def category(name: str) -> tuple[str, int]:
    """Category and colour of a range: by its name up to the first `.`, `:` or `/`."""
    for separator in ".:/":
        name = name.partition(separator)[0]
    return CATEGORIES.get(name, OTHER)


class Connection(Protocol):
    """A domain that a tool listens to."""

    def push(self, name: str, label: str, payload: dict[str, int]) -> None: ...

    def pop(self) -> None: ...

    def start(self, name: str, payload: dict[str, int]) -> Any:
        """Start a range that need not nest with others; pass the result to `end`."""

    def end(self, started: Any) -> None: ...


@cache
def connect() -> Connection | None:
    """The domain, or None if nvtx is missing or disabled (`NVTX_DISABLE`) or no tool listens."""
    try:
        import nvtx
    except ImportError:
        return None
    if not nvtx.enabled():
        return None
    if not hasattr(nvtx, "get_domain"):
        # nvtx < 0.2.11 can't report whether a tool listens; both ways to attach set a variable.
        listens = any(name.startswith(("NVTX_INJECTION", "NSYS_")) for name in os.environ)
        return _OldPackage(nvtx) if listens else None
    domain = nvtx.get_domain(DOMAIN)
    return None if type(domain).__name__ == "DummyDomain" else _Domain(domain)


class _Domain:
    """nvtx ≥ 0.2.11: a payload is a struct with one named int64 per value, described by a schema."""

    def __init__(self, domain: Any) -> None:
        self._domain = domain
        self._plain: dict[str, Any] = {}

    def push(self, name: str, label: str, payload: dict[str, int]) -> None:
        attributes = self._attributes(name, label, payload)
        self._domain.push_range(attributes)

    def pop(self) -> None:
        self._domain.pop_range()

    def start(self, name: str, payload: dict[str, int]) -> Any:
        return self._domain.start_range(self._attributes(name, name, payload))

    def end(self, started: Any) -> None:
        self._domain.end_range(started)

    def _attributes(self, name: str, label: str, payload: dict[str, int]) -> Any:
        attributes = None if payload else self._plain.get(label)
        if attributes is None:
            # With a payload new ones each time: two threads may push ranges of one label at once.
            attributes = self._domain.get_event_attributes(
                label, *reversed(category(name)), _struct(payload) if payload else None
            )
            if not payload:
                self._plain[label] = attributes
        return attributes


class _OldPackage:
    """nvtx 0.2.10, the last that an old nsys can record: one number per range, bytes before step."""

    def __init__(self, nvtx: Any) -> None:
        self._nvtx = nvtx

    def push(self, name: str, label: str, payload: dict[str, int]) -> None:
        self._nvtx.push_range(*self._arguments(name, label, payload))

    def pop(self) -> None:
        self._nvtx.pop_range(DOMAIN)

    def start(self, name: str, payload: dict[str, int]) -> Any:
        return self._nvtx.start_range(*self._arguments(name, name, payload))

    def end(self, started: Any) -> None:
        self._nvtx.end_range(started)

    def _arguments(self, name: str, label: str, payload: dict[str, int]) -> tuple[Any, ...]:
        kind, colour = category(name)
        return label, colour, DOMAIN, kind, payload.get("bytes", payload.get("step"))


def _struct(payload: dict[str, int]) -> Any:
    import numpy as np

    return np.array(tuple(payload.values()), dtype=_dtype(tuple(payload)))


@cache
def _dtype(fields: tuple[str, ...]) -> Any:
    import numpy as np

    return np.dtype([(field, np.int64) for field in fields])

"""What torch's message on a lack of device memory says: a real shortage, fragments, or another process's memory."""

from __future__ import annotations

import re

from gpuscope import when_used
from gpuscope.when_used import dataclass

_AMOUNT = r"(\d+(?:\.\d+)?) (bytes|[KMGT]iB)"
_ASKED = when_used.pattern(rf"Tried to allocate {_AMOUNT}")
_TOTAL = when_used.pattern(rf"total capacity of {_AMOUNT}|{_AMOUNT} total capacity")
_FREE = when_used.pattern(rf"of which {_AMOUNT} is free|{_AMOUNT} free;")
_ALLOCATED = when_used.pattern(rf"{_AMOUNT} is allocated by PyTorch|{_AMOUNT} already allocated")
_UNUSED = when_used.pattern(rf"{_AMOUNT} is reserved by PyTorch but unallocated")
_RESERVED = when_used.pattern(rf"{_AMOUNT} reserved in total by PyTorch")
_OTHERS = when_used.pattern(rf"(?<!this )[Pp]rocess (?:\d+ )?has {_AMOUNT} memory in use")
_OWN = when_used.pattern(rf"this process has {_AMOUNT} memory in use")
_VARIABLE = when_used.pattern(r"PYTORCH_(?:\w+_)?ALLOC_CONF")
_BYTES = {"bytes": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40}
FRAGMENTS = 1 / 50
"""Share of the device from which memory that is reserved and not allocated is worth having: less is the rounding of
blocks, and the next request fails though this one would fit."""
MUCH = 1 / 20
"""Share of the device from which another process's memory is the first thing to look at."""


@dataclass(frozen=True)
class Shortage:
    """Bytes, as the message has them; `unused` is reserved by torch's allocator and not allocated."""

    asked: int
    unused: int | None
    allocated: int | None
    free: int | None
    total: int | None
    others: int
    """What other processes hold of the device."""
    variable: str
    old: bool
    """Whether the message is of a torch before 2.1."""

    @property
    def fragmented(self) -> bool:
        """Whether what is reserved and not allocated would have been enough, had it been in one piece."""
        if self.unused is None or self.unused < self.asked:
            return False
        return self.unused >= FRAGMENTS * (self.total or (self.allocated or 0) + self.unused)

    @property
    def shared(self) -> bool:
        """Whether other processes hold as much as was lacking, and a good part of the device."""
        return self.others >= max(self.asked - (self.free or 0), MUCH * (self.total or 0), 1)

    def why(self) -> str:
        """What the figures say."""
        asked = _shown(self.asked)
        if self.fragmented and self.unused is not None:
            return f"{asked} were asked for, and {_shown(self.unused)} are reserved by PyTorch but not allocated"
        if self.total and self.asked > self.total:
            return f"{asked} were asked for, more than the device has ({_shown(self.total)})"
        if self.shared:
            return f"{asked} were asked for, and other processes hold {_shown(self.others)} of the device"
        held = "" if self.allocated is None else f", and PyTorch has {_shown(self.allocated)} allocated"
        of = f" of {_shown(self.total)}" if self.total and held else ""
        spare = "" if self.unused is None else f"; only {_shown(self.unused)} more are reserved and not allocated"
        return f"{asked} were asked for{held}{of}{spare}"

    def remedy(self) -> str:
        """What to do first."""
        if self.fragmented:
            since = " (from torch 2.1 on; before, max_split_size_mb:512)" if self.old else ""
            return (
                f"{self.variable}=expandable_segments:True{since}: the memory is there, in fragments; if that does not "
                "help, gpuscope record --memory shows what lies between them"
            )
        if self.shared and not (self.total and self.asked > self.total):
            return "nvidia-smi (rocm-smi) shows the processes on that device; end them, or give each rank its own"
        return (
            "a real shortage, no fragments: a smaller micro-batch, activation checkpointing, sharded states; gpuscope "
            "record --memory shows what holds the memory"
        )


def read(text: str) -> Shortage | None:
    """The figures of a message; None where it has none."""
    asked = _first(_ASKED, text)
    if asked is None:
        return None
    allocated, reserved, unused = (_first(pattern, text) for pattern in (_ALLOCATED, _RESERVED, _UNUSED))
    if unused is None and reserved is not None and allocated is not None:
        unused = max(reserved - allocated, 0)
    others = sum(_bytes(match) for match in _OTHERS.finditer(text)) if _OWN.search(text) else 0
    named = _VARIABLE.search(text)
    variable = named[0] if named else "PYTORCH_HIP_ALLOC_CONF" if "HIP out of" in text else "PYTORCH_CUDA_ALLOC_CONF"
    return Shortage(
        asked, unused, allocated, _first(_FREE, text), _first(_TOTAL, text), others, variable, reserved is not None
    )


def _shown(nbytes: int) -> str:
    """As torch prints it, so that the figure is found again in the message."""
    unit = next((unit for unit in ("GiB", "MiB", "KiB") if nbytes >= _BYTES[unit]), "bytes")
    return f"{nbytes} bytes" if unit == "bytes" else f"{nbytes / _BYTES[unit]:.2f} {unit}"


def _first(pattern: re.Pattern[str], text: str) -> int | None:
    match = pattern.search(text)
    return None if match is None else _bytes(match)


def _bytes(match: re.Match[str]) -> int:
    number, unit = [group for group in match.groups() if group is not None][:2]
    return round(float(number) * _BYTES[unit])

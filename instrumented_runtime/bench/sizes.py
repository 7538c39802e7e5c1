"""Sizes as nccl-tests writes them: `8`, `64K`, `16M`, `1G`, in powers of 1024."""

from __future__ import annotations

import re

from gpuscope.errors import UsageError

_UNITS = {"": 1, "K": 1024, "M": 1024**2, "G": 1024**3}


def parse_size(text: str) -> int:
    """Bytes of `64K`, `16M`, `1GiB`. Raises `UsageError` for anything else."""
    match = re.fullmatch(r"(\d+)\s*([KMG]?)(?:i?B)?", text.strip(), re.IGNORECASE)
    if not match:
        raise UsageError(f"{text!r} is not a size", hint="write 8, 64K, 16M or 1G")
    return int(match[1]) * _UNITS[match[2].upper()]


def format_size(nbytes: int) -> str:
    """The shortest exact form: 65536 is `64K`, 1000 is `1000`."""
    for unit in ("G", "M", "K"):
        if nbytes >= _UNITS[unit] and nbytes % _UNITS[unit] == 0:
            return f"{nbytes // _UNITS[unit]}{unit}"
    return str(nbytes)


def sweep(smallest: int, largest: int, factor: int) -> tuple[int, ...]:
    """Sizes from the smallest to the largest, each `factor` times the one before."""
    if factor < 2:
        raise UsageError(f"--stepfactor must be at least 2, not {factor}")
    if not 0 < smallest <= largest:
        raise UsageError(
            f"the sizes run from {smallest} to {largest}", hint="--minbytes must be positive and at most --maxbytes"
        )
    sizes = [smallest]
    while sizes[-1] * factor <= largest:
        sizes.append(sizes[-1] * factor)
    return tuple(sizes)

"""Settings of the caching allocator: what they are, what a snapshot or a string says of them, how they round.

Constants and rules are those of c10/core/AllocatorConfig.{h,cpp} (PyTorch 2.13) and c10/cuda/CUDACachingAllocator.cpp.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any

from gpuscope import when_used
from gpuscope.when_used import dataclass

MIN_BLOCK = 512
"""kMinBlockSize: sizes are rounded up to multiples of it."""
SMALL_SIZE = 1 << 20
"""kSmallSize: the largest request that the small pool serves; the least remainder that is worth splitting off."""
SMALL_BUFFER = 2 << 20
"""kSmallBuffer: segments of the small pool."""
LARGE_BUFFER = 20 << 20
"""large_segment_size: segments for requests below MIN_LARGE_ALLOC."""
MIN_LARGE_ALLOC = 10 << 20
"""kMinLargeAlloc: requests from here on get segments of their own size."""
ROUND_LARGE = 2 << 20
"""kRoundLarge: to multiples of it."""
ASCEND_PADDING = 32
"""NPUCachingAllocator.cpp (torch_npu) adds 32 bytes to a request before rounding it."""
INTERVALS = 16
"""kRoundUpPowerOfTwoIntervals: 1 MiB to 64 GiB, by powers of two."""
MIB = 1 << 20

_ITEM = when_used.pattern(r"\s*([a-z0-9_]+)\s*:\s*(\[[^\]]*\]|[^,\[\]]+)\s*(?:,|$)")


@dataclass(frozen=True)
class Settings:
    """How an allocator is set. Sizes are bytes."""

    expandable: bool = False
    max_split: int | None = None
    """Blocks from here on are neither split nor used for smaller requests; None: no limit."""
    max_non_split_rounding: int = LARGE_BUFFER
    divisions: tuple[int, ...] = (0,) * INTERVALS
    """roundup_power2_divisions of each interval."""
    gc_threshold: float = 0.0
    """Share of the memory limit beyond which old cached segments are given back; 0: never."""
    padding: int = 0
    """Bytes added to each request before rounding."""

    def round(self, size: int) -> int:
        """The size of the block that a request of `size` bytes gets, if it is split off (`round_size`)."""
        size += self.padding
        if size < MIN_BLOCK:
            return MIN_BLOCK
        divisions = self.divisions[min(max(size.bit_length() - 21, 0), INTERVALS - 1)]
        if divisions > 1 and size > MIN_BLOCK * divisions:
            return _next_division(size, divisions)
        return -(-size // MIN_BLOCK) * MIN_BLOCK

    def splits(self, remaining: int, size: int, small: bool) -> bool:
        """Whether a free block is cut where `remaining` bytes are left over (`should_split`)."""
        if small or self.expandable:
            return remaining >= MIN_BLOCK
        return (self.max_split is None or size < self.max_split) and remaining > SMALL_SIZE


def segment_size(size: int) -> int:
    """Bytes that are asked of cudaMalloc for a block of `size` bytes (`get_allocation_size`)."""
    if size <= SMALL_SIZE:
        return SMALL_BUFFER
    if size < MIN_LARGE_ALLOC:
        return LARGE_BUFFER
    return -(-size // ROUND_LARGE) * ROUND_LARGE


def from_snapshot(recorded: Mapping[str, Any] | None) -> Settings:
    """The settings in a snapshot's `allocator_settings`; the defaults for those it lacks."""
    if not recorded:
        return Settings()
    split, rounding = recorded.get("max_split_size"), recorded.get("max_non_split_rounding_size")
    divisions = recorded.get("roundup_power2_divisions")
    threshold = recorded.get("garbage_collection_threshold")
    settings = Settings(expandable=recorded.get("expandable_segments") is True)
    if isinstance(split, int) and 0 < split < 1 << 62:  # −1 is no limit
        settings = replace(settings, max_split=split)
    if isinstance(rounding, int) and 0 < rounding < 1 << 62:
        settings = replace(settings, max_non_split_rounding=rounding)
    if isinstance(threshold, float | int) and 0 < threshold < 1:
        settings = replace(settings, gc_threshold=float(threshold))
    if isinstance(divisions, dict):
        values = [value if isinstance(value, int) else 0 for value in divisions.values()][:INTERVALS]
        settings = replace(settings, divisions=tuple(values + [0] * (INTERVALS - len(values))))
    return settings


def changed(settings: Settings, option: str, value: str) -> Settings:
    """The settings with one option set as the variable would set it. Raises `ValueError` for what its parser
    (c10/core/AllocatorConfig.cpp) would not take."""
    if option == "expandable_segments" and value in ("True", "False"):
        return replace(settings, expandable=value == "True")
    if option == "max_split_size_mb" and int(value) * MIB >= LARGE_BUFFER:
        return replace(settings, max_split=int(value) * MIB)
    if option == "garbage_collection_threshold" and 0 < float(value) < 1:
        return replace(settings, gc_threshold=float(value))
    if option == "roundup_power2_divisions":
        return replace(settings, divisions=_divisions(value))
    raise ValueError(f"{option}:{value}")


def merged(before: str, option: str, value: str) -> str:
    """The value of the variable with one option added or replaced, and the others kept."""
    items = dict(_ITEM.findall(before))
    items[option] = value
    return ",".join(f"{key}:{item}" for key, item in items.items())


ANY, FROM_2_9, ASCEND = "PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF", "PYTORCH_NPU_ALLOC_CONF"
"""Every torch for CUDA and ROCm reads the first, and reads it first (c10/cuda/CUDAAllocatorConfig.h); from 2.9 on the
second, where the first is not set."""


def variable(*, modern: bool, set_already: Collection[str] = ()) -> str:
    """The variable to set the allocator by: the newer name only where torch is known to have it (`modern`), and nothing
    is set that it reads before."""
    return FROM_2_9 if modern and ANY not in set_already else ANY


def _divisions(value: str) -> tuple[int, ...]:
    """`4`, or `[256:1,512:2,>:4]` by size in MiB: each names an interval, the first those below it too."""
    if not value.startswith("["):
        return (_power_of_2(value),) * INTERVALS
    found, last, first = [0] * INTERVALS, 0, True
    for item in value[1:-1].split(","):
        bound, _, text = item.partition(":")
        count = 0 if text.strip() == "0" else _power_of_2(text)
        if bound.strip() == ">":
            found[last:] = [count] * (INTERVALS - last)
            continue
        last = min(_power_of_2(bound).bit_length() - 1, INTERVALS - 1)
        if first:
            found[:last] = [count] * last
        found[last], first = count, False
    return tuple(found)


def _power_of_2(text: str) -> int:
    number = int(text)
    if number < 1 or number & (number - 1):
        raise ValueError(f"{text} is no power of 2")
    return number


def _next_division(size: int, divisions: int) -> int:
    """`roundup_power2_next_division`: up to the next of `divisions` steps between two powers of two."""
    if not size & (size - 1):
        return size
    floor = 1 << (size.bit_length() - 1)
    step = floor >> (divisions.bit_length() - 1)
    if not step:
        return floor << 1
    return -(-size // step) * step

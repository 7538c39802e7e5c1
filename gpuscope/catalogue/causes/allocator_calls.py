"""Calls that allocate or free device or pinned memory."""

from __future__ import annotations

from gpuscope.catalogue.cause import Cause, Look
from gpuscope.trace.naming import kinds
from gpuscope.trace.schema import Category
from gpuscope.words import palette

CAUSE = Cause(
    code="allocator",
    place=120,
    class_name="memory",
    label="allocator calls",
    meaning="the device is idle while the host is in `cudaMalloc`, `cudaFree`, `cudaHostAlloc` or similar",
    message="Allocator calls leave the device idle",
    look=Look(palette.PURPLE, "x"),
    idle=True,
    precedence=30,
    shown_by=(((Category.RUNTIME,), kinds.is_allocator_call),),
    about="The device is idle while the host allocates or frees device or pinned memory.",
    recognised=(
        "a call such as `cudaMalloc`, `cudaFree`, `cudaHostAlloc`, `cuMemCreate`, `cuMemMap`, `hipFree`, or "
        "CANN's, on the launching thread. Idle in the breakdown, memory by class."
    ),
    helps=(
        "where hundreds of calls stand in every step, the caching allocator is off: unset "
        "`PYTORCH_NO_CUDA_MEMORY_CACHING`, or have a pluggable allocator cache. Where a few do: "
        "`expandable_segments:True`; fewer distinct sizes (pad sequences to buckets); no "
        "`torch.cuda.empty_cache()` in the loop; headroom, so that the cache is not flushed and retried."
    ),
    misleads=(
        "a recording of warm-up alone: the first steps allocate, later ones should not. `cudaFree` waits for "
        "the device: in a gap that it causes itself its time is counted here, not as `sync`. Calls nested in "
        "an operator (a convolution, say) look like that operator's own search for an algorithm."
    ),
)

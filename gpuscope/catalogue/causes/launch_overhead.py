"""Launches that are slower than the device."""

from __future__ import annotations

from gpuscope.catalogue.cause import Cause, Look
from gpuscope.words import palette

CAUSE = Cause(
    code="launch",
    place=30,
    class_name="cpu",
    label="kernel launch overhead",
    meaning=(
        "the device is idle while that thread issues one launch after the other and is slower than the "
        "device: launch overhead"
    ),
    message="The host launches kernels more slowly than they run",
    look=Look(palette.SKY),
    located=False,
    idle=True,
    about=(
        "The device is idle while the launching thread issues one launch after the other and is slower than "
        "the device: launch overhead, of Python, the framework and the driver."
    ),
    recognised=(
        "the idle time that stays in the replay whose blocking calls return at once, plus the first 10 µs "
        "before an operation that was already queued. Host work that is long against the usual launch "
        "interval is `host_other`, not `launch`."
    ),
    helps=(
        "larger batches or fewer, larger kernels; `torch.compile`; CUDA graphs; foreach or fused optimizers; "
        "less Python per step."
    ),
    misleads=(
        "the profiler itself, which adds microseconds to every operator, most of all with stacks and shapes, "
        "and with `emit_nvtx`; compare with an unprofiled step time. Work that no record shows (a native "
        "library, a busy CPU, a descheduled process) ends up here too if it is short: see how many cores the "
        "job has. A program with few launches: see `host_other`."
    ),
)

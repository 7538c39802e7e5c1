"""The captures that the options select, in the order they start (and, reversed, stop)."""

from __future__ import annotations

from dataclasses import replace

from gpuscope.instrumented_runtime.record.applied.rank import Observed
from gpuscope.instrumented_runtime.record.capture.capture import Capture
from gpuscope.instrumented_runtime.record.capture.environment import Environment
from gpuscope.instrumented_runtime.record.capture.gc_ranges import GcRanges
from gpuscope.instrumented_runtime.record.capture.memory_snapshots import MemorySnapshots
from gpuscope.instrumented_runtime.record.capture.nsys_capture import NsysRange
from gpuscope.instrumented_runtime.record.capture.nvml_samples import Nvml
from gpuscope.instrumented_runtime.record.capture.on_demand import OnDemand
from gpuscope.instrumented_runtime.record.capture.profiler_guard import ScriptProfilers
from gpuscope.instrumented_runtime.record.capture.step_times import StepTimes
from gpuscope.instrumented_runtime.record.capture.torch_profiler import TorchProfiler
from gpuscope.instrumented_runtime.record.capture_options import RecordOptions
from gpuscope.instrumented_runtime.record.digest.digest import Digest
from gpuscope.instrumented_runtime.record.gloo.collective_capture import Collectives
from gpuscope.instrumented_runtime.record.hang.flight_recorder_dumps import FlightRecorder
from gpuscope.instrumented_runtime.record.hang.hang_watch import HangWatch

DIGEST_NVML_MS = 1_000
"""How often NVML is asked for a digest."""


def captures_for(options: RecordOptions) -> list[Capture]:
    """The captures of one rank. The profiler starts last and stops first: it need not see the others."""
    captures: list[Capture] = [Observed()] if options.always else [Observed(), StepTimes()]
    if options.environment:
        captures.append(Environment())
    keeps_history = options.memory == "on" if options.always else options.memory != "off"
    memory = MemorySnapshots(options.memory) if keeps_history else None
    if memory is not None:
        captures.append(memory)
    nvml = _nvml(options)
    if nvml is not None:
        captures.append(nvml)
    recorder = FlightRecorder(options.flight_recorder) if options.flight_recorder else None
    if recorder is not None:
        captures.append(recorder)
    captures.append(HangWatch(options.hang_timeout_s, recorder, memory.on_demand if memory else None))
    if options.gc:
        captures.append(GcRanges())
    collectives: Collectives | Digest | None = None
    if options.always:
        collectives = Digest(nvml)
    elif options.collectives:
        collectives = Collectives()
    if collectives is not None:
        captures.append(collectives)
    captures.append(ScriptProfilers(beside_nsys=options.profiler == "nsys"))
    if options.profiler != "none":
        make = _on_demand if options.on_request else _profiler
        captures.append(make(options, collectives, nvml))
    return captures


def _nvml(options: RecordOptions) -> Nvml | None:
    if options.always:
        return Nvml(options.nvml_interval_ms or DIGEST_NVML_MS)
    return Nvml(options.nvml_interval_ms) if options.nvml_interval_ms and options.profiler == "torch" else None


def _on_demand(options: RecordOptions, collectives: Collectives | Digest | None, nvml: Nvml | None) -> OnDemand:
    """Windows of the profiler that is asked for. An nsys that was started for one capture range takes no second one."""

    def make(first: int, active: int) -> Capture:
        return _profiler(replace(options, wait=first, active=active), collectives, nvml)

    return OnDemand(make, warmup=options.warmup, active=options.active, once=options.profiler == "nsys")


def _profiler(options: RecordOptions, collectives: Collectives | Digest | None, nvml: Nvml | None) -> Capture:
    """What records kernels and operators."""
    if options.profiler == "nsys":
        return NsysRange(wait=options.wait, warmup=options.warmup, active=options.active, whole=options.whole)
    return TorchProfiler(
        wait=options.wait,
        warmup=options.warmup,
        active=options.active,
        whole=options.whole,
        record_shapes=options.record_shapes,
        with_stack=options.with_stack,
        profile_memory=options.profile_memory,
        rewrite=collectives.rewrite if collectives is not None else None,
        nvml=nvml,
    )

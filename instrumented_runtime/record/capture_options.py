"""What to record: one set of options for `gpuscope record`, `gpuscope.session` and the integrations."""

from __future__ import annotations

import os

import msgspec

from gpuscope.errors import UsageError

ENV_OPTIONS = "GPUSCOPE_RECORD"
PROFILERS = ("torch", "nsys", "none")
MEMORY_MODES = ("off", "oom", "on")


class RecordOptions(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Options of a recording; the defaults cost little beside the profiler itself."""

    profiler: str = "torch"
    wait: int = 2  # steps before anything: DDP rebuilds its buckets after the first
    warmup: int = 1
    active: int = 5
    whole: bool = False  # from the start to the end, for scripts without an optimizer
    record_shapes: bool = True
    with_stack: bool = False
    profile_memory: bool = False
    collectives: bool = True  # the metadata that gloo does not give
    flight_recorder: int = 2000  # collectives kept for a dump; 0: off
    hang_timeout_s: float = 120.0  # report a collective that takes longer; 0: never
    memory: str = "oom"  # allocator history and snapshots: off, on OOM, or also on demand and at the end
    nvml_interval_ms: int = 200  # 0: off
    nccl_log: bool = True
    gc: bool = True  # tag garbage collections with ranges
    environment: bool = True

    def check(self) -> RecordOptions:
        """Self, or `UsageError` naming the option that can't be."""
        if self.profiler not in PROFILERS:
            raise UsageError(f"profiler={self.profiler!r} is unknown", hint=f"one of {', '.join(PROFILERS)}")
        if self.memory not in MEMORY_MODES:
            raise UsageError(f"memory={self.memory!r} is unknown", hint=f"one of {', '.join(MEMORY_MODES)}")
        if self.active < 1:
            raise UsageError(f"active={self.active} records nothing", hint="record at least one step")
        for option in ("wait", "warmup", "flight_recorder", "hang_timeout_s", "nvml_interval_ms"):
            if getattr(self, option) < 0:
                raise UsageError(f"{option}={getattr(self, option)} is negative", hint="use 0 for none")
        return self

    def to_environment(self) -> dict[str, str]:
        """The variable that carries these options into the ranks."""
        return {ENV_OPTIONS: msgspec.json.encode(self).decode()}


def options_from(**chosen: object) -> RecordOptions:
    """Options by keyword: what the launcher says, else the caller, else the defaults.

    Raises `UsageError` on an option that does not exist or a value of the wrong type.
    """
    launched = os.environ.get(ENV_OPTIONS)
    try:
        if launched:
            return msgspec.json.decode(launched, type=RecordOptions).check()
        return msgspec.convert(chosen, RecordOptions).check()
    except msgspec.ValidationError as error:
        known = ", ".join(RecordOptions.__struct_fields__)
        raise UsageError(f"recording options: {error}", hint=f"the options are {known}") from None

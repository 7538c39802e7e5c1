"""What to record: one declaration of each option, for `gpuscope record`, `gpuscope.session`, the integrations and
the tables of the documentation."""

from __future__ import annotations

import os
from dataclasses import asdict, field, fields, replace
from typing import Any

from gpuscope.errors import UsageError
from gpuscope.when_used import dataclass

ENV_OPTIONS = "GPUSCOPE_RECORD"


@dataclass(frozen=True)
class OptionText:
    """Help text and command-line spelling of an option."""

    help: str
    flag: str = ""
    """Its name on the command line, if not the field's."""
    unit: str = ""
    """Metavar of the value in the usage; the type if empty."""
    choices: tuple[str, ...] = ()
    least: int | None = None
    """Smallest value."""


def _option(default: Any, help: str, **more: Any) -> Any:
    return field(default=default, metadata={"text": OptionText(help, **more)})


@dataclass(kw_only=True, frozen=True)
class RecordOptions:
    """Options of a recording; the defaults cost little compared with the profiler itself."""

    profiler: str = _option(
        "torch",
        "What records kernels and operators; a session with nsys opens the range of an nsys around it.",
        choices=("torch", "nsys", "none"),
    )
    # DDP rebuilds its buckets after the first step.
    wait: int = _option(2, "Steps to skip first.", least=0)
    warmup: int = _option(1, "Steps to profile and throw away after these.", least=0)
    # Two ranks need five judged steps to tell a rank that is last from chance (definitions: «recurrent»).
    active: int = _option(8, "Steps to record.", least=1)
    on_demand: bool = _option(
        False, "Record only when asked, as often as asked: `touch RUN/record`, or SIGUSR2 to any process of the job."
    )
    always: bool = _option(
        False, "Write a digest of every step, without a profiler; a window in full when asked, as with --on-demand."
    )
    ranks: str = _option("", "Ranks to profile, such as 0,7; empty: all. The others leave everything but a trace.")
    every: int = _option(1, "Profile one rank in so many, from rank 0 on.", least=1)
    stop_after: int = _option(
        0,
        "End the job after so many steps, by SystemExit at the end of the step; 0: where the script ends.",
        unit="STEPS",
        least=0,
    )
    whole: bool = _option(False, "Record from start to end: for scripts without an optimizer.")
    record_shapes: bool = _option(True, "Record the operators' input shapes.", flag="shapes")
    with_stack: bool = _option(False, "Record Python stacks (costs much).", flag="stacks")
    profile_memory: bool = _option(False, "Record every allocation of tensors in the trace.")
    collectives: bool = _option(True, "Log gloo's collectives, and put them into the trace.")
    flight_recorder: int = _option(2000, "Collectives to keep for a dump; 0: none.", unit="N", least=0)
    hang_timeout_s: float = _option(
        120.0, "Report a collective that takes longer; 0: never.", flag="hang-timeout", unit="SECONDS", least=0
    )
    grace_s: float = _option(
        10.0,
        "How long ranks may take to write what they have after Ctrl-C or SIGTERM; then they are killed.",
        flag="grace",
        unit="SECONDS",
        least=0,
    )
    memory: str = _option(
        "oom",
        "GPU allocator history: snapshot on OOM only, or (with stacks) also on demand and at the end.",
        choices=("off", "oom", "on"),
    )
    nvml_interval_ms: int = _option(
        0,
        "How often to ask NVML for clocks and power, by step in the trace of torch.profiler; 0: never.",
        flag="nvml-interval",
        unit="MS",
        least=0,
    )
    nccl_log: bool = _option(True, "Have NCCL write its INFO log into the run folder; `gpuscope record` alone can.")
    nccl_inspector: bool = _option(
        False, "Load NCCL Inspector, whose plugin is in LD_LIBRARY_PATH; `gpuscope record` alone can."
    )
    compile_logs: bool = _option(
        False, "Have torch.compile write its log (`TORCH_TRACE`) into the run folder; `gpuscope record` alone can."
    )
    gc: bool = _option(True, "Record Python's garbage collections as ranges.")
    environment: bool = _option(True, "Record versions, variables, processors, GPUs and topology.")

    def check(self) -> RecordOptions:
        """Self, or `UsageError` naming the invalid option."""
        for name, text in option_texts().items():
            value = getattr(self, name)
            if text.choices and value not in text.choices:
                raise UsageError(f"{name}={value!r} is unknown", hint=f"one of {', '.join(text.choices)}")
            if text.least == 1 and value < 1:
                raise UsageError(f"{name}={value} records nothing", hint="record at least one step")
            if text.least is not None and value < text.least:
                raise UsageError(f"{name}={value} is negative", hint="use 0 for none")
        if self.ranks and self.every > 1:
            raise UsageError("ranks and every are two choices of ranks", hint="give one of them")
        if self.on_demand and (self.whole or self.profiler == "none"):
            other = "whole" if self.whole else "profiler=none"
            raise UsageError(f"on_demand and {other} exclude each other", hint="give one of them")
        if self.always and self.whole:
            raise UsageError("always and whole exclude each other", hint="give one of them")
        if self.nvml_interval_ms and not self.always and (self.whole or self.profiler != "torch"):
            other = "whole" if self.whole else f"profiler={self.profiler}"
            raise UsageError(
                f"nvml_interval_ms and {other} exclude each other",
                hint="it is kept by step in torch.profiler's traces; nsys has --gpu-metrics-devices",
            )
        _numbers(self.ranks)
        return self

    def profiles(self, rank: int) -> bool:
        """Whether the profiler runs on `rank`."""
        return rank in _numbers(self.ranks) if self.ranks else rank % self.every == 0

    def of_rank(self, rank: int) -> RecordOptions:
        """The options of one rank."""
        return self if self.profiles(rank) else replace(self, profiler="none")

    @property
    def on_request(self) -> bool:
        """Whether the profiler runs when somebody asks, and not before."""
        return (self.on_demand or self.always) and self.profiler != "none"

    def chosen(self) -> dict[str, Any]:
        """The options that differ from their defaults."""
        return {one.name: value for one in fields(self) if (value := getattr(self, one.name)) != one.default}

    def to_environment(self) -> dict[str, str]:
        """The variable that carries these options into the ranks."""
        import json

        return {ENV_OPTIONS: json.dumps(asdict(self))}


def _numbers(text: str) -> set[int]:
    """The ranks in «0,7». Raises `UsageError`."""
    parts = [part.strip() for part in text.split(",")] if text else []
    if not all(part.isdigit() for part in parts):
        raise UsageError(f"ranks={text!r} is not a list of ranks", hint="such as 0,7")
    return {int(part) for part in parts}


def option_texts() -> dict[str, OptionText]:
    """Every option's help text by field, in order of declaration."""
    return {one.name: one.metadata["text"] for one in fields(RecordOptions)}


def options_from(**chosen: object) -> RecordOptions:
    """Options by keyword: the launcher's, else the caller's, else the defaults.

    Raises `UsageError` on an option that does not exist or a value of the wrong type.
    """
    import json

    import msgspec

    launched = os.environ.get(ENV_OPTIONS)
    known = f"the options are {', '.join(option_texts())}"
    try:
        named: dict[str, object] = json.loads(launched) if launched else chosen
        if unknown := sorted(set(named) - set(option_texts())):
            raise UsageError(f"recording options: there is no `{unknown[0]}`", hint=known)
        return msgspec.convert(named, RecordOptions).check()
    except (msgspec.ValidationError, json.JSONDecodeError) as error:
        raise UsageError(f"recording options: {error}", hint=known) from None

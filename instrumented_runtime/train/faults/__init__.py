"""Injected faults: what the trainer calls at each point of a step, and how `--fault` names them.

A fault is a frozen dataclass in a module of this package, named after it; its fields are its options
(`--fault slow_loader:ms=30`). It overrides the hooks it needs, states its ground truth, and logs what
it did in the ledger.
"""

from __future__ import annotations

import importlib
import inspect
import pkgutil
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

import msgspec

from gpuscope.errors import UsageError

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn
    from torch.optim import Optimizer

    from gpuscope.instrumented_runtime.train.mesh import Tokens
    from gpuscope.instrumented_runtime.train.settings.config import TrainConfig


@dataclass(slots=True)
class StepContext:
    """The trainer's current state; one object per run, updated in place."""

    rank: int
    world_size: int
    device: torch.device
    config: TrainConfig
    step: int = 0
    micro_step: int = 0
    model: nn.Module | None = None
    parts: list[nn.Module] = field(default_factory=list)  # the model, or all stages of a pipeline's rank
    optimizer: Optimizer | None = None
    loss: Tensor | None = None
    ledger: Ledger = field(init=False)
    state: dict[str, Any] = field(default_factory=dict)  # what a fault keeps during the run, by its name

    def __post_init__(self) -> None:
        self.ledger = Ledger(self.rank)


class Fault:
    """Does nothing; every hook may be overridden. Hooks run on every rank: look at `context.rank`."""

    name: ClassVar[str]
    what: ClassVar[str]
    """Where the injected time or work is, in one line."""
    unit: ClassVar[str]
    """What the ledger counts."""
    bound_by: ClassVar[str | None] = None
    cause: ClassVar[str | None] = None
    """The verdict a strong dose leads to, in the report's terms; None if it has no verdict."""
    finding: ClassVar[str | None] = None
    """The finding it leads to if that is not a verdict (a hang)."""
    shows_on: ClassVar[tuple[str, ...]] = ("cpu", "cuda")
    """Devices on which a trace can show that verdict or finding; elsewhere only the counts grow."""

    def truth(self, config: TrainConfig, world_size: int) -> dict[str, Any]:
        """The planned half of the ground truth, for the manifest. `ranks` None means all, `ns_per_step`
        None that only the ledger has it."""
        return {
            "fault": self.name,
            "options": self.options(),
            "what": self.what,
            "unit": self.unit,
            "ranks": self.ranks(config, world_size),
            "steps": self.steps(config),
            "ns_per_step": self.ns_per_step(),
            "bound_by": self.bound_by,
            "cause": self.cause,
            "finding": self.finding,
            "shows_on": list(self.shows_on),
        }

    def ranks(self, config: TrainConfig, world_size: int) -> list[int] | None:  # noqa: ARG002
        """The ranks it acts on; None = all of them."""
        return None

    def steps(self, config: TrainConfig) -> dict[str, int]:
        """The steps it acts in: `first`, `last` (included), `every`."""
        return {"first": 0, "last": config.train.steps - 1, "every": 1}

    def ns_per_step(self) -> int | None:
        """Nanoseconds it adds to each step it acts in, on each of its ranks."""
        return None

    def configure(self, config: TrainConfig, world_size: int) -> TrainConfig:  # noqa: ARG002
        """The configuration to run with, before anything is built and checked; also called in the launcher."""
        return config

    def launching(self, world_size: int) -> AbstractContextManager[object]:  # noqa: ARG002
        """Set up what the machine needs while the job runs; entered by the launcher alone."""
        return nullcontext()

    def before_join(self, rank: int) -> None:
        """Called in every process before it makes a connection."""

    def wrap_dataset(self, dataset: Tokens, context: StepContext) -> Tokens:  # noqa: ARG002
        """The dataset to load from."""
        return dataset

    def on_model(self, context: StepContext) -> None:
        """Called once the parallel model and the optimizer exist."""

    def on_step_begin(self, context: StepContext) -> None:
        """Called when a step begins, before a batch is loaded."""

    def on_batch(self, context: StepContext, batch: Tensor) -> Tensor:  # noqa: ARG002
        """The batch to train on, on the host; called in each micro-step."""
        return batch

    def before_forward(self, context: StepContext) -> None:
        """Called once the batch is on the device. (A pipeline then runs forwards and backwards together.)"""

    def before_backward(self, context: StepContext) -> None:
        """Called once `context.loss` exists."""

    def after_backward(self, context: StepContext) -> None:
        """Called when gradients are synchronised or in flight, before the optimizer."""

    def on_step_end(self, context: StepContext) -> None:
        """Called after the optimizer, before the profiler is notified of the step's end."""

    def options(self) -> dict[str, Any]:
        """The options as given or by default."""
        return asdict(self)  # type: ignore[call-overload, no-any-return]  # subclasses are dataclasses


@dataclass(frozen=True)
class StepFault(Fault):
    """A fault that acts in every `every`-th step from `first` on."""

    first: int = 0
    every: int = 1

    def __post_init__(self) -> None:
        for name, least in (("first", 0), ("every", 1)):
            require(getattr(self, name) >= least, self.name, name, f"must be at least {least}")
        for name in ("ms", "mb", "times", "ops"):
            require(getattr(self, name, 0) >= 0, self.name, name, "must not be negative")

    def due(self, step: int) -> bool:
        """Whether it acts in `step`."""
        return step >= self.first and (step - self.first) % self.every == 0

    def steps(self, config: TrainConfig) -> dict[str, int]:
        return {"first": self.first, "last": config.train.steps - 1, "every": self.every}


@dataclass(frozen=True)
class DeadlockFault(Fault):
    """A fault that acts once, in `step`, on one `rank`, and leads to a hang of all."""

    finding = "hang"
    rank: int = 1
    step: int = 2

    def ranks(self, config: TrainConfig, world_size: int) -> list[int]:  # noqa: ARG002
        return [self.rank]

    def steps(self, config: TrainConfig) -> dict[str, int]:  # noqa: ARG002
        return {"first": self.step, "last": self.step, "every": 1}

    def configure(self, config: TrainConfig, world_size: int) -> TrainConfig:
        require(world_size > 1 or self.alone, self.name, "rank", "needs two processes or more", "--nproc 2")
        require_rank(self.rank, world_size, self.name)
        return config

    alone: ClassVar[bool] = False
    """Whether it works with a single process."""

    def due(self, context: StepContext) -> bool:
        """Whether the trainer is at the point it acts at, on any rank: the first micro-step of `step`."""
        return context.step == self.step and context.micro_step == 0


def check_reached(fault: Fault, config: TrainConfig) -> None:
    """Raise `UsageError` if the run ends before the fault's first step."""
    first = fault.steps(config)["first"]
    option = "step" if isinstance(fault, DeadlockFault) else "first"
    require(first < config.train.steps, fault.name, option, f"{first} is not reached in {config.train.steps} steps")


def require(good: bool, fault: str, option: str, problem: str, hint: str | None = None) -> None:
    """Raise `UsageError` that names the fault's option unless `good`."""
    if not good:
        raise UsageError(f"--fault {fault}: {option} {problem}", hint=hint)


def require_rank(rank: int, world_size: int, fault: str) -> None:
    """Raise `UsageError` that names the fault unless `rank` is one of the processes."""
    require(0 <= rank < world_size, fault, "rank", f"{rank} is not below the {world_size} processes")


def available() -> dict[str, type[Fault]]:
    """Every fault of the package by name."""
    found: dict[str, type[Fault]] = {}
    for info in pkgutil.walk_packages(__path__, f"{__name__}."):
        for _, kind in inspect.getmembers(importlib.import_module(info.name), inspect.isclass):
            if issubclass(kind, Fault) and kind.__module__ == info.name:
                found[kind.name] = kind
    return found


def parse_faults(texts: Iterable[str]) -> tuple[Fault, ...]:
    """Faults from `name:option=value,option=value`. Raises `UsageError` on an unknown name or option."""
    kinds = available()
    faults = []
    for text in texts:
        name, _, rest = text.partition(":")
        if name not in kinds:
            raise UsageError(f"--fault: no fault {name!r}", hint=f"one of {', '.join(sorted(kinds))}")
        given = dict(pair.partition("=")[::2] for pair in rest.split(",") if pair)
        known = list(inspect.signature(kinds[name]).parameters)
        for option in given.keys() - known:
            raise UsageError(f"--fault {name}: no option {option!r}", hint=f"it has {', '.join(known)}")
        try:
            faults.append(msgspec.convert(given, kinds[name], strict=False))
        except msgspec.ValidationError as error:
            raise UsageError(f"--fault {text}: {error}") from None
    return tuple(faults)


Keep = Callable[[list[dict[str, Any]]], None]


class Ledger:
    """Injections of one rank, counted: a fault's `truth` is the plan. Both go into the manifest. Written by `flush`:
    at the run's end, or before a fault that ends it.
    """

    def __init__(self, rank: int) -> None:
        self.rank = rank
        self.keep: Keep | None = None
        self._steps: dict[str, dict[int, tuple[int, int | None]]] = {}

    def add(self, fault: str, step: int, *, count: int = 1, ns: int | None = None) -> None:
        """Add to what `fault` did in `step`: `count` in the fault's own unit, `ns` where it is known."""
        steps = self._steps.setdefault(fault, {})
        so_far, time = steps.get(step, (0, None))
        steps[step] = so_far + count, time if ns is None else ns + (time or 0)

    def rows(self) -> list[dict[str, Any]]:
        """One record per fault: `fault`, `rank`, and the parallel lists `steps`, `counts` and `ns`."""
        return [
            {
                "fault": fault,
                "rank": self.rank,
                "steps": list(steps),
                "counts": [count for count, _ in steps.values()],
                "ns": [ns for _, ns in steps.values()],
            }
            for fault, steps in self._steps.items()
        ]

    def flush(self) -> None:
        """Pass the rows to the sink, if there is one."""
        if self.keep is not None:
            self.keep(self.rows())

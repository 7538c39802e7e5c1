"""One of two gloo processes that run both sides of a case in turn, and record each turn into a folder of its own.

Started by torchrun: `worker.py FOLDER ROUNDS CASE…`. Both sides run in the same processes and take turns of
a few steps, so that any other load on the machine slows both equally.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch.distributed as dist
from torch import Tensor

from benchmarks.advice.cases import CASES, UNSEEN, Case, Variant
from gpuscope.instrumented_runtime.record import gloo_trace
from gpuscope.instrumented_runtime.record.ranges import span
from gpuscope.instrumented_runtime.record.session import gpuscope_session
from gpuscope.instrumented_runtime.train.faults import Fault, StepContext, parse_faults
from gpuscope.instrumented_runtime.train.mesh import World, join_world
from gpuscope.instrumented_runtime.train.run_options import record_options
from gpuscope.instrumented_runtime.train.settings.parallel_spec import assemble, validate
from gpuscope.instrumented_runtime.train.trainer import Trainer

WAIT, WARMUP, ACTIVE = 1, 1, 8
"""Steps of a turn. After the turn of the other side the first ones find cold caches and full loader queues."""
CYCLES = 20_000
"""Lists made per step that only the collector can free."""
FIRST = 4
"""Steps before anything is recorded: DDP rebuilds its buckets after the first, and memory is touched."""


@dataclass(frozen=True)
class Barrier(Fault):
    """A barrier before the backward pass, as in scripts that time themselves."""

    def before_backward(self, context: StepContext) -> None:  # noqa: ARG002
        dist.barrier()


@dataclass(frozen=True)
class GarbageCycles(Fault):
    """Reference cycles at the end of each step, collected there as `gc.collect()` in a loop does, or left."""

    collected: bool

    def on_step_end(self, context: StepContext) -> None:
        for _ in range(CYCLES):
            cycle: list[object] = []
            cycle.append(cycle)
        if self.collected:
            with span("gc", step=context.step):
                gc.collect()


class Side:
    """A trainer, and its turns."""

    def __init__(self, case: Case, variant: Variant, world: World) -> None:
        self.config = assemble(
            parallel=case.parallel, world_size=world.size, settings=[*case.common, *variant.settings]
        )
        faults = parse_faults(variant.faults)
        for fault in faults:
            self.config = fault.configure(self.config, world.size)
        degrees = validate(self.config, world.size)
        self.trainer = Trainer(self.config, world, degrees, (*faults, *_own(variant)))
        self.batches: Iterator[Tensor] = self.trainer.batches()
        self.done = 0

    def steps(self, count: int) -> Iterator[int]:
        """Train so many steps; yields after each."""
        for _ in range(count):
            self.trainer.step(self.done, self.batches)
            self.done += 1
            yield self.done

    def turn(self, folder: Path) -> None:
        """Record one turn."""
        options = {**record_options(self.config), "wait": WAIT, "warmup": WARMUP, "active": ACTIVE}
        options |= {"environment": False, "flight_recorder": 0, "hang_timeout_s": 0.0}
        # Collect the garbage of both sides and earlier turns, so that Python's collector does not run during a turn.
        gc.collect()
        with gpuscope_session(folder, **options) as session:
            dist.barrier()
            for _ in self.steps(WAIT + WARMUP + ACTIVE):
                session.step()


def _own(variant: Variant) -> list[Fault]:
    """Faults that this benchmark adds to a side."""
    added: list[Fault] = [Barrier()] if variant.barrier else []
    return [*added, GarbageCycles(variant.garbage == "collected")] if variant.garbage else added


def run_case(case: Case, folder: Path, rounds: int, world: World) -> None:
    """Both sides in turn, so many rounds."""
    sides = {name: Side(case, variant, world) for name, variant in (("before", case.before), ("after", case.after))}
    for side in sides.values():
        list(side.steps(FIRST))
    for place in range(rounds):
        for name in sorted(sides, reverse=place % 2 == 0):  # each side goes first in every second round
            sides[name].turn(folder / f"{name}{place}")


def main(folder: str, rounds: str, *numbers: str) -> None:
    gloo_trace.install()
    with join_world(assemble(parallel="ddp", world_size=2)) as world:
        for number in numbers:
            run_case((*CASES, *UNSEEN)[int(number)], Path(folder, number), int(rounds), world)


if __name__ == "__main__":
    main(*sys.argv[1:])

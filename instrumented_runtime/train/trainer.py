"""The demo trainer: a plain loop whose parts are ranges, measured, and hooks for faults."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import torch
from torch import Tensor

from gpuscope.hardware.device_peaks import peak_flops
from gpuscope.instrumented_runtime.record.ranges import span
from gpuscope.instrumented_runtime.train.checkpoint import Checkpoints, Progress
from gpuscope.instrumented_runtime.train.faults import Fault, StepContext
from gpuscope.instrumented_runtime.train.measures import EXPOSED, StepMeter, StepRecord, Workload, is_measurable
from gpuscope.instrumented_runtime.train.mesh import (
    World,
    clip_gradients,
    make_dataset,
    make_loader,
    make_mesh,
    set_learning_rate,
)
from gpuscope.instrumented_runtime.train.model import flops_per_token
from gpuscope.instrumented_runtime.train.parallel.compose import parallelize
from gpuscope.instrumented_runtime.train.settings.config import Degrees, TrainConfig
from gpuscope.instrumented_runtime.train.settings.parallelisms.built_in import FsdpConfig

AfterStep = Callable[[StepRecord], None]


class Trainer:
    """One rank's training: build, perhaps `resume`, then `run`."""

    def __init__(self, config: TrainConfig, world: World, degrees: Degrees, faults: tuple[Fault, ...] = ()) -> None:
        self.config, self.world, self.degrees, self.faults = config, world, degrees, faults
        self.mesh = make_mesh(degrees, world)
        self.context = StepContext(world.rank, world.size, world.device, config)
        self.parallel = parallelize(config, world, self.mesh)
        self.samples_per_step = config.data.batch * config.train.accumulate * degrees.data_ranks
        self.meter = StepMeter(
            _workload(config, world, self.samples_per_step),
            world.rank,
            world.device,
            gc_every=config.train.gc_every,
            loss_every=config.measures.loss_every,
        )
        self.progress = Progress(started_ns=self.meter.job.started_ns)
        self.checkpoints: Checkpoints | None = None
        self.gradient_norm: Tensor | None = None  # of the last step, over all ranks, before clipping
        self.context.parts = list(self.parallel.parts)
        self.context.model, self.context.optimizer = self.parallel.parts[0], self.parallel.optimizers[0]
        for fault in faults:
            fault.on_model(self.context)

    def checkpoint_into(self, folder: Path) -> None:
        """Save every `checkpoint.every` steps, and at the end."""
        self.checkpoints = Checkpoints(folder, self.parallel, keep=self.config.checkpoint.keep)

    def resume(self, checkpoint: Path) -> None:
        """Resume from `checkpoint`, written by any number of ranks. Raises `InputError`."""
        self.progress = Checkpoints(checkpoint.parent, self.parallel, keep=1).load(checkpoint)
        self.meter.job.started_ns, self.meter.job.useful_ns = self.progress.started_ns, self.progress.useful_ns

    @property
    def shows_progress(self) -> bool:
        """Whether this rank shows the run's progress: the first that has the loss."""
        first = self.mesh.rank(*(axis for axis in self.degrees.sizes if not axis.own_layers)) == 0
        return first and self.parallel.micro_step.knows_loss

    def batches(self) -> Iterator[Tensor]:
        """This rank's batches from the next sample on."""
        dataset = make_dataset(self.config)
        for fault in self.faults:
            dataset = fault.wrap_dataset(dataset, self.context)
        ranks = self.degrees.data_ranks
        return iter(
            make_loader(dataset, self.config, self.mesh.data_rank, ranks, self.progress.samples, pin=self.world.is_cuda)
        )

    def run(self, after_step: AfterStep = lambda _: None) -> None:
        """Train to the last step; calls `after_step` after each."""
        batches = self.batches()
        measurable = is_measurable(self.config, self.world.device.type)
        self.meter.collector.start()
        try:
            for step in range(self.progress.step, self.config.train.steps):
                self.meter.begin()
                loss = self.step(step, batches)
                self.meter.collector.after_step(step)
                self._save()
                rate = self.parallel.optimizers[0].param_groups[0]["lr"]
                exposed_ns = EXPOSED.take(self.parallel.parts) if measurable else None
                after_step(self.meter.end(step, loss, self.gradient_norm, rate, exposed_ns))
        finally:
            self.meter.collector.stop()

    def step(self, step: int, batches: Iterator[Tensor]) -> Tensor | None:
        """One optimizer step; the mean loss of its micro-steps, or None if unknown."""
        context, accumulate = self.context, self.config.train.accumulate
        context.step = step
        for fault in self.faults:
            fault.on_step_begin(context)
        losses = []
        for micro in range(accumulate):
            context.micro_step = micro
            inputs, labels = self._batch(batches)
            losses.append(self.parallel.micro_step(inputs, labels, self, last=micro + 1 == accumulate))
        for finish in self.parallel.after_backward:
            finish()
        for fault in self.faults:
            fault.after_backward(context)
        self._optimize()
        for fault in self.faults:
            fault.on_step_end(context)
        known = [loss for loss in losses if loss is not None]
        return torch.stack(known).mean() if known else None

    def _batch(self, batches: Iterator[Tensor]) -> tuple[Tensor, Tensor]:
        with span("data", step=self.context.step), self.meter.timed("data"):
            batch = next(batches)
            for fault in self.faults:
                batch = fault.on_batch(self.context, batch)
            batch = batch.to(self.world.device, non_blocking=True)
        inputs, labels = batch[:, :-1], batch[:, 1:]
        if self.parallel.positions is None:
            return inputs, labels
        mine = self.parallel.positions.to(self.world.device)
        return inputs[:, mine], labels[:, mine]

    def _optimize(self) -> None:
        with span("optimizer", step=self.context.step):
            if self.config.optimizer.clip:
                stages = (axis for axis in self.degrees.sizes if axis.own_layers)
                parameters, largest = self.parallel.parameters(), self.config.optimizer.clip
                self.gradient_norm = clip_gradients(parameters, largest, self.mesh.view(*stages))
            for optimizer in self.parallel.optimizers:
                set_learning_rate(optimizer, self.config.optimizer, self.context.step)
                optimizer.step()
                optimizer.zero_grad()

    def _save(self) -> None:
        """Count the finished step, and save if due."""
        self.progress.step += 1
        self.progress.samples += self.samples_per_step
        every = self.config.checkpoint.every
        if self.checkpoints is None or not every:
            return
        if self.progress.step % every == 0 or self.progress.step == self.config.train.steps:
            self.progress.useful_ns = self.meter.job.useful_ns
            with self.meter.timed("checkpoint"):
                self.checkpoints.save(self.progress)

    def before_forward(self) -> None:
        """Called by the micro-step; see `parallel.local.Hooks`."""
        for fault in self.faults:
            fault.before_forward(self.context)

    def before_backward(self, loss: Tensor | None) -> None:
        """Called by the micro-step; see `parallel.local.Hooks`."""
        self.context.loss = loss
        for fault in self.faults:
            fault.before_backward(self.context)


def _workload(config: TrainConfig, world: World, samples: int) -> Workload:
    if config.measures.peak_tflops:
        peak: float | None = config.measures.peak_tflops * 1e12
    elif world.is_cuda:
        half = config.train.precision == "bf16" or config[FsdpConfig].mixed_precision != "none"
        peak = peak_flops(torch.cuda.get_device_name(world.device), "bf16" if half else "fp32")
    else:
        peak = None
    sequence = config.data.sequence
    return Workload(samples * sequence, flops_per_token(config.model, sequence), world.size, peak)

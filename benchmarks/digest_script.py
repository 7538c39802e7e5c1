"""One of five training scripts for two gloo ranks, which writes the wall and CPU time of each rank's steps.

torchrun --nproc-per-node 2 benchmarks/digest_script.py KIND SECONDS OUT [FOLDER]

With a FOLDER it digests two steps in four, the outer or the inner ones as drawn: neighbours share the state of the
machine, which differs from run to run by more than a digest costs. What can't be turned off within a process (the
watch's thread, that calls to gloo pass through a group of ours) is in both.

A digest costs the same however many rows a step computes, and the noise of a step grows with its length. So after
`WHOLE` steps as they are, which tell how long one takes, all further ones have an eighth of the rows.
"""

import json
import random
import sys
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader

import gpuscope
from gpuscope.instrumented_runtime.record import gloo_trace
from gpuscope.instrumented_runtime.record.collective_log import CollectiveLog
from gpuscope.instrumented_runtime.record.digest_digest import Digest
from gpuscope.instrumented_runtime.record.hang_watch import HangWatch
from gpuscope.instrumented_runtime.record.nsys_capture import ThreadMarks
from gpuscope.instrumented_runtime.record.session import GcRanges, Session

SKIPPED, WHOLE = 8, 20
FEWER = 8


class Block(nn.Module):
    """A feed-forward block."""

    def __init__(self, width):
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, inputs):
        return inputs + self.down(torch.nn.functional.gelu(self.up(self.norm(inputs))))


def build(kind):
    """The model as its parallelism changes it, and its optimizer."""
    mesh = dist.init_device_mesh("cpu", (2,))
    if kind == "convolutions, DDP":
        layers = [nn.Conv2d(3, 32, 3), nn.ReLU(), nn.Conv2d(32, 64, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(8)]
        model = nn.Sequential(*layers, nn.Flatten(), nn.Linear(4096, 512))
    else:
        model = nn.Sequential(*(Block(384) for _ in range(6)))
    if kind == "FSDP2":
        for block in model:
            fully_shard(block, mesh=mesh)
        fully_shard(model, mesh=mesh)
    elif kind == "tensor parallel":
        for block in model:
            parallelize_module(block, mesh, {"up": ColwiseParallel(), "down": RowwiseParallel()})
    else:
        model = DistributedDataParallel(model, bucket_cap_mb=4)
    if kind == "ZeRO-1":
        return model, ZeroRedundancyOptimizer(model.parameters(), torch.optim.AdamW, lr=1e-4)
    return model, torch.optim.AdamW(model.parameters(), lr=1e-4)


OWN = [0]
"""CPU time of gpuscope's own calls on the training thread, and on the hang watch's, since the step began."""


def count(holder, name):
    """Count a method's time on its thread."""
    inner = getattr(holder, name)

    def counted(*args):
        began = time.thread_time_ns()
        try:
            return inner(*args)
        finally:
            OWN[0] += time.thread_time_ns() - began

    setattr(holder, name, counted)


for holder, names in {
    CollectiveLog: ("issue",),
    gloo_trace: ("_with_logged_end",),
    ThreadMarks: ("_enter", "_leave", "_on_collection"),
    GcRanges: ("_on_collection",),
    HangWatch: ("_poll",),
    Session: ("step",),
}.items():
    for one in names:
        count(holder, one)


class Switched:
    """A session whose digest can be turned off and on."""

    def __init__(self, folder):
        self.session = gpuscope.session(folder, always=True).open()
        self.digest = next(one for one in self.session._captures if isinstance(one, Digest))
        self.on = True

    def turn(self, on):
        if on == self.on:
            return
        self.on, group = on, gloo_trace._group_class()
        for name, description in gloo_trace.METHODS.items():
            if hasattr(group, name):
                setattr(group, name, gloo_trace._logging(name, *description) if on else gloo_trace._forwarding(name))
        marks = self.digest._marks
        if on:
            marks.hook()
            marks.take()
        else:
            while marks._undo:
                marks._undo.pop()()


def main(kind, seconds, out, folder=None):
    """Train for so many seconds."""
    switched = Switched(folder) if folder else None
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model, optimizer = build(kind)
    shape = (3, 64, 64) if kind == "convolutions, DDP" else (384,)
    batch = 32 if len(shape) == 3 else 512
    # Five batches: of four, those with a digest would be the first and last of every epoch, with a new loader's memory.
    loader = DataLoader([torch.ones(shape) for _ in range(batch)] * 5, batch_size=batch, num_workers=0)
    times, drawn, outer = [], random.Random(0), True
    go_on = torch.ones(1)
    began = time.monotonic()
    while go_on.item():
        for inputs in loader:
            short = switched is not None and len(times) >= WHOLE
            if len(times) % 4 == 0:
                outer = drawn.random() < 0.5  # the same on both ranks
            with_digest = short and (len(times) % 4 in (0, 3)) == outer
            if switched is not None:
                switched.turn(with_digest)
            if short:
                inputs = inputs[: batch // FEWER]
            OWN[0], start, cpu = 0, time.perf_counter_ns(), time.process_time_ns()
            model(inputs).pow(2).mean().backward()
            optimizer.step()
            optimizer.zero_grad()
            if with_digest:
                switched.session.step()
            took = time.perf_counter_ns() - start, time.process_time_ns() - cpu
            times.append((*took, with_digest, OWN[0]))
        go_on.fill_(time.monotonic() - began < float(seconds))
        dist.broadcast(go_on, 0)
    ranks = [None, None] if dist.get_rank() == 0 else None
    dist.gather_object(times[SKIPPED:], ranks)
    if ranks:
        with open(out, "w") as file:
            json.dump(ranks, file)
    if switched is not None:
        switched.turn(True)
        switched.session.close()
    dist.destroy_process_group()


main(*sys.argv[1:])

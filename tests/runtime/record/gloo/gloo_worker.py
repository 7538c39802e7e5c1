"""One of two ranks that go through gloo in every way a trainer does; prints losses, and what was logged.

Started by torchrun, with LOGGED=1 through the logging group, else through gloo alone.
"""

from __future__ import annotations

import json
import os
import time
import warnings

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.pipelining import PipelineStage, Schedule1F1B
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

from gpuscope.instrumented_runtime.record import gloo_trace
from gpuscope.instrumented_runtime.record.collective_log import LOG
from gpuscope.instrumented_runtime.train.mesh import leave_world

warnings.simplefilter("ignore")
logged = os.environ["LOGGED"] == "1"
if logged:
    gloo_trace.install()
dist.init_process_group("gloo")
rank = dist.get_rank()
pair = dist.new_group([0, 1], group_desc="pair")


def model() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 8))


def trained(net: nn.Module) -> float:
    """The loss after two steps of SGD."""
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for _ in range(3):
        loss = net(torch.ones(4, 8)).pow(2).mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    return float(loss)


def pipelined() -> float | None:
    """The loss of two micro-batches through two stages; the last rank has it."""
    stage = PipelineStage(model()[0] if rank == 0 else model()[1:], rank, 2, torch.device("cpu"))
    schedule = Schedule1F1B(stage, n_microbatches=2, loss_fn=lambda out, target: (out - target).pow(2).mean())
    losses: list[torch.Tensor] = []
    if rank == 0:
        schedule.step(torch.ones(4, 8))
        return None
    schedule.step(target=torch.zeros(4, 8), losses=losses)
    return float(torch.stack(losses).mean())


def calls() -> None:
    """One of each call, on groups and sizes of which every number is known."""
    four = torch.ones(4)
    dist.all_reduce(four)
    dist.all_gather([torch.empty(4), torch.empty(4)], four)
    dist.reduce_scatter_tensor(torch.empty(2), four)
    dist.all_to_all_single(torch.empty(4), four, group=pair)
    dist.send(four, 1) if rank == 0 else dist.recv(four)  # a receive from anyone
    dist.broadcast(four.to(torch.int64), 0, async_op=True).wait()


def rows() -> list[list[object]]:
    time.sleep(0.2)  # a future's callback may come a moment after its wait
    assert not LOG.pending()
    return [
        [e.op, e.group.description, e.seq, e.p2p_seq, e.elements_in, e.elements_out, e.bytes, e.src, e.dst]
        for e in LOG.drain()
    ]


calls()
first = rows() if logged else []
net = model()
fully_shard(net[0])
fully_shard(net)
losses = {"ddp": trained(nn.parallel.DistributedDataParallel(model())), "fsdp": trained(net)}
mesh = init_device_mesh("cpu", (2,), mesh_dim_names=("tp",))
losses["tp"] = trained(parallelize_module(model(), mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()}))
losses["pp"] = pipelined()
answers = {
    "losses": losses,
    "backend": dist.get_backend(),
    "calls": first,
    "later": sorted({row[0] for row in rows()}) if logged else [],
}
with open(f"answers{rank}.json", "w") as file:
    json.dump(answers, file)
leave_world()

"""FSDP2's and FSDP1's options, on two ranks over gloo."""

from __future__ import annotations

from runtime.record.applied.conftest import Job, refusals, times, values

FSDP2 = """
import torch, torch.distributed as dist
from torch.distributed.fsdp import FSDPModule, fully_shard

dist.init_process_group("gloo")
torch.manual_seed(0)
layers = torch.nn.ModuleList([torch.nn.Linear(64, 64) for _ in range(4)])

class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.last_first = torch.nn.ModuleList(reversed(layers))
        self.head = torch.nn.Linear(64, 1)

    def forward(self, x):
        for layer in reversed(self.last_first):  # not in the order of registration
            x = layer(x).relu()
        return self.head(x)

model = Model()
reshard = eval(os.environ.get("RESHARD", "None"))
mesh = torch.distributed.init_device_mesh("cpu", (2,))
for layer in layers:
    fully_shard(layer, mesh=mesh, reshard_after_forward=reshard)
fully_shard(model, mesh=mesh)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
torch.manual_seed(dist.get_rank())
losses = []
for step in range(4):
    loss = model(torch.randn(8, 64)).pow(2).mean()
    loss.backward()
    losses.append(loss.item())
    optimizer.step()
    optimizer.zero_grad()

def ahead(states):
    names = {id(one._get_fsdp_state()): at for at, one in enumerate(layers)}
    return [names.get(id(one)) for one in states]

with torch.no_grad():
    model(torch.ones(8, 64))
kept = [layer._get_fsdp_state()._fsdp_param_group.is_unsharded for layer in layers]
tell(forward=[ahead(one._get_fsdp_state()._states_to_forward_prefetch) for one in layers],
     backward=[ahead(one._get_fsdp_state()._states_to_backward_prefetch) for one in layers],
     kept=kept, losses=losses,
     kind=[isinstance(model, FSDPModule), hasattr(fully_shard, "state"), type(model).__name__])
dist.destroy_process_group()
"""

FSDP1 = """
import torch, torch.distributed as dist
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP, ShardingStrategy
from torch.distributed.fsdp.wrap import ModuleWrapPolicy

dist.init_process_group("gloo")
torch.manual_seed(0)
model = torch.nn.Sequential(*[torch.nn.Linear(64, 64) for _ in range(3)])
model = FSDP(model, auto_wrap_policy=ModuleWrapPolicy({torch.nn.Linear}), device_id=torch.device("cpu"))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
losses = []
for step in range(3):
    loss = model(torch.ones(8, 64)).pow(2).mean()
    loss.backward()
    losses.append(loss.item())
    optimizer.step()
    optimizer.zero_grad()
units = FSDP.fsdp_modules(model)
tell(strategy=[one.sharding_strategy.name for one in units], behind=[str(one.backward_prefetch) for one in units],
     ahead=[one.forward_prefetch for one in units], limit=[one.limit_all_gathers for one in units], losses=losses)
dist.destroy_process_group()
"""


def test_parameters_kept_after_the_forward_pass(job: Job) -> None:
    before, changed = job(FSDP2, ranks=2), job(FSDP2, "fsdp.reshard_after_forward=false", ranks=2)
    own = job(FSDP2, ranks=2, RESHARD="False")
    assert before.told[0]["kept"] == [False] * 4
    assert changed.told == own.told
    assert changed.told[0]["kept"] == [True] * 4
    assert changed.told[0]["losses"] == before.told[0]["losses"]
    assert changed.told[0]["kind"] == before.told[0]["kind"] == [True, True, "FSDPModel"]
    assert times(changed, "fsdp.reshard_after_forward") == 5
    back = job(FSDP2, "fsdp.reshard_after_forward=true", ranks=2, RESHARD="False")
    assert back.told == before.told
    assert values(back, "fsdp.reshard_after_forward") == values(before, "fsdp.reshard_after_forward")


def test_no_fused_kernel_on_sharded_parameters_that_torch_can_not_run(job: Job) -> None:
    changed = job(FSDP2, "optimizer.fused=true", ranks=2)
    assert refusals(changed, "optimizer.fused")[0] == "torch has no fused SGD for sharded parameters"
    assert len(changed.told[0]["losses"]) == 4


def test_gathers_as_many_modules_ahead_in_the_order_of_the_forward_pass(job: Job) -> None:
    before = job(FSDP2, ranks=2)
    changed = job(FSDP2, "fsdp.forward_prefetch=2", "fsdp.backward_prefetch=2", "fsdp.limit_all_gathers=false", ranks=2)
    assert before.told[0]["forward"] == [[], [], [], []]
    assert changed.told[0]["forward"] == [[1, 2], [2, 3], [3], []]
    assert changed.told[0]["backward"] == [[], [0], [1, 0], [2, 1]]
    assert changed.told[0]["losses"] == before.told[0]["losses"]
    assert refusals(changed, "fsdp.limit_all_gathers")[0] == "FSDP2 has no such limit"
    assert values(changed, "fsdp.forward_prefetch") == ["2"]


def test_the_options_of_the_first_fsdp(job: Job) -> None:
    before = job(FSDP1, ranks=2)
    changed = job(
        FSDP1,
        "fsdp.reshard_after_forward=false",
        "fsdp.backward_prefetch=0",
        "fsdp.forward_prefetch=1",
        "fsdp.limit_all_gathers=false",
        ranks=2,
    )
    assert set(before.told[0]["strategy"]) == {"FULL_SHARD"}
    assert set(changed.told[0]["strategy"]) == {"SHARD_GRAD_OP"}
    assert set(changed.told[0]["behind"]) == {"None"}
    assert set(changed.told[0]["ahead"]) == {True}
    assert set(changed.told[0]["limit"]) == {False}
    assert changed.told[0]["losses"] == before.told[0]["losses"]
    assert values(changed, "fsdp.limit_all_gathers") == ["false"]
    assert values(before, "fsdp.backward_prefetch") == ["1"]

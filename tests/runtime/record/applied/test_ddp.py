"""DistributedDataParallel's options, on two ranks over gloo."""

from __future__ import annotations

import pytest
from runtime.record.applied.conftest import Job, refusals, times, values

SCRIPT = """
import pickle, sys
import torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP

dist.init_process_group("gloo")
torch.manual_seed(0)
layers = [torch.nn.Linear(512, 512) for _ in range(6)]
model = DDP(torch.nn.Sequential(*layers, torch.nn.BatchNorm1d(512)), **eval(os.environ.get("ARGUMENTS", "{}")))
if os.environ.get("HOOK"):
    from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook
    model.register_comm_hook(None, fp16_compress_hook)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
torch.manual_seed(dist.get_rank())
losses = []
for step in range(6):
    loss = model(torch.randn(8, 512)).pow(2).mean()
    loss.backward()
    losses.append(loss.item())
    optimizer.step()
    viewed = layers[0].weight.grad._is_view()
    optimizer.zero_grad()
log = model._get_ddp_logging_data()
tell(buckets=log.get("rebuilt_bucket_sizes", log["bucket_sizes"]),
     static=model.static_graph, unused=model.find_unused_parameters, losses=losses,
     buffers=model.forward_sync_buffers, viewed=viewed, hook=log.get("comm_hook", ""),
     mean=model.module[-1].running_mean.tolist()[:4], weight=layers[0].weight.flatten()[:64].tolist(),
     kind=type(model) is DDP and isinstance(model, torch.nn.Module))
dist.destroy_process_group()
"""
LAYER = 512 * 512 * 4 + 512 * 4


@pytest.mark.parametrize(
    ("change", "by_hand"),
    [
        ("ddp.bucket_cap_mb=3", "dict(bucket_cap_mb=3)"),
        ("ddp.bucket_cap_mb=1,3", "dict(bucket_cap_mb_list=[1, 3])"),
        ("ddp.gradient_as_bucket_view=true", "dict(gradient_as_bucket_view=True)"),
        ("ddp.find_unused_parameters=true", "dict(find_unused_parameters=True)"),
    ],
)
def test_a_preserving_option_does_as_in_the_script_and_the_losses_stay(job: Job, change: str, by_hand: str) -> None:
    before, changed, own = job(SCRIPT, ranks=2), job(SCRIPT, change, ranks=2), job(SCRIPT, ranks=2, ARGUMENTS=by_hand)
    assert changed.told == own.told
    seen = {key for key in own.told[0] if own.told[0][key] != before.told[0][key]}
    assert seen
    assert seen <= {"buckets", "viewed", "unused"}  # two ranks add in one order only: losses and weights bit by bit
    name = change.partition("=")[0]
    assert [times(changed, name, rank) for rank in (0, 1)] == [1, 1]
    assert values(changed, name) == values(own, name) == [change.partition("=")[2]]
    assert values(before, name) != values(own, name)


def test_buckets_hold_what_was_asked_for(job: Job) -> None:
    sizes = [int(size) for size in job(SCRIPT, "ddp.bucket_cap_mb=3", ranks=2).told[0]["buckets"].split(", ")]
    assert all(3 << 20 <= size < (3 << 20) + LAYER for size in sizes[:-1])  # full by the parameter that fills it
    assert sum(sizes) == 6 * LAYER + 2 * 512 * 4
    assert len(sizes) > 1


def test_the_default_takes_the_scripts_own_size_back(job: Job) -> None:
    arguments = "dict(bucket_cap_mb_list=[1, 2])"
    before, back = job(SCRIPT, ranks=2), job(SCRIPT, "ddp.bucket_cap_mb=default", ranks=2, ARGUMENTS=arguments)
    assert back.told == before.told
    assert values(back, "ddp.bucket_cap_mb") == ["default"]


def test_buffers_of_each_rank_stay_its_own(job: Job) -> None:
    options = ("--allow", "buffers")
    before = job(SCRIPT, ranks=2, ARGUMENTS="dict(broadcast_buffers=True)")
    changed = job(
        SCRIPT, "ddp.broadcast_buffers=false", ranks=2, options=options, ARGUMENTS="dict(broadcast_buffers=True)"
    )
    assert [told["buffers"] for told in before.told] == [True, True]
    assert [told["buffers"] for told in changed.told] == [False, False]
    assert changed.told[0]["mean"] != changed.told[1]["mean"]
    assert changed.told[0]["losses"] == before.told[0]["losses"]  # batch norm trains by its batch


def test_a_static_graph(job: Job) -> None:
    changed = job(SCRIPT, "ddp.static_graph=true", ranks=2, options=("--allow", "static_graph"))
    assert [told["static"] for told in changed.told] == [True, True]


@pytest.mark.parametrize(("value", "hook"), [("fp16", "fp16_compress_hook"), ("powersgd:2", "powerSGD_hook")])
def test_a_hook_is_registered_before_the_first_forward_pass(job: Job, value: str, hook: str) -> None:
    before = job(SCRIPT, ranks=2)
    changed = job(SCRIPT, f"ddp.comm_hook={value}", ranks=2, options=("--allow", "compression"))
    assert [told["hook"] for told in changed.told] == [hook, hook]
    assert (changed.told[0]["weight"] == before.told[0]["weight"]) == (value != "fp16")  # PowerSGD starts later
    assert values(changed, "ddp.comm_hook") == [value.partition(":")[0]]
    assert values(before, "ddp.comm_hook") == ["none"]


def test_a_hook_of_the_scripts_own_stays(job: Job) -> None:
    changed = job(SCRIPT, "ddp.comm_hook=powersgd", ranks=2, options=("--allow", "compression"), HOOK="1")
    assert changed.told[0]["hook"] == "fp16_compress_hook"
    assert refusals(changed, "ddp.comm_hook") == ["the script registers fp16"]
    assert "ddp.comm_hook=powersgd was not applied: at train.py:" in changed.err

"""Implementations of torch.optim."""

from __future__ import annotations

import pytest
from runtime.record.applied.conftest import Job, refusals, times, values

SCRIPT = """
import copy, pickle
import torch

torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Linear(8, 1))
groups = [{"params": model[0].parameters()}, {"params": model[1].parameters(), "lr": 0.01}]
made = [
    torch.optim.AdamW(groups, lr=0.1, **eval(os.environ.get("ARGUMENTS", "{}"))),
    torch.optim.SGD(torch.nn.Linear(2, 2).parameters(), lr=0.1, foreach=True),
    torch.optim.RMSprop(model.named_parameters()),
    torch.optim.Adam([torch.zeros(2, dtype=torch.complex64, requires_grad=True)]),
]
class Own(torch.optim.Optimizer):
    def __init__(self, params):
        super().__init__(params, {})
made.append(Own(model.parameters()))
losses = []
for step in range(25):
    loss = model(torch.ones(4, 8)).pow(2).mean()
    loss.backward()
    losses.append(loss.item())
    made[0].step()
    made[0].zero_grad()
again = pickle.loads(pickle.dumps(made[0]))
tell(fused=[one.defaults.get("fused") for one in made], foreach=[one.defaults.get("foreach") for one in made],
     counts=[sum(len(group["params"]) for group in one.param_groups) for one in made], losses=losses,
     rates=[group["lr"] for group in made[0].param_groups], kinds=[type(one).__name__ for one in made],
     scaling=getattr(made[0], "_step_supports_amp_scaling", False), again=again.defaults["fused"])
"""
KINDS = ["AdamW", "SGD", "RMSprop", "Adam", "Own"]


def test_the_fused_implementation_where_there_is_one(job: Job) -> None:
    before, changed, own = job(SCRIPT), job(SCRIPT, "optimizer.fused=true"), job(SCRIPT, ARGUMENTS="dict(fused=True)")
    told = changed.told[0]
    assert told["fused"] == [True, True, None, None, None]
    assert told["foreach"] == [None, None, None, None, None]  # the two exclude each other
    assert told["losses"] == own.told[0]["losses"]
    assert told["losses"] == pytest.approx(before.told[0]["losses"], rel=1e-4, abs=1e-8)
    assert (told["counts"], told["rates"], told["kinds"]) == ([4, 2, 4, 1, 4], [0.1, 0.01], KINDS)
    assert (told["scaling"], told["again"]) == (True, True)
    assert times(changed, "optimizer.fused") == 2
    assert refusals(changed, "optimizer.fused") == [
        "this optimizer has no fused",
        "parameters that are not floating point",
        "this optimizer has no fused",
    ]
    assert values(changed, "optimizer.fused") == ["true", "true", "none"]
    assert values(changed, "optimizer.class") == KINDS


def test_one_kernel_per_operation(job: Job) -> None:
    before, changed = job(SCRIPT), job(SCRIPT, "optimizer.foreach=false")
    assert changed.told[0]["foreach"] == [False, False, False, False, None]
    assert changed.told[0]["losses"] == before.told[0]["losses"]


def test_the_recorders_losses_are_those_that_the_script_sees(job: Job) -> None:
    done = job(SCRIPT)
    assert done.facts[0]["losses"] == done.told[0]["losses"][:20]
    assert len(done.facts[0]["step_ns"]) == 24
    assert all(ns > 0 for ns in done.facts[0]["step_ns"])

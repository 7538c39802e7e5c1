"""The model compiled in place."""

from __future__ import annotations

import shutil
import sys

import pytest
from runtime.record.applied.conftest import Job, refusals, times, values

SCRIPT = """
import pickle
import torch

class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = torch.nn.Linear(16, 16), torch.nn.Linear(16, 1)

    def forward(self, x):
        seen.append(torch.compiler.is_compiling())
        return self.second(self.first(x).relu())

torch.manual_seed(0)
seen, losses, model = [], [], Model()
teacher = torch.nn.Linear(16, 1).eval()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(6):
    with torch.no_grad():
        target = teacher(torch.ones(4, 16))
    loss = torch.nn.MSELoss()(model(torch.ones(4, 16)), target)
    loss.backward()
    losses.append(loss.item())
    optimizer.step()
    optimizer.zero_grad()
hooks = torch.nn.modules.module._global_forward_hooks
tell(compiled=[one._compiled_call_impl is not None for one in (model, model.first, teacher)], losses=losses,
     names=list(model.state_dict()), kind=type(model).__name__, hooks=len(hooks))
"""


@pytest.mark.skipif(shutil.which("g++") is None, reason="Inductor needs a C++ compiler: install g++")
def test_the_model_that_trains_is_compiled_in_place(job: Job) -> None:
    before = job(SCRIPT)
    changed = job(SCRIPT, "torch.compile=default", options=("--allow", "compile"), interpreter=sys.executable)
    told = changed.told[0]
    assert (before.told[0]["compiled"], told["compiled"]) == ([False] * 3, [True, False, False])
    assert told["losses"] == pytest.approx(before.told[0]["losses"], rel=1e-5)
    assert (told["names"], told["kind"], told["hooks"]) == (before.told[0]["names"], "Model", 0)
    assert times(changed, "torch.compile") == 1
    assert int(values(changed, "torch.compiled_graphs")[0]) > 0
    assert values(before, "torch.compiled_graphs") == ["0"]


def test_a_model_that_is_compiled_already_stays(job: Job) -> None:
    script = SCRIPT.replace("optimizer = ", "model.compile(backend='eager')\noptimizer = ", 1)
    changed = job(script, "torch.compile=default", options=("--allow", "compile"))
    assert refusals(changed, "torch.compile") == ["Model is compiled already"]


def test_graphs_are_captured_on_gpus_alone(job: Job) -> None:
    changed = job(SCRIPT, "cuda_graphs=true", options=("--allow", "compile"))
    assert changed.told[0]["compiled"] == [False] * 3
    assert refusals(changed, "cuda_graphs") == ["Model is not on a GPU"]

"""What counts as a step of an unmodified script."""

from __future__ import annotations

import sys
import types
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch.distributed.checkpoint import state_dict

from gpuscope.instrumented_runtime.record import nsys_capture

Loop = Callable[[int], None]


@pytest.fixture
def counted() -> Iterator[list[int]]:
    steps: list[int] = []
    remove = nsys_capture.on_optimizer_step(lambda: steps.append(len(steps)))
    yield steps
    remove()


def weight() -> torch.Tensor:
    return torch.ones(2, requires_grad=True)


def backward(*weights: torch.Tensor) -> None:
    sum((w.sum() for w in weights), torch.zeros(())).backward()


def plain(steps: int) -> None:
    w = weight()
    optimizer = torch.optim.SGD([w], lr=0.1)
    for _ in range(steps):
        backward(w)
        optimizer.step()


def accumulation(steps: int) -> None:
    w = weight()
    optimizer = torch.optim.SGD([w], lr=0.1)
    for _ in range(steps):
        for _ in range(3):
            backward(w)
        optimizer.step()


def state_of_a_checkpoint(steps: int) -> None:
    w = weight()
    optimizer = torch.optim.Adam([w])
    state_dict._init_optim_state(optimizer)
    for _ in range(steps):
        backward(w)
        optimizer.step()
        optimizer.zero_grad()


def one_step_per_parameter_group(steps: int) -> None:
    a, b = weight(), weight()
    optimizer = torch.optim.SGD([{"params": [a]}, {"params": [b]}], lr=0.1)
    for _ in range(steps):
        backward(a, b)
        for group in (list(optimizer.param_groups),) * 2:  # as ZeRO does
            optimizer.param_groups = group
            optimizer.step()


def gan(steps: int) -> None:
    d, g = weight(), weight()
    optimizers = torch.optim.Adam([d]), torch.optim.Adam([g])
    for _ in range(steps):
        backward(d)
        backward(d)
        optimizers[0].step()
        backward(d, g)
        optimizers[1].step()


def one_optimizer_per_stage(steps: int) -> None:
    weights = [weight() for _ in range(4)]
    optimizers = [torch.optim.SGD([w], lr=0.1) for w in weights]
    for _ in range(steps):
        backward(*weights)
        for optimizer in optimizers:
            optimizer.step()


def gradients_by_hand(steps: int) -> None:
    w = weight()
    optimizer = torch.optim.SGD([w], lr=0.1)
    for _ in range(steps):
        w.grad = torch.ones(2)
        optimizer.step()


def skipped_by_the_scaler(steps: int) -> None:
    w = weight()
    optimizer = torch.optim.SGD([w], lr=0.1)
    scaler = torch.amp.GradScaler("cpu")
    for step in range(steps):
        scaler.scale(w.sum()).backward()
        if step % 3 == 0:
            assert w.grad is not None
            w.grad.fill_(float("inf"))
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()


@pytest.mark.parametrize(
    "loop",
    [
        plain,
        accumulation,
        state_of_a_checkpoint,
        one_step_per_parameter_group,
        gan,
        one_optimizer_per_stage,
        gradients_by_hand,
        skipped_by_the_scaler,
    ],
)
def test_steps_are_those_of_the_loop(counted: list[int], loop: Loop) -> None:
    loop(9)
    assert len(counted) == 9


def test_another_optimizer_takes_over_when_the_leader_is_idle(counted: list[int]) -> None:
    w = weight()
    warm_up, then = torch.optim.SGD([w], lr=0.1), torch.optim.SGD([w], lr=0.1)
    for _ in range(5):
        backward(w)
        warm_up.step()
    for _ in range(nsys_capture.IDLE_STEPS + 10):
        backward(w)
        then.step()
    assert len(counted) == 5 + 10


def test_deepspeeds_engine_counts_its_own_steps(counted: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    """As in deepspeed 0.19: `_take_model_step` runs once per global step, also where an overflow skips the update."""
    w = weight()
    optimizer = torch.optim.SGD([w], lr=0.1)

    class DeepSpeedEngine:
        def _take_model_step(self, lr_kwargs: Any, overflow: bool = False) -> None:
            del lr_kwargs
            if not overflow:
                optimizer.step()
                optimizer.step()

    module: Any = types.ModuleType(nsys_capture.DEEPSPEED)
    module.DeepSpeedEngine = DeepSpeedEngine
    monkeypatch.setitem(sys.modules, nsys_capture.DEEPSPEED, module)
    engine = DeepSpeedEngine()
    for step in range(14):
        backward(w)
        engine._take_model_step(None, overflow=step % 5 == 0)
    assert len(counted) == 14

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
    for _ in range(10):
        backward(w)
        then.step()
    assert len(counted) == 5 + 9


def inner_steps(several: int, iterations: int, *, generator_first: bool = False) -> None:
    """`several` steps of one optimizer and one of another in each iteration, as of a WGAN's critic."""
    d, g = weight(), weight()
    critic, generator = torch.optim.Adam([d]), torch.optim.Adam([g])

    def generate() -> None:
        backward(d, g)
        generator.step()

    for _ in range(iterations):
        if generator_first:
            generate()
        for _ in range(several):
            backward(d)
            critic.step()
        if not generator_first:
            generate()


@pytest.mark.parametrize("several", [2, 3, 5, 20])
def test_an_iteration_with_several_inner_steps_is_one(counted: list[int], several: int) -> None:
    """But for the first, of which nobody can know it."""
    inner_steps(several, 40)
    assert len(counted) == several + 39


def test_the_one_that_steps_once_leads_from_the_start_where_it_comes_first(counted: list[int]) -> None:
    inner_steps(3, 40, generator_first=True)
    assert len(counted) == 40


def test_who_stepped_once_does_not_lead_for_good(counted: list[int]) -> None:
    """An optimizer that steps a single time, after four steps of the other: it costs some steps, not all."""
    w, seldom = weight(), weight()
    often, once = torch.optim.SGD([w], lr=0.1), torch.optim.SGD([seldom], lr=0.1)
    for step in range(200):
        backward(w)
        often.step()
        if step == 3:
            backward(seldom)
            once.step()
    assert 200 - 2 * nsys_capture.IDLE_STEPS < len(counted) <= 200


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

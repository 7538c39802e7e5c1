"""Steps of an unmodified script: what is between two updates of the weights that a backward pass separates.

- `optimizer.step()` ends a step. Several calls without a backward pass between them are one (ZeRO steps once per
  group of parameters).
- With several optimizers (a GAN's two, an agent's three, one per stage or parameter) the first one seen leads; another
  takes over if the leader is gone, or has been idle for long.
- An update that a `GradScaler` skips ends a step as well.
- An update that only makes the optimizer's state, as a distributed checkpoint is loaded, ends none.
- Under DeepSpeed its engine's count of global steps is what counts.
"""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable
from types import FrameType
from typing import Any

IDLE_STEPS = 32
"""After so many steps of another optimizer the leader has finished its part of the script."""
DEEPSPEED = "deepspeed.runtime.engine"
MAKES_STATE = "_init_optim_state"
"""torch.distributed.checkpoint: steps with zero gradients, so that there is a state to load into."""


class _Steps:
    """Decides which calls end a step."""

    def __init__(self, stepped: Callable[[], None]) -> None:
        self._stepped = stepped
        self._leader: weakref.ref[Any] | None = None
        self._fresh = True  # a backward pass has run since the last step ended
        self._others = 0
        self.backward_seen = self.by_engine = self.watches_engine = False

    def backward(self) -> None:
        """A backward pass begins."""
        self.backward_seen = self._fresh = True
        if not self.watches_engine and DEEPSPEED in sys.modules:
            _watch_deepspeed(self)

    def optimizer(self, optimizer: Any) -> None:
        """An optimizer has stepped, or its step was skipped."""
        if self.by_engine:
            return
        leader = self._leader() if self._leader is not None else None
        if leader is None or self._others >= IDLE_STEPS:
            self._leader, leader = weakref.ref(optimizer), optimizer
        if leader is not optimizer:
            self._others += 1
            return
        if self._fresh or not self.backward_seen:
            self.end()

    def end(self) -> None:
        """A step has ended."""
        self._fresh, self._others = False, 0
        self._stepped()


def on_optimizer_step(stepped: Callable[[], None]) -> Callable[[], None]:
    """Call `stepped` at the end of each training step of this process; returns a function that undoes this."""
    from torch.optim.optimizer import register_optimizer_step_post_hook

    steps = _Steps(stepped)
    last: list[Any] = []

    def after(optimizer: Any, args: object, kwargs: object) -> None:
        del args, kwargs
        last[:] = [weakref.ref(optimizer)]
        if not steps.backward_seen and _makes_state():
            return
        steps.optimizer(optimizer)

    handle = register_optimizer_step_post_hook(after)
    undo = [handle.remove, _watch_backward(steps), _watch_scaler(steps, last)]

    def remove() -> None:
        for each in undo:
            each()
        steps.end = lambda: None  # type: ignore[method-assign]

    return remove


def _makes_state() -> bool:
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code.co_name != MAKES_STATE:
        frame = frame.f_back
    return frame is not None


def _watch_backward(steps: _Steps) -> Callable[[], None]:
    """torch.autograd calls its engine through one Python function, which both of these modules hold."""
    import torch.autograd
    import torch.autograd.graph

    name = "_engine_run_backward"
    run = getattr(torch.autograd.graph, name, None)
    holders = [module for module in (torch.autograd, torch.autograd.graph) if hasattr(module, name)]
    if run is None:  # an older torch: every step of the leader counts
        return lambda: None

    def run_backward(*args: Any, **kwargs: Any) -> Any:
        steps.backward()
        return run(*args, **kwargs)

    def put_back() -> None:
        for holder in holders:
            if getattr(holder, name) is run_backward:
                setattr(holder, name, run)

    for holder in holders:
        setattr(holder, name, run_backward)
    return put_back


def _watch_scaler(steps: _Steps, last: list[Any]) -> Callable[[], None]:
    """`GradScaler.step` does not call the optimizer where gradients overflowed."""
    try:
        from torch.amp.grad_scaler import GradScaler
    except ImportError:
        return lambda: None
    step = GradScaler.step

    def scaled_step(self: Any, optimizer: Any, *args: Any, **kwargs: Any) -> Any:
        last.clear()
        result = step(self, optimizer, *args, **kwargs)
        if not last:
            steps.optimizer(getattr(optimizer, "optimizer", optimizer))
        return result

    GradScaler.step = scaled_step  # type: ignore[method-assign]

    def put_back() -> None:
        if GradScaler.step is scaled_step:
            GradScaler.step = step  # type: ignore[method-assign]

    return put_back


def _watch_deepspeed(steps: _Steps) -> None:
    """Once its engine is there: it ends a step once for all its groups, and where it skips the update."""
    engine = getattr(sys.modules.get(DEEPSPEED), "DeepSpeedEngine", None)
    take = getattr(engine, "_take_model_step", None)
    if engine is None or take is None:
        return
    steps.watches_engine = True

    def take_model_step(self: Any, *args: Any, **kwargs: Any) -> Any:
        steps.by_engine = True
        result = take(self, *args, **kwargs)
        steps.end()
        return result

    engine._take_model_step = take_model_step

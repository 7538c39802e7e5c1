"""Steps of an unmodified script: each `optimizer.step()` ends one."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any


def on_optimizer_step(stepped: Callable[[], None]) -> Callable[[], None]:
    """Call `stepped` after each step of the script's leading optimizer; returns a function that undoes this.

    A script may have several optimizers per iteration (a GAN's two, one per parameter): the first one
    seen leads, and the next one takes over when the leader is garbage-collected.
    """
    from torch.optim.optimizer import register_optimizer_step_post_hook

    leader: weakref.ref[Any] | None = None

    def after(optimizer: Any, args: object, kwargs: object) -> None:
        nonlocal leader
        del args, kwargs
        if leader is None or leader() is None:
            leader = weakref.ref(optimizer)
        if leader() is optimizer:
            stepped()

    handle = register_optimizer_step_post_hook(after)
    remove: Callable[[], None] = handle.remove
    return remove

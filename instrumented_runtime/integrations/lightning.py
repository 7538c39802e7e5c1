"""Recording a Lightning `Trainer`:

>>> from gpuscope.instrumented_runtime.integrations.lightning import GpuscopeCallback
>>> Trainer(..., callbacks=[GpuscopeCallback("runs/first")]).fit(model, loader)
"""

from __future__ import annotations

import os
from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer

from gpuscope.instrumented_runtime.record import gloo_trace
from gpuscope.instrumented_runtime.record.ranges import Span, span
from gpuscope.instrumented_runtime.record.session import Session, close_at_the_end, gpuscope_session, status_of


class GpuscopeCallback(Callback):
    """Records `fit()` into `folder`; a step is one of the optimizer's, whatever is accumulated.

    `options` are those of `gpuscope.session`. The range is `backward`.
    """

    def __init__(self, folder: str | os.PathLike[str], **options: Any) -> None:
        gloo_trace.install()  # before the trainer makes its process group
        self._session: Session = gpuscope_session(folder, **options)
        self._backward: Span | None = None
        self._global_step = 0

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Open the session: the rank is known now."""
        del pl_module
        self._session = self._session.open()
        close_at_the_end(self._session)
        self._global_step = trainer.global_step
        self._session.folder.note(
            framework="lightning",
            parallelism={"mode": type(trainer.strategy).__name__},
            config={"accumulate": trainer.accumulate_grad_batches, "precision": str(trainer.precision)},
        )

    def on_before_backward(self, trainer: Trainer, pl_module: LightningModule, loss: Any) -> None:
        """Open the range of the backward pass."""
        del pl_module, loss
        self._backward = span("backward", step=trainer.global_step).__enter__()

    def on_after_backward(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Close it."""
        del trainer, pl_module
        if self._backward is not None:
            self._backward.__exit__(None, None, None)
            self._backward = None

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """A step has ended, if the optimizer has stepped."""
        del pl_module, outputs, batch, batch_idx
        if trainer.global_step != self._global_step:
            self._global_step = trainer.global_step
            self._session.step()

    def on_fit_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Close the session."""
        del trainer, pl_module
        self._session.close()

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        """Close the session and keep what went wrong."""
        del trainer, pl_module
        self._session.close(*status_of(exception))

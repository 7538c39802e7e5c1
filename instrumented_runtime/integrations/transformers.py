"""Recording a Hugging Face `Trainer`:

>>> from gpuscope.instrumented_runtime.integrations.transformers import GpuscopeCallback
>>> recording = GpuscopeCallback("runs/first")       # before TrainingArguments, to see gloo's groups made
>>> Trainer(..., callbacks=[recording]).train()
"""

from __future__ import annotations

import os
from typing import Any

from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from gpuscope.instrumented_runtime.record import gloo_trace
from gpuscope.instrumented_runtime.record.ranges import Span, span
from gpuscope.instrumented_runtime.record.session import Session, close_at_the_end, gpuscope_session


class GpuscopeCallback(TrainerCallback):
    """Records `train()` into `folder`; a step is one of the optimizer's, whatever is accumulated.

    `options` are those of `gpuscope.session`. The ranges are `step` and `optimizer`.
    """

    def __init__(self, folder: str | os.PathLike[str], **options: Any) -> None:
        gloo_trace.install()
        self._session: Session = gpuscope_session(folder, **options)
        self._open: dict[str, Span] = {}

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Open the session: the rank is known now."""
        del control, kwargs
        self._session = self._session.open()
        close_at_the_end(self._session)
        self._session.folder.note(
            framework="transformers",
            parallelism={"mode": args.parallel_mode.value},
            config={
                "max_steps": state.max_steps,
                "micro_batch_size": args.per_device_train_batch_size,
                "accumulate": args.gradient_accumulation_steps,
                "bf16": args.bf16,
                "fp16": args.fp16,
            },
        )

    def on_step_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Open the range of a step."""
        del args, control, kwargs
        self._begin("step", state.global_step)

    def on_pre_optimizer_step(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Open the optimizer's range."""
        del args, control, kwargs
        self._begin("optimizer", state.global_step)

    def on_optimizer_step(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Close the optimizer's range."""
        del args, state, control, kwargs
        self._end("optimizer")

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """A step has ended."""
        del args, state, control, kwargs
        self._end("step")
        self._session.step()

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Close the session; an exception that skips this is recorded when the script ends."""
        del args, state, control, kwargs
        self._session.close()

    def _begin(self, name: str, step: int) -> None:
        self._open[name] = span(name, step=step).__enter__()

    def _end(self, name: str) -> None:
        opened = self._open.pop(name, None)
        if opened is not None:
            opened.__exit__(None, None, None)

"""Recording a script that uses Accelerate:

>>> from gpuscope.instrumented_runtime.integrations.accelerate import recording
>>> accelerator = Accelerator()
>>> with recording(accelerator, "runs/first"):
...     for batch in loader:
...         accelerator.backward(model(batch).loss)
...         optimizer.step()
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from accelerate import Accelerator

from gpuscope.instrumented_runtime.record.ranges import span
from gpuscope.instrumented_runtime.record.session import Session, close_at_the_end, gpuscope_session


@contextmanager
def recording(accelerator: Accelerator, folder: str | os.PathLike[str], **options: Any) -> Iterator[Session]:
    """Record the block into `folder`; a step is one that the optimizer really takes, whatever is accumulated.

    `options` are those of `gpuscope.session`. While inside, `accelerator.backward` is the range `backward`.
    The process group exists already; for gloo's collectives call `gloo_trace.install()` before `Accelerator()`.
    """
    backward = accelerator.backward
    with gpuscope_session(folder, auto_step=True, **options) as session:
        close_at_the_end(session)
        session.folder.note(
            framework="accelerate",
            parallelism={"mode": accelerator.distributed_type.value},
            config={
                "accumulate": accelerator.gradient_accumulation_steps,
                "precision": accelerator.mixed_precision,
            },
        )
        accelerator.backward = span("backward")(backward)
        try:
            yield session
        finally:
            accelerator.backward = backward

"""The data loader: the thread that launches waits for its next batch."""

from __future__ import annotations

from gpuscope.analyzers.device_time.host_cause import HostCause
from gpuscope.trace.naming import kinds
from gpuscope.trace.schema import Category

HOST_CAUSE = HostCause(
    code="input",
    order=10,
    shown_by=(((Category.OP, Category.ANNOTATION, Category.PYTHON), kinds.is_loader),),
    about="The device is idle while the thread that launches next waits for the data loader.",
    recognised_by=(
        "that thread is inside `enumerate(DataLoader)#…`, a frame of `torch/utils/data/dataloader.py` or of its "
        "fetcher, or a range named like `data`, `dataloader`, `data loading`, `next batch`, `fetch batch`, "
        "`load_batch`."
    ),
    helps=(
        "more `num_workers`; `persistent_workers`; `pin_memory` with `non_blocking` copies; decode or tokenise "
        "ahead of training; read from local disk. See whether all ranks wait (storage, CPU cores) or one (its "
        "node)."
    ),
    misled_by=(
        "a loader that wraps none of these names (write a range `data` around it); a loader that blocks on a lock "
        "held elsewhere; a range named `data` around something else."
    ),
)

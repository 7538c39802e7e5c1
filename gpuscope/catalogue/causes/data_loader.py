"""The data loader: the thread that launches waits for its next batch."""

from __future__ import annotations

from gpuscope.catalogue.cause import Cause, Look
from gpuscope.trace.naming import kinds
from gpuscope.trace.schema import Category
from gpuscope.words import palette

CAUSE = Cause(
    code="input",
    place=10,
    class_name="cpu",
    label="data loader",
    meaning="the device is idle while the thread that launches next waits for the data loader",
    message="The device waits for the data loader",
    on_cpu="The training thread waits for the data loader",
    look=Look(palette.VERMILLION),
    idle=True,
    precedence=10,
    shown_by=(((Category.OP, Category.ANNOTATION, Category.PYTHON), kinds.is_loader),),
    about="The device is idle while the thread that launches next waits for the data loader.",
    recognised=(
        "that thread is inside `enumerate(DataLoader)#…`, a frame of `torch/utils/data/dataloader.py` or of "
        "its fetcher, or a range named like `data`, `dataloader`, `data loading`, `next batch`, `fetch "
        "batch`, `load_batch`."
    ),
    helps=(
        "more `num_workers`; `persistent_workers`; `pin_memory` with `non_blocking` copies; decode or "
        "tokenise ahead of training; read from local disk. See whether all ranks wait (storage, CPU cores) or "
        "one (its node)."
    ),
    misleads=(
        "a loader that wraps none of these names (write a range `data` around it); a loader that blocks on a "
        "lock held elsewhere; a range named `data` around something else."
    ),
)

"""Python's garbage collector, where its runs are recorded as ranges or frames."""

from __future__ import annotations

from gpuscope.catalogue.cause import Cause, Look
from gpuscope.trace.naming import kinds
from gpuscope.trace.schema import Category
from gpuscope.words import palette

CAUSE = Cause(
    code="gc",
    place=40,
    class_name="cpu",
    label="Python garbage collection",
    meaning="Python's garbage collection",
    message="Python's garbage collection leaves the device idle",
    on_cpu="Python's garbage collection holds the training thread",
    look=Look(palette.GREEN),
    idle=True,
    precedence=20,
    shown_by=(((Category.OP, Category.ANNOTATION, Category.PYTHON), kinds.is_garbage_collection),),
    about="Python's garbage collector runs on the launching thread while the device is idle.",
    recognised=(
        "a range or frame of the collector (`gc.collect`, `GC …`). Kineto records it with stacks "
        "(`with_stack=True`); `gpuscope record` and `gpuscope train` record ranges for it."
    ),
    helps=(
        "`gc.freeze()` after setting up; `gc.disable()` and a `gc.collect()` at the same step on all ranks; "
        "fewer cycles."
    ),
    misleads="a trace without those ranges; then it looks like `launch`.",
)

"""Python's garbage collector, where its runs are recorded as ranges or frames."""

from __future__ import annotations

from gpuscope.analyzers.device_time.host_cause import HostCause
from gpuscope.trace.naming import kinds
from gpuscope.trace.schema import Category

HOST_CAUSE = HostCause(
    code="gc",
    order=20,
    shown_by=(((Category.OP, Category.ANNOTATION, Category.PYTHON), kinds.is_garbage_collection),),
    about="Python's garbage collector runs on the launching thread while the device is idle.",
    recognised_by=(
        "a range or frame of the collector (`gc.collect`, `GC …`). Kineto records it with stacks "
        "(`with_stack=True`); `gpuscope record` and `gpuscope train` record ranges for it."
    ),
    helps=(
        "`gc.freeze()` after setting up; `gc.disable()` and a `gc.collect()` at the same step on all ranks; fewer "
        "cycles."
    ),
    misled_by="a trace without those ranges; then it looks like `launch`.",
)

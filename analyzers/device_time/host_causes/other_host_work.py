"""Other work of the launching thread: checkpoints, logging, locks, files, the network."""

from __future__ import annotations

from gpuscope.analyzers.device_time.host_cause import HostCause
from gpuscope.trace.naming import kinds
from gpuscope.trace.schema import Category


def _outside(name: str) -> bool:
    return kinds.is_file_or_network_call(name) or kinds.is_lock_or_sleep_call(name)


HOST_CAUSE = HostCause(
    code="host_other",
    order=40,
    shown_by=(
        ((Category.ANNOTATION, Category.PYTHON), kinds.is_host_other),
        ((Category.OS,), _outside),
    ),
    about=(
        "The launching thread does something else (a checkpoint, logging, a lock, a file or network call) while "
        "the device is idle."
    ),
    recognised_by=(
        "ranges or frames of checkpoints (`save_checkpoint`, `dcp.save`, `torch.save`), logging, TensorBoard, "
        "wandb and `print`; calls into the operating system on files and sockets, locks and sleeps (nsys with `-t "
        "osrt`), except inside a CUDA call, whose own waiting they are."
    ),
    helps="asynchronous checkpoints, less frequent logging, a thread for what needs no answer.",
    misled_by=(
        "operating-system calls that nsys leaves out because they are shorter than its threshold; logging through "
        "a function it does not know by name (then `launch`)."
    ),
)

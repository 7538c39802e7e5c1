"""Other work of the launching thread: checkpoints, logging, locks, files, the network."""

from __future__ import annotations

from gpuscope.catalogue.cause import Cause, Look
from gpuscope.trace.naming import kinds
from gpuscope.trace.schema import Category
from gpuscope.words import palette


def _outside(name: str) -> bool:
    return kinds.is_file_or_network_call(name) or kinds.is_lock_or_sleep_call(name)


CAUSE = Cause(
    code="host_other",
    place=50,
    class_name="cpu",
    label="other host work",
    meaning=(
        "anything else on the launching thread: checkpoint, logging, lock, file or network call, compilation, "
        "or one host operation that computes for long without launching"
    ),
    message="Other host work leaves the device idle",
    on_cpu="Host code other than operators holds the training thread",
    look=Look(palette.GREEN, "/"),
    idle=True,
    precedence=40,
    shown_by=(
        ((Category.ANNOTATION, Category.PYTHON), kinds.is_host_other),
        ((Category.OS,), _outside),
    ),
    about=(
        "The launching thread does something else while the device is idle: a checkpoint, logging, a lock, a "
        "file or network call, compilation, or one host operation that computes for long without launching."
    ),
    recognised=(
        "by name, ranges or frames of checkpoints (`save_checkpoint`, `dcp.save`, `torch.save`), logging, "
        "TensorBoard, wandb and `print`, and calls into the operating system on files and sockets, locks and "
        "sleeps (nsys with `-t osrt`), except inside a CUDA call, whose own waiting they are. By length, a "
        "stretch of the thread's own code of at least 1 ms and 20 usual launch intervals, or a launch call of "
        "1 ms and more whose queue was not full. The evidence names the innermost range that covers most of "
        "it. On a CPU, whatever no other cause covers."
    ),
    helps=(
        "look at what the evidence names. Asynchronous checkpoints, less frequent logging, a thread for what "
        "needs no answer; for compilation and loading a warm-up before the steps that count, and a persistent "
        "cache; for a long host operation, the same work on the device or off the launching thread."
    ),
    misleads=(
        "operating-system calls that nsys leaves out because they are shorter than its threshold; short "
        "logging through a function it does not know by name (then `launch`). A program that launches only a "
        "few times a step: its usual launch interval is long itself, so its host work between launches stays "
        "`launch`."
    ),
)

"""Python's garbage collector: not in the middle of steps."""

from __future__ import annotations

import gc
import os
from pathlib import Path

from gpuscope.instrumented_runtime.record.applied.ledger import (
    Family,
    Knob,
    Ledger,
    at_least,
    one_of,
    program,
    with_option,
)

# Threads of a rank, and the CPUs they run on.

THREADS, BIND = "cpu.threads", "cpu.numa_bind"


def _cpu_install(ledger: Ledger) -> None:
    import torch

    if (number := ledger.wanted(THREADS).get(THREADS)) is not None:
        torch.set_num_threads(number)
        ledger.applied(THREADS)
    ledger.at_end.append(lambda: ledger.seen(THREADS, torch.get_num_threads()))
    if hasattr(os, "sched_getaffinity"):
        ledger.at_end.append(lambda: ledger.seen("cpu.affinity", len(os.sched_getaffinity(0))))


def _rewrite(words: list[str], name: str, value: str, folder: Path | None) -> list[str] | None:
    """The CPUs are torchrun's to give."""
    del folder
    torchrun = program(words, lambda word: word in ("torchrun", "torch.distributed.run"))
    if name != BIND or torchrun is None:
        return None
    # Before the script, which may have an option of that name.
    return with_option(words, "--numa-binding", value, at=torchrun + 1)


CPU_FAMILY = Family(
    "cpu",
    (
        Knob(
            name=THREADS,
            takes="a number from 1",
            read=at_least(1),
            alters="The last bits of sums that are split over threads of the CPU; it also sets OMP_NUM_THREADS.",
            shown_by="test_process.py",
        ),
        Knob(
            name=BIND,
            takes="node, socket, exclusive or core-complex",
            how="framework option",
            read=one_of("node", "socket", "exclusive", "core-complex"),
            alters="Nothing computed; under torchrun alone, by its --numa-binding, which needs GPUs.",
            shown_by="test_frameworks.py",
        ),
    ),
    _cpu_install,
    _rewrite,
)


NAME = "gc.mode"


def mode(value: str) -> int | None:
    """Steps between collections; 0: none, None: as Python does, of what is new since the first step."""
    if value == "freeze":
        return None
    return 0 if value == "off" else at_least(1)(value.removeprefix("every:") if value.startswith("every:") else "")


def _install(ledger: Ledger) -> None:
    wanted = ledger.wanted(NAME)

    def after(step: int) -> None:
        every = wanted[NAME]
        if step == 0:  # all that the script made up to here stays
            gc.collect()
            gc.freeze()
            if every is not None:
                gc.disable()
            ledger.applied(NAME)
        elif every and step % every == 0:
            gc.collect(1)

    if wanted:
        ledger.at_step.append(after)
    ledger.at_end.append(lambda: _look(ledger))


def _look(ledger: Ledger) -> None:
    ledger.seen("gc.enabled", gc.isenabled())
    ledger.seen("gc.frozen", gc.get_freeze_count() > 0)
    ledger.seen("gc.threshold", ",".join(map(str, gc.get_threshold())))


COLLECTOR_FAMILY = Family(
    "collector",
    (
        Knob(
            name=NAME,
            takes="freeze, off or every:N steps",
            read=mode,
            alters="Nothing computed; unreachable cycles stay in memory until they are collected, with off for good.",
            shown_by="test_process.py",
        ),
    ),
    _install,
)


FAMILIES = (COLLECTOR_FAMILY, CPU_FAMILY)

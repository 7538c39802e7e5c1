"""Threads of a rank, and the CPUs they run on."""

from __future__ import annotations

import os
from pathlib import Path

from gpuscope.instrumented_runtime.record.applied.command_line import program, with_option
from gpuscope.instrumented_runtime.record.applied.knob import Family, Knob, at_least, one_of
from gpuscope.instrumented_runtime.record.applied.ledger import Ledger

THREADS, BIND = "cpu.threads", "cpu.numa_bind"


def _install(ledger: Ledger) -> None:
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


FAMILY = Family(
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
    _install,
    _rewrite,
)

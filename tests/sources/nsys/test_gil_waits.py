"""Waits for Python's GIL in nsys reports: told by call chains as nsys 2022.4 records them, worked by hand (ns)."""

from __future__ import annotations

from pathlib import Path

import pytest
from helpers.nsys import BACKENDS, Export, process

import gpuscope
from gpuscope.trace.kinds import WAITS_FOR_GIL

MAIN = process(10) + 10
LIBC, PYTHON, TORCH = "/usr/lib/libc.so.6", "/usr/bin/python3.11", "/venv/torch/lib/libtorch_cpu.so"
TAKEN = (("pthread_cond_timedwait@@GLIBC_2", LIBC), ("0x4f94ee", PYTHON), ("PyEval_RestoreThread", PYTHON))
SWITCHED = (("pthread_cond_wait@@GLIBC_2", LIBC), ("0x4f94ee", PYTHON), ("_PyEval_EvalFrameDefault", PYTHON))
LOCKED = (("sem_clockwait", LIBC), ("PyThread_acquire_lock_timed", PYTHON), ("_PyEval_EvalFrameDefault", PYTHON))
EXTENSION = (("pthread_cond_wait", LIBC), ("0x99", TORCH), ("_PyEval_EvalFrameDefault", PYTHON))


def wait(export: Export, number: int, start: int, end: int, chain: tuple[tuple[str, str], ...], tid: int) -> None:
    export.add(
        "OSRT_API",
        start=start,
        end=end,
        globalTid=tid,
        nameId=export.string(chain[0][0].partition("@")[0]),
        callchainId=number,
    )
    for depth, (symbol, module) in enumerate(chain):
        export.add(
            "OSRT_CALLCHAINS", id=number, symbol=export.string(symbol), module=export.string(module), stackDepth=depth
        )


def export(*chains: tuple[tuple[str, str], ...]) -> Export:
    """Eight steps of 10 ms: a kernel of 4 ms, then the thread waits 5 ms for the GIL and launches the next."""
    made, chains = Export(), chains or (SWITCHED, TAKEN)
    for k in range(8):
        start = 10_000_000 * k
        made.range(start, start + 10_000_000, f"step_{k}")
        made.call(start, start + 10_000, k + 1)
        made.kernel(start + 10_000, start + 4_010_000, k + 1)
        wait(made, k + 1, start + 4_500_000, start + 9_500_000, chains[k % len(chains)], MAIN)
    wait(made, 90, 100, 200, SWITCHED, MAIN + 1)
    wait(made, 91, 300, 400, LOCKED, MAIN + 1)
    wait(made, 92, 500, 600, EXTENSION, MAIN + 1)
    made.add("ThreadNames", nameId=made.string("pin_memory"), priority=0, globalTid=MAIN + 1)
    return made


@pytest.mark.parametrize("backend", BACKENDS)
def test_who_takes_the_gil_is_told_by_the_call_chain(tmp_path: Path, backend: str) -> None:
    host = gpuscope.open_trace(export().write(tmp_path, backend)).tables["host_events"]
    waits = host[host["category"] == "os"]
    assert (waits["name"] == WAITS_FOR_GIL).sum() == 9
    # A lock of Python's own, and an extension that waits by itself, are not the GIL.
    assert sorted(waits["name"][waits["name"] != WAITS_FOR_GIL]) == ["pthread_cond_wait", "sem_clockwait"]


def test_its_share_of_idle_time_is_told_with_those_who_hold_it(tmp_path: Path) -> None:
    report = gpuscope.analyze(export().write(tmp_path)).report
    (finding,) = (one for one in report["findings"] if one["code"] == "waits_for_gil")
    assert finding["cost_ns_per_step"] == 7 * 5_000_000 // 8  # the last one ends the recording
    assert "pin_memory" in finding["message"]
    (cause,) = (one for one in report["findings"] if one["code"] == "host_other")
    assert cause["evidence"][0]["name"] == WAITS_FOR_GIL
    (advice,) = (one for one in report["suggestions"] if one["code"] == "gil")
    # 5 of 10 ms, without the wait itself.
    assert advice["predicted"]["step_ns_after"] == pytest.approx(5_000_000, rel=0.05)


def test_a_lock_of_pythons_own_is_no_wait_for_the_gil(tmp_path: Path) -> None:
    report = gpuscope.analyze(export(LOCKED).write(tmp_path)).report
    assert "waits_for_gil" not in {one["code"] for one in report["findings"]}
    assert "gil" not in {one["code"] for one in (*report["suggestions"], *report["advice"]["unpredicted"])}


def test_without_chains_a_wait_stays_what_it_is(tmp_path: Path) -> None:
    made = Export()
    made.call(0, 10_000, 1)
    made.kernel(10_000, 500_000, 1)
    made.add("OSRT_API", start=1, end=2, globalTid=MAIN, nameId=made.string("futex"), callchainId=7)
    host = gpuscope.open_trace(made.write(tmp_path)).tables["host_events"]
    assert "futex" in set(host["name"])

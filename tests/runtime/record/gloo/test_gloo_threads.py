"""A process ends in order though gloo's threads have not let go of their last collective when it does."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
from helpers import needs

SCRIPT = """
import sys, time
import torch, torch.distributed as dist
from gpuscope.instrumented_runtime.record import gloo_trace
from gpuscope.instrumented_runtime.train.mesh import leave_world

def busy(future):
    end = time.monotonic() + 0.5
    while time.monotonic() < end:  # on gloo's thread, as an overloaded machine would slow it down
        pass
    print("let go", flush=True)

if "logged" in sys.argv:
    gloo_trace.install()
dist.init_process_group("gloo", init_method=f"file://{sys.argv[1]}", rank=0, world_size=1)
work = dist.all_reduce(torch.ones(4), async_op=True)
work.get_future().add_done_callback(busy)
"""


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason=needs.PROC)
@pytest.mark.parametrize(
    ("words", "end"),
    [
        (["logged"], ""),  # the script leaves its groups to Python
        ([], "leave_world()"),
    ],
)
def test_the_last_callback_comes_before_the_end(
    run: Callable[..., SimpleNamespace], tmp_path: Path, words: list[str], end: str
) -> None:
    (tmp_path / "script.py").write_text(SCRIPT + end)
    done = run(sys.executable, "script.py", tmp_path / "rendezvous", *words)
    assert (done.code, done.out) == (0, "let go\n"), done.err


PROFILED = """
import os, sys, time, types
import torch, torch.distributed as dist
from torch.profiler import ProfilerActivity, profile
from gpuscope.instrumented_runtime.record.nvml_samples import ScriptProfilers

def hold(future):
    end = time.monotonic() + 0.3
    while time.monotonic() < end:
        pass
    print("callback", flush=True)

ScriptProfilers(beside_nsys=False).start(types.SimpleNamespace(path="run", note=lambda **_: None))
rank = 1 if os.fork() else 0
dist.init_process_group("gloo", init_method=f"file://{sys.argv[1]}", rank=rank, world_size=2)
if rank == 1:  # late, so that the callback runs on gloo's thread
    time.sleep(0.2)
    dist.all_reduce(torch.ones(4))
    os._exit(os.waitstatus_to_exitcode(os.wait()[1]))
with profile(activities=[ProfilerActivity.CPU]):
    future = dist.all_reduce(torch.ones(4), async_op=True).get_future()
    future.add_done_callback(hold)
    future.wait()
print("stopped", flush=True)
os._exit(0)
"""


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason=needs.PROC)
def test_a_profiler_stops_after_gloo_has_finished(run: Callable[..., SimpleNamespace], tmp_path: Path) -> None:
    """Else gloo's thread writes the end of its annotation into memory that the profiler has freed."""
    (tmp_path / "script.py").write_text(PROFILED)
    done = run(sys.executable, "script.py", tmp_path / "rendezvous")
    assert (done.code, done.out) == (0, "callback\nstopped\n"), done.err

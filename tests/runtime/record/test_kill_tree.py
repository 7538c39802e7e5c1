"""Killing a launcher takes its ranks along."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from helpers import needs

from gpuscope.instrumented_runtime.record.launch import kill_tree


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason=needs.PROC)
def test_grandchildren_die_too() -> None:
    child = "import subprocess, sys; p = subprocess.Popen(['sleep', '600']); print(p.pid, flush=True); p.wait()"
    process = subprocess.Popen([sys.executable, "-c", child], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    grandchild = int(process.stdout.readline())
    kill_tree(process.pid)
    process.wait()
    for _ in range(100):
        # Dead, or a zombie that init has not reaped yet.
        stat = Path(f"/proc/{grandchild}/stat")
        if not stat.exists() or stat.read_text().rpartition(")")[2].split()[0] == "Z":
            break
        time.sleep(0.05)
    else:
        os.kill(grandchild, 9)
        pytest.fail("the grandchild is still running")

"""The campaign of faults: the load beside its recordings."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from contextlib import suppress

import pytest

from benchmarks.faults.load import busy

_CAMPAIGN = """
import time
from benchmarks.faults.load import busy
with busy(1) as own:
    print(own[0], flush=True)
    time.sleep(60)
"""


def test_busy_loops_run_and_are_gone_afterwards() -> None:
    loops: list[int] = []

    def record() -> None:
        with busy(2) as own:
            loops.extend(own)
            assert all(_alive(loop) for loop in own)
            raise RuntimeError("the recording failed")

    with pytest.raises(RuntimeError, match="the recording failed"):
        record()
    assert len(set(loops)) == 2
    assert not any(_alive(loop) for loop in loops)


def test_busy_loops_end_with_a_campaign_that_was_killed() -> None:
    with subprocess.Popen([sys.executable, "-c", _CAMPAIGN], stdout=subprocess.PIPE, text=True) as campaign:
        assert campaign.stdout is not None
        loop = int(campaign.stdout.readline())
        assert _alive(loop)
        campaign.send_signal(signal.SIGKILL)
    until = time.monotonic() + 60
    while _alive(loop) and time.monotonic() < until:
        time.sleep(0.05)
    assert not _alive(loop)


def _alive(process: int) -> bool:
    with suppress(ProcessLookupError):
        os.kill(process, 0)
        return True
    return False

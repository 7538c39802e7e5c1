"""The tests' own machinery: skips are told at the end, with what to install; what is dear to make shares a worker."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from helpers import needs
from helpers.wheel import ROOT

FILES = {
    "tests/dashboards/test_browser_live.py": needs.CHROMIUM,
    "tests/sources/nsys/test_nsys_real.py::TestWithNsys": needs.NSYS,
}


def test_a_machine_without_chromium_and_nsys(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "pytest", "-n", "1", "--dist", "loadgroup", *FILES]
    environment = {**os.environ, "PATH": str(tmp_path)}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    *lines, last = done.stdout.splitlines()
    told = dict(reversed(line.split(" skipped: ")) for line in lines if " skipped: " in line)
    assert set(told) == set(FILES.values())
    closing = re.fullmatch(r"(\d+) skipped in .*", last)
    assert closing is not None
    assert sum(map(int, told.values())) == int(closing[1])


def test_reasons_are_grouped_and_a_missing_module_names_the_extras() -> None:
    reasons = ["Skipped: could not import 'torch': No module named 'torch'", needs.GPU, f"Skipped: {needs.GPU}"]
    assert needs.skipped_lines(reasons) == [f"2 skipped: {needs.GPU}", f"1 skipped: no torch; {needs.EXTRAS}"]


@pytest.mark.xdist_group("layout")
def test_tests_of_a_group_share_a_worker_of_xdist(request: pytest.FixtureRequest) -> None:
    """Else what they share is made once per worker; `--dist loadgroup` reads the group from the id."""
    grouped = getattr(request.config.option, "loadgroup", False)
    assert request.node.nodeid.endswith("@layout") == grouped

"""A user's strict mypy on the Python of the documentation, with this checkout as the installed package."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from helpers.snippets import source_of

pytest.importorskip("mypy")
pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("mypy")]

ROOT = Path(__file__).resolve().parents[2]
PAGES = {"readme": ROOT / "README.md", "python": ROOT / "docs" / "python.md"}
WRONG = """\
import gpuscope

gpuscope.analyze(3.5)
gpuscope.analyse("run/")
gpuscope.check("run/", baseline="before/", fail_on_finding="grave")
analysis = gpuscope.analyze("run/")
analysis.predict(gpuscope.changes.BucketSize("25 MB"))
analysis.report["verdikt"]
analysis.kernel
analysis.tables.kernel
gpuscope.diff(analysis, analysis).cause
gpuscope.figures.kernel(analysis)
analysis.verdict["bound"]
"""
RIGHT = """\
import pandas as pd

import gpuscope
from gpuscope import Analysis

analysis: Analysis = gpuscope.analyze("run/")
kernels: pd.DataFrame = analysis.kernels
same: pd.DataFrame = analysis.tables.kernels
as_ever: pd.DataFrame = analysis.tables["kernels"]
why: str = analysis.verdict["why"]
step: int | None = analysis.step_ns
moved: pd.DataFrame = gpuscope.diff(analysis, analysis).causes
page: str = gpuscope.diff(analysis, analysis)._repr_html_()
gpuscope.figures.kernels(analysis, dark=True)
"""
CODES = ["arg-type", "attr-defined", "arg-type", "arg-type", "typeddict-item", *["attr-defined"] * 4, "typeddict-item"]
"""What mypy says of the lines of `WRONG`, in their order."""


def strict(cache: Path, *files: Path) -> str:
    """What `mypy --strict` prints of files that lie elsewhere, without the configuration of this project."""
    # mypy takes sys.path for what is installed; first there, this checkout is it, whatever else is installed.
    installed = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "--config-file=", f"--cache-dir={cache}", *map(str, files)],
        cwd=files[0].parent,
        env={**os.environ, "PYTHONPATH": installed},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stderr == ""
    return done.stdout


@pytest.fixture(scope="module")
def cache(request: pytest.FixtureRequest) -> Path:
    """Kept from one session to the next: what mypy knows of pandas and numpy takes it a while."""
    assert request.config.cache is not None
    return Path(request.config.cache.mkdir("mypy-snippets"))


def test_a_users_strict_mypy_passes_and_finds_mistakes(cache: Path, tmp_path: Path) -> None:
    """Without the mistakes that are found, the types might as well be Any."""
    files = []
    for name, page in PAGES.items():
        files.append(tmp_path / f"{name}_page.py")
        files[-1].write_text(source_of(page), encoding="utf-8")
        assert "gpuscope." in files[-1].read_text(encoding="utf-8")
    for name, text in (("right.py", RIGHT), ("wrong.py", WRONG)):
        files.append(tmp_path / name)
        files[-1].write_text(text, encoding="utf-8")
    errors = [line for line in strict(cache, *files).splitlines() if ": error:" in line]
    assert [line for line in errors if not line.startswith("wrong.py:")] == []
    assert [line.rpartition("[")[2].rstrip("]") for line in errors] == CODES

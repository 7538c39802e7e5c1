"""A command whose extra is not installed says which one, without a traceback."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from gpuscope.errors import EXTRA_OF

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize("command", ["bench collectives", "train --out run"])
def test_training_without_torch(command: str, tmp_path: Path) -> None:
    without_torch = "import sys; sys.modules['torch'] = None; from gpuscope.cli import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", without_torch, *command.split()],
        cwd=tmp_path, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 2
    assert done.stderr == "Error: this needs torch, which is not installed\nHint: pip install 'gpuscope[train]'\n"


def test_every_extra_named_exists() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert set(EXTRA_OF.values()) <= set(extras)

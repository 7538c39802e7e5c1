"""The scripts of findings/: each says what it is about, stands alone and is listed. None is run here."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[2] / "findings"
SCRIPTS = sorted(FOLDER.glob("*.sh"))
sys.path.insert(0, str(FOLDER))


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.stem)
def test_a_script_states_what_it_sees_and_needs_nothing_of_gpuscope(script: Path) -> None:
    from run import PARTS, head

    text = script.read_text(encoding="utf-8")
    assert set(head(script)) == set(PARTS)
    assert all(head(script).values())
    assert "gpuscope" not in text
    assert "mktemp -d" in text
    assert "==" in text.split("pip install", 1)[1].splitlines()[0], "packages are pinned"
    assert os.access(script, os.X_OK)
    assert subprocess.run(["bash", "-n", str(script)], check=False).returncode == 0


def test_the_list_is_of_these_scripts() -> None:
    from run import listing

    assert (FOLDER / "README.md").read_text(encoding="utf-8") == listing()
    assert len(SCRIPTS) >= 10

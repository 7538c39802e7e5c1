"""docs/slow-training.md, run as it stands: a slow script is recorded, changed as advised, recorded again, compared."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

PAGE = Path(__file__).resolve().parents[2] / "docs" / "slow-training.md"


def run(line: str, folder: Path) -> str:
    """A line of the page in `folder`; what it prints."""
    words = [sys.executable if word == "python" else word for word in line.split()]
    assert words[0] == "gpuscope"
    environment = {**os.environ, "GPUSCOPE_NO_STORE": "1", "COLUMNS": "80", "NO_COLOR": "1"}
    program = [sys.executable, "-c", "from gpuscope.cli import main; main()"]
    done = subprocess.run(
        [*program, *words[1:]], cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, f"{line}\n{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.mark.slow
def test_the_page_leads_from_slow_to_proven_faster(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    text = PAGE.read_text(encoding="utf-8")
    [script] = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    record, analyze, again, diff, check = re.findall(r"```sh\n(.*?)\n```", text, re.DOTALL)
    (tmp_path / "train.py").write_text(script, encoding="utf-8")
    run(record, tmp_path)
    printed = run(analyze, tmp_path)
    assert "data loader" in " ".join(printed.splitlines()[:3])
    [advised] = re.findall(r"num_workers=(\d+)", printed)[:1]
    assert int(advised) > 1
    assert again.endswith(" 8")
    run(f"{again.removesuffix(' 8')} {advised}", tmp_path)
    printed = run(diff, tmp_path)
    assert printed.startswith("Improvement")
    assert "applied: loader_workers" in printed
    assert "passed" in run(check, tmp_path)

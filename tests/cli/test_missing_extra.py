"""A command whose extra is not installed says which one, without a traceback."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from helpers.import_graph import imports, modules

from gpuscope.errors import EXTRA_OF

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize(
    ("command", "library", "installs"),
    [
        ("bench collectives", "torch", "torch"), ("train --out run", "torch", "torch"),
        ("dashboard {sample} --port 0", "flask", "dash"),  # which brings flask
    ],
)  # fmt: skip
def test_without_its_library(command: str, library: str, installs: str, samples: Path, tmp_path: Path) -> None:
    without = f"import sys; sys.modules['{library}'] = None; from gpuscope.cli import main; main()"
    arguments = command.format(sample=samples / "ddp_healthy").split()
    done = subprocess.run(
        [sys.executable, "-c", without, *arguments], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith(f"Error: this needs {library}, which is not installed\nHint: pip install '")
    assert f"'{installs}>=" in done.stderr


def test_every_library_that_is_imported_is_a_dependency_or_of_an_extra() -> None:
    """Without its line in `EXTRA_OF` a missing library would end in a traceback."""
    needed = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    always = {re.split(r"[>=<;\s]", line)[0].replace("-", "_") for line in needed} | sys.stdlib_module_names
    always |= {"google"} if "protobuf" in always else set()  # what protobuf is imported as
    found = {target.partition(".")[0] for path in modules().values() for target in imports(path)}
    assert found - always - {"gpuscope"} == set(EXTRA_OF)


def test_every_extra_named_exists() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert set(EXTRA_OF.values()) <= set(extras)

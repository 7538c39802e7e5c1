"""The wheel and an environment with it, made once for all tests of the package."""

from __future__ import annotations

from pathlib import Path

import pytest
from helpers.wheel import ROOT, Installed, build


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(ROOT, tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="session")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Installed:
    return Installed(tmp_path_factory.mktemp("environment"), wheel)

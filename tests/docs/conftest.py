"""The programs of docs/, which is no package."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType

import pytest

DOCS = Path(__file__).resolve().parents[2] / "docs"


@contextmanager
def _program(name: str) -> Iterator[ModuleType]:
    sys.path.insert(0, str(DOCS))
    try:
        yield importlib.import_module(name)
    finally:
        sys.path.remove(str(DOCS))
        sys.modules.pop(name, None)


@pytest.fixture(scope="module")
def generate() -> Iterator[ModuleType]:
    with _program("generate") as module:
        yield module


@pytest.fixture(scope="module")
def site() -> Iterator[ModuleType]:
    with _program("build_site") as module:
        yield module


@pytest.fixture(scope="module")
def walkthrough() -> Iterator[ModuleType]:
    with _program("walkthrough") as module:
        yield module

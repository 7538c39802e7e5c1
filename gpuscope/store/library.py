"""Importing sqlite-utils without what it does not need."""

from __future__ import annotations

import importlib
import sys
from types import ModuleType


def sqlite_utils() -> ModuleType:
    """The module `sqlite_utils`.

    Its import tries pandas, only to know one more type of column. That costs as much as a small analysis, which
    needs no pandas itself; so where pandas is not loaded yet it is hidden for the time of the import.
    """
    if "sqlite_utils" in sys.modules or "pandas" in sys.modules:
        return importlib.import_module("sqlite_utils")
    sys.modules["pandas"] = None  # type: ignore[assignment]  # how Python is told that there is no such module
    try:
        return importlib.import_module("sqlite_utils")
    finally:
        del sys.modules["pandas"]

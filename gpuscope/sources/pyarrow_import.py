"""pyarrow, for the sources that need it: imported late, and named with its extra where it is missing."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType

from gpuscope.errors import InputError, install_hint


def require_pyarrow(path: Path, what: str) -> ModuleType:
    """The module. Raises `InputError` naming the extra where it is not installed; `what` is being read."""
    try:
        import pyarrow
    except ImportError as error:
        raise InputError(f"{path}: reading {what} needs pyarrow", hint=install_hint("arrow")) from error
    module: ModuleType = pyarrow
    return module

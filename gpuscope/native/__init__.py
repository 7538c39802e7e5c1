"""The compiled core, where there is one: `core` is its module, or None where Python has to do.

It is compiled when gpuscope is installed and a C compiler is there (`hatch_build.py`). Whatever it does, Python does
too, with equal results; `GPUSCOPE_NATIVE=0` leaves it out.
"""

from __future__ import annotations

import os
from importlib import import_module
from typing import Any

INTERFACE = 2
"""Of the core that these sources call: one compiled from older or newer ones is left out, and Python does its work."""

core: Any = None
if os.environ.get("GPUSCOPE_NATIVE") != "0":
    try:
        core = import_module("gpuscope.native._core")
    except ImportError:  # no compiler when it was installed
        core = None
    if getattr(core, "INTERFACE", 0) != INTERFACE:
        core = None


def release_memory() -> None:
    """Give freed memory back to the system, where the C library would keep it: reading a large trace leaves more of it
    behind, in small pieces, than the trace takes."""
    if core is not None:
        core.release_memory()

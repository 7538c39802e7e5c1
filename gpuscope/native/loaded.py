"""The compiled module, where there is one: `core`, or None where Python has to do.

It is compiled when gpuscope is installed and a C compiler is there (`hatch_build.py`); `GPUSCOPE_NATIVE=0` leaves it
out.
"""

from __future__ import annotations

import os
from importlib import import_module
from typing import Any

INTERFACE = 9
"""Of the core that these sources call: one compiled from older or newer ones is left out, and Python does its work."""

core: Any = None
if os.environ.get("GPUSCOPE_NATIVE") != "0":
    try:
        core = import_module("gpuscope.native._core")
    except ImportError:  # no compiler when it was installed
        core = None
    if getattr(core, "INTERFACE", 0) != INTERFACE:
        core = None

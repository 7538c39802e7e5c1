"""gpuscope: where the time of a multi-GPU training step goes, and what to change.

>>> import gpuscope
>>> trace = gpuscope.open_trace("rank0.json.gz")
>>> trace.tables["device_events"]          # a plain pandas DataFrame
>>> report = gpuscope.analyze("run/")      # the report of `gpuscope analyze run/ --json`
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"
__all__ = ["__version__", "analyze", "open_trace"]

if TYPE_CHECKING:
    from gpuscope.sources import open_trace
    from gpuscope.trace.trace import Trace as Trace

    def analyze(*paths: Any, **options: Any) -> Any: ...


def __getattr__(name: str) -> Any:
    # Looked up late: `import gpuscope` stays quick, and this package never imports the one above it.
    if name == "open_trace":
        from gpuscope.sources import open_trace

        return open_trace
    if name == "analyze":
        from gpuscope.plugins import API, load

        return load(API, "analyze")
    raise AttributeError(f"module 'gpuscope' has no attribute {name!r}")

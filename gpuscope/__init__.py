"""gpuscope: where the time of a multi-GPU training step goes, and what to change.

>>> import gpuscope
>>> trace = gpuscope.open_trace("rank0.json.gz")
>>> trace.tables["device_events"]          # a plain pandas DataFrame
>>> analysis = gpuscope.analyze("run/")    # analysis.report is `gpuscope analyze run/ --json`
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from gpuscope.version import __version__

if TYPE_CHECKING:
    from gpuscope.analyzers.run.analysis import Analysis
    from gpuscope.analyzers.run.runner import analyze
    from gpuscope.errors import AnalysisError, GpuscopeError, InputError, UsageError
    from gpuscope.sources.opening import open_trace
    from gpuscope.trace.trace import Trace

_HOME = {
    "Analysis": "gpuscope.analyzers.run.analysis",
    "AnalysisError": "gpuscope.errors",
    "GpuscopeError": "gpuscope.errors",
    "InputError": "gpuscope.errors",
    "Trace": "gpuscope.trace.trace",
    "UsageError": "gpuscope.errors",
    "analyze": "gpuscope.analyzers.run.runner",
    "open_trace": "gpuscope.sources.opening",
}
"""Where each public name lives. Looked up when asked for, so that `import gpuscope` stays quick."""

__all__ = [
    "Analysis",
    "AnalysisError",
    "GpuscopeError",
    "InputError",
    "Trace",
    "UsageError",
    "__version__",
    "analyze",
    "open_trace",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'gpuscope' has no attribute {name!r}")
    return getattr(import_module(_HOME[name]), name)


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])

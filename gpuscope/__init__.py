"""gpuscope: where the time of a multi-GPU training step goes, and what to change.

>>> import gpuscope
>>> trace = gpuscope.open_trace("rank0.json.gz")
>>> trace.tables["device_events"]          # a plain pandas DataFrame
>>> analysis = gpuscope.analyze("run/")    # analysis.report is `gpuscope analyze run/ --json`
>>> analysis.predict(gpuscope.changes.BucketSize(50 << 20))
>>> gpuscope.diff("before/", "after/")
>>> gpuscope.check("run/", baseline="baseline.json", fail_on=0.05)
>>> gpuscope.advise("llama-3-8b", "8xH100")
>>> gpuscope.figures.breakdown(analysis)    # a plotly figure, in a notebook
>>> gpuscope.tune("torchrun --nproc-per-node 8 train.py")    # advice, followed and measured
>>> with gpuscope.session("runs/first") as session: ...      # in a training script

docs/python.md has them all. Times are int nanoseconds, sizes bytes, shares fractions.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from gpuscope.version import __version__

if TYPE_CHECKING:
    from gpuscope.analyzers import what_if_changes as changes
    from gpuscope.analyzers.comparison.comparison import CheckResult, Comparison, check, diff
    from gpuscope.analyzers.planning.advising import ParallelismPlan, advise
    from gpuscope.analyzers.queries.asking import query
    from gpuscope.analyzers.run.analysis import Analysis
    from gpuscope.analyzers.run.runner import analyze
    from gpuscope.analyzers.watching.measures import follow
    from gpuscope.analyzers.what_if_changes import Predicted, Refused
    from gpuscope.dashboards.figures import of_results as figures
    from gpuscope.errors import AnalysisError, GpuscopeError, InputError, MissingExtraError, UsageError
    from gpuscope.instrumented_runtime.record.ranges import span
    from gpuscope.instrumented_runtime.record.session import Session
    from gpuscope.instrumented_runtime.record.session import gpuscope_session as session
    from gpuscope.instrumented_runtime.tune.rerun import tune
    from gpuscope.sources.opening import open_trace
    from gpuscope.trace.trace import Trace

_HOME = {
    "Analysis": "gpuscope.analyzers.run.analysis:Analysis",
    "AnalysisError": "gpuscope.errors:AnalysisError",
    "CheckResult": "gpuscope.analyzers.comparison.comparison:CheckResult",
    "Comparison": "gpuscope.analyzers.comparison.comparison:Comparison",
    "GpuscopeError": "gpuscope.errors:GpuscopeError",
    "InputError": "gpuscope.errors:InputError",
    "MissingExtraError": "gpuscope.errors:MissingExtraError",
    "ParallelismPlan": "gpuscope.analyzers.planning.advising:ParallelismPlan",
    "Predicted": "gpuscope.analyzers.what_if_changes:Predicted",
    "Refused": "gpuscope.analyzers.what_if_changes:Refused",
    "Session": "gpuscope.instrumented_runtime.record.session:Session",
    "Trace": "gpuscope.trace.trace:Trace",
    "UsageError": "gpuscope.errors:UsageError",
    "advise": "gpuscope.analyzers.planning.advising:advise",
    "analyze": "gpuscope.analyzers.run.runner:analyze",
    "changes": "gpuscope.analyzers.what_if_changes",
    "check": "gpuscope.analyzers.comparison.comparison:check",
    "diff": "gpuscope.analyzers.comparison.comparison:diff",
    "figures": "gpuscope.dashboards.figures.of_results",
    "follow": "gpuscope.analyzers.watching.measures:follow",
    "open_trace": "gpuscope.sources.opening:open_trace",
    "query": "gpuscope.analyzers.queries.asking:query",
    "session": "gpuscope.instrumented_runtime.record.session:gpuscope_session",
    "span": "gpuscope.instrumented_runtime.record.ranges:span",
    "tune": "gpuscope.instrumented_runtime.tune.rerun:tune",
}
"""Where each public name is defined, `module:name` or a module. Looked up when asked for, so that `import gpuscope`
stays quick; type checkers read the imports above, and a test compares the two."""

__all__ = [
    "Analysis",
    "AnalysisError",
    "CheckResult",
    "Comparison",
    "GpuscopeError",
    "InputError",
    "MissingExtraError",
    "ParallelismPlan",
    "Predicted",
    "Refused",
    "Session",
    "Trace",
    "UsageError",
    "__version__",
    "advise",
    "analyze",
    "changes",
    "check",
    "diff",
    "figures",
    "follow",
    "open_trace",
    "query",
    "session",
    "span",
    "tune",
]


class _UnknownNameError(AttributeError):
    """Says what was meant once somebody reads it: an import of a submodule asks here too, and reads nothing."""

    def __str__(self) -> str:
        from difflib import get_close_matches

        close = get_close_matches(self.args[0], __all__, 1)
        return f"module 'gpuscope' has no attribute {self.args[0]!r}" + (
            f": did you mean {close[0]!r}?" if close else ""
        )


if not TYPE_CHECKING:  # to type checkers it would make every misspelt name one of ours

    def __getattr__(name: str) -> Any:
        if name not in _HOME:
            raise _UnknownNameError(name)
        module, _, attribute = _HOME[name].partition(":")
        found: Any = import_module(module)
        if attribute:
            found = getattr(found, attribute)
        globals()[name] = found  # the next look-up finds it without this function
        return found


def __dir__() -> list[str]:
    return sorted(__all__)

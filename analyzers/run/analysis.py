"""What `gpuscope.analyze` returns: the report, and its sections as DataFrames."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpuscope.analyzers.changes import Change, Predicted, Refused
from gpuscope.errors import UsageError
from gpuscope.report.section_tables import SectionTables, table
from gpuscope.report.view import arrangement
from gpuscope.schema import compute_section, document, memory_section, nccl_sections, profile_sections
from gpuscope.schema.document import Report, Verdict
from gpuscope.when_used import dataclass
from gpuscope.words import units

if TYPE_CHECKING:
    import pandas as pd

    from gpuscope.analyzers.replay.replayer import Replayer

SECTIONS: dict[str, type] = {
    "ranks": document.RankEntry,
    "steps": document.StepEntry,
    "collectives": document.CollectiveEntry,
    "stragglers": document.StragglerEntry,
    "kernels": document.KernelEntry,
    "findings": document.FindingEntry,
    "suggestions": document.SuggestionEntry,
    "problems": document.ProblemEntry,
    "bandwidth": nccl_sections.BandwidthEntry,
    "fits": nccl_sections.FitEntry,
    "link_counters": nccl_sections.LinkCounterEntry,
    "device_counters": compute_section.DeviceCounterEntry,
    "crossovers": nccl_sections.CrossoverEntry,
    "traffic": nccl_sections.TrafficEntry,
    "topology": nccl_sections.TopologyEntry,
    "memory": memory_section.MemoryEntry,
    "kernel_ranks": profile_sections.KernelRankEntry,
    "operators": profile_sections.OperatorEntry,
    "ranges": profile_sections.RangeEntry,
    "phases": profile_sections.PhaseEntry,
    "api_calls": profile_sections.ApiCallEntry,
    "copies": profile_sections.CopyEntry,
    "launches": profile_sections.LaunchEntry,
    "queues": profile_sections.QueueEntry,
    "streams": profile_sections.StreamEntry,
    "gaps": profile_sections.GapEntry,
}
"""Sections of the report that are tables, and what a row of each holds. Not every report has those from `bandwidth`
to `memory`."""


class RunTables:
    """The tables of a run by name: of `Analysis` and of `Analysis.tables` alike. A section that a run has not raises
    `AttributeError`."""

    ranks: pd.DataFrame
    steps: pd.DataFrame
    collectives: pd.DataFrame
    stragglers: pd.DataFrame
    kernels: pd.DataFrame
    findings: pd.DataFrame
    suggestions: pd.DataFrame
    problems: pd.DataFrame
    bandwidth: pd.DataFrame
    fits: pd.DataFrame
    link_counters: pd.DataFrame
    device_counters: pd.DataFrame
    crossovers: pd.DataFrame
    traffic: pd.DataFrame
    topology: pd.DataFrame
    memory: pd.DataFrame
    kernel_ranks: pd.DataFrame
    operators: pd.DataFrame
    ranges: pd.DataFrame
    phases: pd.DataFrame
    api_calls: pd.DataFrame
    copies: pd.DataFrame
    launches: pd.DataFrame
    queues: pd.DataFrame
    streams: pd.DataFrame
    gaps: pd.DataFrame


class AnalysisTables(SectionTables, RunTables):
    """The sections of a report that are lists, as DataFrames: `tables.kernels` or `tables["kernels"]`."""


@dataclass(frozen=True, repr=False)
class Analysis(RunTables):
    """What `gpuscope.analyze` found in a run; every table of `tables` is an attribute too (`analysis.kernels`)."""

    report: Report
    """The document of `gpuscope analyze --json` as a dict: every key is in docs/report.md, times are int ns."""
    replayer: Replayer | None = None
    """The run's replay, which `predict` asks; None where only a finished report is at hand."""
    hosts: tuple[str, ...] = ()
    """The hosts that the traces name."""

    @property
    def tables(self) -> AnalysisTables:
        """The report's sections that are lists, as DataFrames by name (`SECTIONS`), nested keys dotted; times in ns."""
        return AnalysisTables(self.report, SECTIONS)

    @property
    def verdict(self) -> Verdict:
        """What bounds the run, and how sure that is: `bound_by`, `cause`, `share_frac`, `confidence`, `why`…"""
        return self.report["verdict"]

    @property
    def step_ns(self) -> int | None:
        """«The step», ns: the median of the judged steps; None where no steps were found."""
        return arrangement.step_ns(self.report)

    @property
    def failed(self) -> list[str]:
        """Analyses that failed, each with its reason. The report says nothing of what they would have found."""
        return [f"{a['name']}: {a['why']}" for a in self.report["analyzers"] if a["status"] == "failed"]

    def predict(self, *changes: Change) -> Predicted | Refused:
        """What a step would take with these changes (`gpuscope.changes`), made one after the other, by replay.

        Returns `Predicted` (step times in ns, mean over ranks and steps) or `Refused` with the reason, where this
        trace can't support a prediction. Raises `UsageError` without a change.
        """
        if not changes:
            raise UsageError("nothing to predict", hint="name a change, such as gpuscope.changes.BucketSize(25 << 20)")
        if self.replayer is None:
            return Refused("a finished report holds no replay: analyse the trace itself")
        return self.replayer.predict(changes)

    if not TYPE_CHECKING:  # to type checkers it would make every misspelt name one of ours

        def __getattr__(self, name: str) -> pd.DataFrame:
            if name.startswith("_") or name == "report":  # asked for by copying and pickling, before there is one
                raise AttributeError(name)
            return table(self, name, self.tables)

    def __dir__(self) -> list[str]:
        return sorted({*super().__dir__(), *self.tables})

    def _repr_html_(self) -> str:
        """The first screen, for notebooks."""
        from gpuscope.report.html.html_report import render_cell

        return render_cell(self.report)

    def __repr__(self) -> str:
        entries = self.report["ranks"]
        present = self.report["trace"]["ranks_present"]
        pieces = [_bound(self.report), units.plural(len(present), "rank")]
        step = arrangement.step_ns(self.report)
        if step is not None:
            pieces.append(f"step {units.duration(step)}")
        elif entries:
            pieces.append(f"window {units.duration(max(entry['window_ns'] for entry in entries))}")
        return f"Analysis({', '.join(pieces)})"


def _bound(report: Report) -> str:
    """`communication-bound by straggler 24.8 %`; the share is the cause's, or the class's where no cause is known."""
    verdict = report["verdict"]
    if verdict["abstained"] or verdict["bound_by"] is None:
        return "no verdict"
    cause = verdict["cause"]
    if cause is None:
        return f"{verdict['bound_by']}-bound {units.share(verdict['share_frac'])}"
    share = next((row.share_frac for row in arrangement.causes(report) if row.cause == cause), verdict["share_frac"])
    return f"{verdict['bound_by']}-bound by {cause} {units.share(share)}"

"""What `gpuscope.analyze` returns: the report, and its sections as DataFrames."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from gpuscope.report.schema import document, memory_section, nccl_sections
from gpuscope.report.schema.document import Report

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
    "traffic": nccl_sections.TrafficEntry,
    "topology": nccl_sections.TopologyEntry,
    "memory": memory_section.MemoryEntry,
}
"""Sections of the report that are tables, and what a row of each holds. Not every report has the last five."""


@dataclass(frozen=True)
class Analysis:
    """`report` is the JSON document as a dict; `tables[section]` a plain DataFrame, nested keys dotted."""

    report: Report
    replayer: Replayer | None = None
    """The run's replay: `analysis.replayer.predict(change)`, with the changes of `gpuscope.analyzers.frame.changes`."""

    @property
    def tables(self) -> Mapping[str, pd.DataFrame]:
        """The sections that are lists, as DataFrames made when asked for."""
        return _Sections(self.report)

    @property
    def failed(self) -> list[str]:
        """Analyses that broke, with why."""
        return [f"{a['name']}: {a['why']}" for a in self.report["analyzers"] if a["status"] == "failed"]


class _Sections(Mapping[str, "pd.DataFrame"]):
    def __init__(self, report: Report) -> None:
        self._report: Mapping[str, Any] = report

    def __getitem__(self, section: str) -> pd.DataFrame:
        import pandas as pd

        if section not in SECTIONS or section not in self._report:
            raise KeyError(section)
        frame = pd.json_normalize(self._report[section])
        # An empty table still has its columns, so that it can be written and read.
        return frame if len(frame) else pd.DataFrame(columns=list(SECTIONS[section].__annotations__))

    def __iter__(self) -> Iterator[str]:
        return (section for section in SECTIONS if section in self._report)

    def __len__(self) -> int:
        return sum(1 for _ in self)

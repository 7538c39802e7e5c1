"""Where a job hung: the analysis, of which twelve files are imported where a trace tells of a hang."""

from __future__ import annotations

from gpuscope.analyzers.base.analyzer import Result
from gpuscope.analyzers.base.needs import Need
from gpuscope.analyzers.base.sections import HANG
from gpuscope.analyzers.facts.run_facts import RunAnalyzer, RunFacts
from gpuscope.trace.trace import Trace


def run(facts: RunFacts) -> Result:
    """The section `hang` and its finding."""
    from gpuscope.analyzers.hangs.hang_analysis import run

    return run(facts)


def _tells(trace: Trace) -> bool:
    """Whether the trace tells of a hang; lines of logs and open compilations beside timelines need not be of one."""
    if any(len(trace[table]) for table in ("flight_records", "group_status", "host_stacks", "rank_progress")):
        return True
    from gpuscope.analyzers.hangs.evidence import tells
    from gpuscope.analyzers.hangs.rank_states import has_dumps

    if has_dumps(trace):
        return True

    signs = (len(trace["hang_signs"]) > 0 and tells(trace)) or bool((trace["compilations"]["open"] == 1).any())
    return signs and not len(trace["recording"])


ANALYZER = RunAnalyzer(
    "hang",
    run,
    (
        Need(
            "Flight Recorder dumps",
            "gpuscope record writes them; else set TORCH_FR_BUFFER_SIZE=2000 and TORCH_NCCL_DUMP_ON_TIMEOUT=1",
            _tells,
            optional=True,
        ),
    ),
    (HANG,),
)

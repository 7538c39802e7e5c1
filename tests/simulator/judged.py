"""A job with what the profiler records of it: simulated, judged by the definitions, and written out."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from simulator.job import Job
from simulator.kineto_rows import Profiler, write_kineto
from simulator.machine import execute
from simulator.recorded import Run
from simulator.training import programs
from simulator.truth import Truth, truth_of

THIN = 0.6
"""A trace with fewer of its operators is thinned."""


@dataclass(frozen=True)
class Case:
    """`job` as `profiler` saw it. `about` says what was injected; `straggler` names the rank that is late and why
    (`device`, `data`, `host`), where one always is."""

    job: Job
    about: str
    profiler: Profiler = field(default_factory=Profiler)
    straggler: tuple[int, str] | None = None

    @property
    def name(self) -> str:
        return self.job.name

    @cached_property
    def run(self) -> Run:
        return execute(programs(self.job), self.job.hardware())

    @cached_property
    def truth(self) -> Truth:
        return truth_of(
            self.run,
            programs(self.job),
            self.job.hardware(),
            self.unlike,
            [rank for rank in self.run.ranks if rank not in self.profiler.left_out],
        )

    @property
    def unlike(self) -> set[int]:
        """Steps that are injected to be unlike the others."""
        job = self.job
        slow_start = job.warmup_factor > 1.0 or job.compile_ns or job.first_use_ns
        return ({0} if slow_start else set()) | ({job.outlier_step} - {-1})

    @property
    def expected(self) -> tuple[str, str | None]:
        """`bound_by` and `cause` that are right; `abstained` where the recording can't support a verdict."""
        if self.profiler.kept < THIN:
            return "abstained", None
        told = self.truth.verdict
        if told.bound_by == "communication" and self.profiler.left_out:
            return told.bound_by, None
        return told.bound_by, told.cause

    def write(self, folder: Path) -> Path:
        """The recording, a folder of its own."""
        write_kineto(folder / self.name, self.job, self.run, self.profiler)
        return folder / self.name

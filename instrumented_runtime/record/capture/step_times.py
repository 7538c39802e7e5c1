"""When each step ended, a line at once: for `gpuscope watch` while the job runs."""

from __future__ import annotations

import json
import time
from io import FileIO

from gpuscope.instrumented_runtime.record.run_folder import RankFolder

MOST = 100_000
"""Steps that are written: ten megabytes."""


class StepTimes:
    """Writes `steps/rank{r}.jsonl`. A step is from one's end to the next one's; of the first the begin is unknown."""

    name = "steps"

    def start(self, folder: RankFolder) -> None:
        """Open the file; unbuffered, so that of a job that stands still every step is there."""
        self._rank, self._before = folder.part.rank, time.perf_counter_ns()
        self._folder, self._path = folder, folder.file(f"steps/rank{self._rank}.jsonl")
        self._file = FileIO(self._path, "w")
        folder.add_file(self._path, self.name)  # listed now, in case this rank is killed

    def step(self, step: int) -> None:
        """Write its line."""
        if step >= MOST:
            return
        now = time.perf_counter_ns()
        line = {"step": step, "rank": self._rank, "end_ns": time.time_ns(), "step_ns": now - self._before}
        self._file.write(json.dumps(line | {"first": step == 0}).encode() + b"\n")
        self._before = now

    def stop(self) -> None:
        """Close the file."""
        self._file.close()
        self._folder.add_file(self._path, self.name)

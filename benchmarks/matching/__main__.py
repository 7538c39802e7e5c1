"""A synthetic job of 1,024 ranks, matched and attributed: python -m benchmarks.matching [--layers 4] [--steps 10]

The job is simulated (tests/helpers/synthetic_job.py): 16 × 8 × 8 ranks of data, tensor and pipeline parallelism, one
of them late in every step. Timed apart: what is done per file (all analyses of it), and what over all ranks.
CPU seconds vary less than wall seconds on a busy machine.
"""

from __future__ import annotations

import argparse
import resource
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tests"))

from helpers.synthetic_job import Job, simulate, trace_of

from gpuscope.analyzers.collectives import exposed_communication
from gpuscope.analyzers.facts.run_facts import RunFacts
from gpuscope.analyzers.frame.sections import STRAGGLERS
from gpuscope.analyzers.run.file_part import Options, Part, reduce_trace
from gpuscope.trace.merge import merge


@dataclass
class Watch:
    """Adds up wall and CPU seconds of `with` blocks."""

    wall: float = 0.0
    cpu: float = 0.0
    _began: tuple[float, float] = field(default=(0.0, 0.0))

    def __enter__(self) -> None:
        self._began = time.perf_counter(), time.process_time()

    def __exit__(self, *_: object) -> None:
        self.wall += time.perf_counter() - self._began[0]
        self.cpu += time.process_time() - self._began[1]

    def __str__(self) -> str:
        return f"{self.wall:.1f} s ({self.cpu:.1f} s of CPU)"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--kernels", type=int, default=2, help="kernels between two collectives")
    asked = parser.parse_args()
    job = Job(dp=16, tp=8, pp=8, layers=asked.layers, steps=asked.steps, kernels=asked.kernels, late_rank=5)
    made = simulate(job)
    per_file, together = Watch(), Watch()
    parts: list[Part] = []
    for rank in range(job.ranks):
        trace = trace_of(job, made, rank)
        with per_file:
            part = reduce_trace(trace, Options())
        # The graphs of the replay are not this benchmark's.
        parts.append(Part(part.trace, part.lanes, [], []))
    with together:
        run = merge([part.trace for part in parts])
        found = exposed_communication.run(RunFacts(run, [lane for part in parts for lane in part.lanes]))
    worst = max(found.sections[STRAGGLERS], key=lambda entry: entry["root_wait_ns"])
    print(f"{job.ranks} ranks, {len(run['collectives']):,} collectives by rank")
    print(f"late is rank {job.late_rank}; found: {worst}")
    print(f"per file, all analyses: {per_file}")
    print(f"matched and attributed over all ranks: {together}")
    print(f"peak memory: {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024:.0f} MB")


if __name__ == "__main__":
    main()

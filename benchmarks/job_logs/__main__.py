"""`python -m benchmarks.job_logs`: events found and false shifts in drawn jobs, and how far off the goodput is."""

from __future__ import annotations

import argparse
import tempfile
from collections import defaultdict
from pathlib import Path

import gpuscope
from benchmarks.job_logs.drawn import EVENTS, NOISE, Job, job
from gpuscope.schema.job_log_section import JobLogSection


def found(job: Job, log: JobLogSection) -> bool:
    """Whether the report tells the event, where and how large it is."""
    if job.event == "none":
        return not (log["shifts"] or log["growth"] or log["restarts"] or log["late_ranks"])
    if job.event == "shift":
        near = [one for one in log["shifts"] if abs(one["step"] - job.step) <= max(5, log["steps"] // 50)]
        return len(log["shifts"]) == 1 and len(near) == 1
    if job.event == "growth":
        return log["growth"] is not None and not log["shifts"]
    if job.event == "long step":
        return log["long_steps"] is not None and bool(log["long_steps"]["lines"])
    if job.event == "restart":
        return log["restarts"] == 1 and log["attempts"][0]["repeated_steps"] in (20, 21)
    if job.event == "slow evaluation":
        return log["evaluations"] >= 4 and log["evaluation_ns"] > 0
    if job.event == "slow start":
        return log["startup_ns"] is not None and log["startup_ns"] > 0.1 * (log["total_ns"] or 1)
    return [one["rank"] for one in log["late_ranks"]] == [int(job.facts["rank"])]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--healthy", type=int, default=500)
    parser.add_argument("--each", type=int, default=10, help="jobs of each event and shape of noise")
    asked = parser.parse_args()
    false = defaultdict(int)
    off: list[float] = []
    right: dict[str, list[bool]] = defaultdict(list)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "job.log")

        def read(one: Job) -> JobLogSection:
            path.write_text(one.text, encoding="utf-8")
            log = gpuscope.analyze(path, advice=False).report["job_log"]
            if log["goodput_frac"] is not None:
                off.append(abs(log["goodput_frac"] - one.goodput))
            return log

        for seed in range(asked.healthy):
            shape = NOISE[seed % len(NOISE)]
            log = read(job("none", shape, seed))
            false[shape] += bool(log["shifts"] or log["growth"])
        for event in EVENTS[1:]:
            for number, shape in enumerate(NOISE):
                for seed in range(asked.each):
                    one = job(event, shape, 10_000 + 100 * number + seed)
                    right[event].append(found(one, read(one)))
    print(f"| noise | false alarms of {asked.healthy // len(NOISE)} |\n|---|---|")
    for shape in NOISE:
        print(f"| {shape} | {false[shape]} |")
    print("\n| event | found |\n|---|---|")
    for event, hits in right.items():
        print(f"| {event} | {sum(hits)} of {len(hits)} |")
    worst = sorted(off)
    print(f"\ngoodput off by {worst[int(0.95 * len(worst))]:.4f} in 95 % of {len(worst)} jobs, {worst[-1]:.4f} at most")


if __name__ == "__main__":
    main()

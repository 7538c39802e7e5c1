#!/usr/bin/env bash
# Expected: profile.step() marks a step: a ProfilerStep range in the trace.
# Seen: without a schedule step() writes no range at all, silently; schedule=schedule(wait=0, warmup=0, active=N) is
#     what makes them.
# Version: torch 2.13.0 (CPU), 2026-11-28
# Matters: such traces have no steps to a reader, though the script calls step() every iteration: the remedy is to
#     pass a schedule.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
python3 -m venv env
env/bin/python -m pip install --quiet --disable-pip-version-check torch==2.13.0 numpy==2.4.0

env/bin/python - <<'PY'
import json
import torch
from torch.profiler import ProfilerActivity, profile, schedule

def steps(**options):
    with profile(activities=[ProfilerActivity.CPU], **options) as recording:
        for _ in range(3):
            torch.ones(2)
            recording.step()
    recording.export_chrome_trace("trace.json")
    names = {event["name"] for event in json.load(open("trace.json"))["traceEvents"]}
    return sorted(name for name in names if name.startswith("ProfilerStep"))

seen = steps(), steps(schedule=schedule(wait=0, warmup=0, active=5))
print(seen)
assert seen == ([], ["ProfilerStep#0", "ProfilerStep#1", "ProfilerStep#2", "ProfilerStep#3"])
PY

#!/usr/bin/env bash
# Expected: a loop of seven iterations that calls step() in each leaves no more than seven ProfilerStep ranges.
# Seen: where the loop ends inside a cycle's active part, the cycle is exported too, and its last range
#     (ProfilerStep#7) is of an eighth step that never ran.
# Version: torch 2.13.0 (CPU), 2026-11-28
# Matters: the last step of such a file is empty and of no length worth counting; means over «the steps» are off.
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

exported = []
def ready(recording):
    recording.export_chrome_trace("trace.json")
    events = json.load(open("trace.json"))["traceEvents"]
    ranges = [event for event in events if event["name"].startswith("ProfilerStep")]
    operators = [event for event in events if event.get("cat") == "cpu_op"]
    exported.append([
        (step["name"], sum(step["ts"] <= op["ts"] < step["ts"] + step["dur"] for op in operators)) for step in ranges
    ])

with profile(activities=[ProfilerActivity.CPU], schedule=schedule(wait=1, warmup=1, active=2), on_trace_ready=ready) as recording:
    for _ in range(7):
        torch.relu(torch.ones(2))
        recording.step()
print(exported)
assert [name for name, _ in exported[-1]] == ["ProfilerStep#6", "ProfilerStep#7"]
assert exported[-1][-1][1] == 0 < exported[-1][0][1]
PY

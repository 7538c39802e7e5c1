#!/usr/bin/env bash
# Expected: a trace says where collection was switched off: toggle_collection_dynamic leaves a mark, or the gap is
#     told in the file.
# Seen: the operators in between are missing and nothing in the file shows it; the gap looks like time in which the
#     host ran plain Python.
# Version: torch 2.13.0 (CPU), 2026-11-28
# Matters: scripts that pause collection around evaluation or checkpoints leave gaps that any reader charges to the
#     host.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
python3 -m venv env
env/bin/python -m pip install --quiet --disable-pip-version-check torch==2.13.0 numpy==2.4.0

env/bin/python - <<'PY'
import json
import torch
from torch.profiler import ProfilerActivity, profile

activities = [ProfilerActivity.CPU]
with profile(activities=activities) as recording:
    torch.ones(2)
    recording.toggle_collection_dynamic(False, activities)
    torch.zeros(2)
    recording.toggle_collection_dynamic(True, activities)
    torch.full((2,), 1.0)
recording.export_chrome_trace("trace.json")
trace = json.load(open("trace.json"))
text = json.dumps(trace).lower()
names = {event["name"] for event in trace["traceEvents"] if event.get("cat") == "cpu_op"}
print(sorted(names), "marks:", [word for word in ("toggle", "paused", "collection") if word in text])
assert "aten::ones" in names and "aten::full" in names and "aten::zeros" not in names
assert not any(word in text for word in ("toggle", "paused"))
PY

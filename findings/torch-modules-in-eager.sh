#!/usr/bin/env bash
# Expected: with_modules=True puts the module hierarchy of an eager model into the trace.
# Seen: for eager models it changes nothing: neither rows nor arguments of modules are written (TorchScript alone has
#     them). Rows «nn.Module: …» come with with_stack=True.
# Version: torch 2.13.0 (CPU), 2026-11-28
# Matters: traces recorded for a breakdown by module lack it; with_stack=True is the option to ask for.
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

model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU())
def marks(**options):
    with profile(activities=[ProfilerActivity.CPU], **options) as recording:
        model(torch.ones(2, 4))
    recording.export_chrome_trace("trace.json")
    events = json.load(open("trace.json"))["traceEvents"]
    keys = {key for event in events for key in event.get("args", {})}
    return sum("nn.Module" in str(event.get("name")) for event in events), sorted(key for key in keys if "odule" in key)

plain, modules, stack = marks(), marks(with_modules=True), marks(with_stack=True)
print("plain", plain, "with_modules", modules, "with_stack", stack)
assert plain == modules == (0, [])
assert stack[0] >= 3
PY

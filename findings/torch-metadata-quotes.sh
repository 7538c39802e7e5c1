#!/usr/bin/env bash
# Expected: profile.add_metadata(key, value) escapes the value, so that any text is safe; its source does escape
#     double quotes.
# Seen: a value with a double quote makes the exported file invalid JSON all the same: the escape is lost on the way
#     into the file.
# Version: torch 2.13.0 (CPU), 2026-11-28
# Matters: run names, commands and configurations are what people put there; a strict reader then refuses the whole
#     trace.
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

def readable(value):
    with profile(activities=[ProfilerActivity.CPU]) as recording:
        torch.ones(2)
        recording.add_metadata("run", value)
    recording.export_chrome_trace("trace.json")
    try:
        return json.load(open("trace.json"))["run"]
    except json.JSONDecodeError:
        return "invalid JSON"

seen = {value: readable(value) for value in ("plain", 'lr "0.1"')}
print(seen)
assert seen == {"plain": "plain", 'lr "0.1"': "invalid JSON"}
PY

#!/usr/bin/env bash
# Expected: a record_function name arrives in the exported trace as it was given, escaped where JSON needs it.
# Seen: a double quote makes the file invalid JSON; a tab, a control character or any non-ASCII letter turns the whole
#     name into «unknown»; a backslash becomes a slash; a newline is dropped.
# Version: torch 2.13.0 (CPU), 2026-11-28
# Matters: ranges named after files, layers or people merge under «unknown», and a reader that wants strict JSON loses
#     the file.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
python3 -m venv env
env/bin/python -m pip install --quiet --disable-pip-version-check torch==2.13.0 numpy==2.4.0

env/bin/python - <<'PY'
import json
import torch
from torch.profiler import ProfilerActivity, profile, record_function

def exported(name):
    with profile(activities=[ProfilerActivity.CPU]) as recording, record_function(name):
        torch.ones(2)
    recording.export_chrome_trace("trace.json")
    try:
        events = json.load(open("trace.json"))["traceEvents"]
    except json.JSONDecodeError:
        return "invalid JSON"
    return next(event["name"] for event in events if event.get("cat") == "user_annotation")

expected = {'layer "3"': "invalid JSON", "a\tb": "unknown", "größe": "unknown", "a\\b": "a/b", "two\nlines": "twolines"}
seen = {name: exported(name) for name in expected}
for name, result in seen.items():
    print(f"{name!r} -> {result!r}")
assert seen == expected
PY

#!/usr/bin/env bash
# Expected: with_stack=True is all that export_stacks() needs.
# Seen: it writes an empty file and reports nothing; stacks are only kept for it with
#     _ExperimentalConfig(verbose=True).
# Version: torch 2.13.0 (CPU), 2026-11-28
# Matters: flame graphs made of such files are blank, which reads as «no Python code was running».
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
python3 -m venv env
env/bin/python -m pip install --quiet --disable-pip-version-check torch==2.13.0 numpy==2.4.0

env/bin/python - <<'PY'
import torch
from torch.profiler import ProfilerActivity, profile

def stacks(configuration):
    with profile(activities=[ProfilerActivity.CPU], with_stack=True, experimental_config=configuration) as recording:
        torch.ones(8, 8) @ torch.ones(8, 8)
    recording.export_stacks("stacks.txt")
    return len(open("stacks.txt").read().splitlines())

seen = stacks(None), stacks(torch._C._profiler._ExperimentalConfig(verbose=True))
print("lines:", seen)
assert seen[0] == 0 < seen[1]
PY

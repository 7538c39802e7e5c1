#!/usr/bin/env bash
# Expected: a CPU recording holds the operators of all threads of the process.
# Seen: only the thread that started the profiler (and autograd's, for its graphs) is recorded: neither a thread that
#     ran before nor one that is started inside shows a single operator. profile_all_threads=True of the experimental
#     configuration records them.
# Version: torch 2.13.0 (CPU), 2026-11-28
# Matters: background data preparation, checkpoint threads and in-process servers look like idle time on the recorded
#     thread.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
python3 -m venv env
env/bin/python -m pip install --quiet --disable-pip-version-check torch==2.13.0 numpy==2.4.0

env/bin/python - <<'PY'
import threading
import torch
from torch.profiler import ProfilerActivity, profile

def recorded(configuration):
    go = threading.Event()
    earlier = threading.Thread(target=lambda: (go.wait(), torch.sigmoid(torch.ones(2))))
    earlier.start()
    with profile(activities=[ProfilerActivity.CPU], experimental_config=configuration) as recording:
        go.set()
        earlier.join()
        later = threading.Thread(target=lambda: torch.tanh(torch.ones(2)))
        later.start()
        later.join()
        torch.relu(torch.ones(2))
    names = {event.key for event in recording.key_averages()}
    return [name for name in ("aten::sigmoid", "aten::tanh", "aten::relu") if name in names]

seen = recorded(None), recorded(torch._C._profiler._ExperimentalConfig(profile_all_threads=True))
print("by default:", seen[0], "with profile_all_threads:", seen[1])
assert seen == (["aten::relu"], ["aten::sigmoid", "aten::tanh", "aten::relu"])
PY

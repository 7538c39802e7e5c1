#!/usr/bin/env bash
# Expected: an asynchronous checkpoint of torch.distributed.checkpoint shows its collectives, as the synchronous one
#     does.
# Seen: save() leaves about ten collectives in the trace (gathers, scatters and broadcasts of the plan); async_save()
#     leaves none: they run on a thread that the profiler does not record. Only the copies of the staging are seen.
# Version: torch 2.13.0 (CPU, gloo, two ranks), 2026-11-28
# Matters: the link is in use, and steps beside a checkpoint get longer, while the trace holds no reason for it.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
python3 -m venv env
env/bin/python -m pip install --quiet --disable-pip-version-check torch==2.13.0 numpy==2.4.0

cat >job.py <<'PY'
import json
import torch
import torch.distributed as dist
from torch.profiler import ProfilerActivity, profile

dist.init_process_group("gloo")
rank = dist.get_rank()

def recorded(work):
    with profile(activities=[ProfilerActivity.CPU], record_shapes=True) as recording:
        work()
    recording.export_chrome_trace(f"trace{rank}.json")
    with open(f"trace{rank}.json") as file:
        events = json.load(file)["traceEvents"]
    return sorted((event for event in events if event.get("ph") == "X"), key=lambda event: event["ts"])

import torch.distributed.checkpoint as checkpoint

state = {"weights": torch.randn(256, 256)}

def collectives(work):
    return sum(event["name"].startswith(("c10d::", "gloo:")) for event in recorded(work))

synchronous = collectives(lambda: checkpoint.save(state, checkpoint_id="plain"))
asynchronous = collectives(lambda: checkpoint.async_save(state, checkpoint_id="later").result())
if rank == 0:
    print("collective rows: save", synchronous, "async_save", asynchronous)
assert synchronous >= 8
assert asynchronous == 0

dist.destroy_process_group()
PY
OMP_NUM_THREADS=1 env/bin/python -m torch.distributed.run --standalone --nproc-per-node 2 job.py

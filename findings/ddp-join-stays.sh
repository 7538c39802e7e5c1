#!/usr/bin/env bash
# Expected: DistributedDataParallel.join() costs its extra all-reduces inside the «with» block alone.
# Seen: once a block has been entered and left, every later step, also outside any block and under no_sync(), carries
#     two all-reduces of one element more.
# Version: torch 2.13.0 (CPU, gloo, two ranks), 2026-11-28
# Matters: a job that used join() for one epoch with uneven inputs pays the latency of two small collectives per step
#     for the rest of its life, and its traces hold collectives that nothing in the loop explains.
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

from torch.nn.parallel import DistributedDataParallel

model = DistributedDataParallel(torch.nn.Linear(16, 4))
batch = torch.randn(8, 16)

def step():
    model(batch).sum().backward()

def all_reduces():
    return [event["args"]["Input Dims"][0][0][0] for event in recorded(step) if event["name"] == "c10d::allreduce_"]

for _ in range(3):
    step()
before = all_reduces()
with model.join():
    step()
after = all_reduces(), all_reduces()
if rank == 0:
    print("elements of all-reduces before:", before, "after:", after)
assert before == [68]
assert after == ([1, 1, 68], [1, 1, 68])

dist.destroy_process_group()
PY
OMP_NUM_THREADS=1 env/bin/python -m torch.distributed.run --standalone --nproc-per-node 2 job.py

#!/usr/bin/env bash
# Expected: the schedules of torch.distributed.pipelining mark their work in one way.
# Seen: GPipe writes «Forward 0» and «Backward 0», 1F1B writes no range at all, the schedules of several stages per
#     rank write «PP:2F0», «PP:2SEND_F0», «PP:2RECV_B0»; zero-bubble ones split the backward in «I» and «W».
# Version: torch 2.13.0 (CPU, gloo, two ranks), 2026-11-28
# Matters: micro-batches of the commonest schedule, 1F1B, can be told from its messages alone; a reader that looks for
#     one style of range misses the others.
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

import re
from torch.distributed import pipelining

batch = torch.randn(8, 16)

def styles(name, per_rank):
    indices = [rank + 2 * number for number in range(per_rank)]
    stages = [
        pipelining.PipelineStage(torch.nn.Linear(16, 16), index, 2 * per_rank, torch.device("cpu")) for index in indices
    ]
    loss = torch.nn.functional.mse_loss
    schedule = getattr(pipelining, name)(stages if per_rank > 1 else stages[0], 4, loss_fn=loss)
    work = (lambda: schedule.step(batch)) if rank == 0 else (lambda: schedule.step(target=batch))
    work()
    names = {event["name"] for event in recorded(work) if event["cat"] == "user_annotation"}
    return sorted({re.sub(r"[0-9]+", "#", name) for name in names if not name.startswith("gloo:")})

seen = {
    name: styles(name, per_rank)
    for name, per_rank in (("ScheduleGPipe", 1), ("Schedule1F1B", 1), ("ScheduleInterleaved1F1B", 2), ("ScheduleInterleavedZeroBubble", 2))
}
if rank == 0:
    print(json.dumps(seen, indent=1))
assert seen["ScheduleGPipe"] == ["Backward #", "Forward #"]
assert seen["Schedule1F1B"] == []
assert {"PP:#F#", "PP:#B#", "PP:#SEND_F#", "PP:#RECV_B#"} <= set(seen["ScheduleInterleaved1F1B"])
assert {"PP:#I#", "PP:#W#"} <= set(seen["ScheduleInterleavedZeroBubble"])

dist.destroy_process_group()
PY
OMP_NUM_THREADS=1 env/bin/python -m torch.distributed.run --standalone --nproc-per-node 2 job.py

#!/usr/bin/env bash
# Expected: FlopCounterMode counts scaled_dot_product_attention and LSTMs on every device.
# Seen: on a CPU both run as fused operators that the counter doesn't know: attention and an LSTM count nothing,
#     without a warning.
# Version: torch 2.13.0 (CPU), 2026-11-28
# Matters: FLOPs counted in a dry run on a CPU, a common way to get a model's FLOPs for MFU, lack all attention.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
python3 -m venv env
env/bin/python -m pip install --quiet --disable-pip-version-check torch==2.13.0 numpy==2.4.0

env/bin/python - <<'PY'
import torch
from torch.utils.flop_counter import FlopCounterMode

def counted(work):
    with FlopCounterMode(display=False) as counter:
        work()
    return counter.get_total_flops()

heads = torch.randn(2, 4, 32, 16)
attention = torch.nn.functional.scaled_dot_product_attention
seen = {
    "linear": counted(lambda: torch.nn.Linear(16, 16)(torch.randn(4, 16))),
    "attention": counted(lambda: attention(heads, heads, heads)),
    "lstm": counted(lambda: torch.nn.LSTM(16, 16)(torch.randn(5, 2, 16))),
}
print(seen)
assert seen == {"linear": 2048, "attention": 0, "lstm": 0}
PY

#!/usr/bin/env bash
# Expected: FlopCounterMode gives a convolution's backward twice its forward, depthwise or not.
# Seen: the gradient of a grouped convolution's weight is counted as if there were no groups: a depthwise convolution
#     with 8 channels has a backward of nine times its forward (one for the input, eight for the weight).
# Version: torch 2.13.0 (CPU), 2026-11-28
# Matters: model FLOPs, and so MFU, of networks with depthwise or grouped convolutions come out far too high; other
#     counters then seem to be wrong.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
python3 -m venv env
env/bin/python -m pip install --quiet --disable-pip-version-check torch==2.13.0 numpy==2.4.0

env/bin/python - <<'PY'
import torch
from torch.utils.flop_counter import FlopCounterMode

def ratio(groups):
    layer = torch.nn.Conv2d(8, 8, 3, groups=groups, padding=1, bias=False)
    image = torch.randn(2, 8, 16, 16, requires_grad=True)
    with FlopCounterMode(display=False) as counter:
        layer(image).sum().backward()
    counts = {str(operator): flops for operator, flops in counter.get_flop_counts()["Global"].items()}
    return counts["aten.convolution_backward"] / counts["aten.convolution"]

seen = {groups: ratio(groups) for groups in (1, 2, 8)}
print("backward / forward by groups:", seen)
assert seen == {1: 2.0, 2: 3.0, 8: 9.0}
PY

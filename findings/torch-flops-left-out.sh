#!/usr/bin/env bash
# Expected: with_flops=True counts all matrix work of a training step.
# Seen: forward convolutions, mm, addmm, bmm and baddbmm are counted; attention (SDPA), every convolution's backward,
#     transposed convolutions and matrix-vector products count nothing, and no figure at all is written to the
#     exported file.
# Version: torch 2.13.0 (CPU), 2026-11-28
# Matters: an MFU from key_averages() leaves out attention and two thirds of a convolutional network; no reader of the
#     file can know what was counted.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
python3 -m venv env
env/bin/python -m pip install --quiet --disable-pip-version-check torch==2.13.0 numpy==2.4.0

env/bin/python - <<'PY'
import json
import torch
from torch.nn import functional
from torch.profiler import ProfilerActivity, profile

def counted(work):
    with profile(activities=[ProfilerActivity.CPU], with_flops=True, record_shapes=True) as recording:
        work()
    recording.export_chrome_trace("trace.json")
    keys = {key for event in json.load(open("trace.json"))["traceEvents"] for key in event.get("args", {})}
    assert not any("flop" in key.lower() for key in keys)
    return sum(event.flops for event in recording.key_averages() if event.key.startswith("aten::"))

heads = torch.randn(2, 4, 32, 16)
image = torch.randn(2, 8, 16, 16, requires_grad=True)
layer = torch.nn.Conv2d(8, 8, 3, bias=False)
result = layer(image)
grad = torch.ones_like(result)
cases = {
    "bmm": lambda: torch.bmm(torch.randn(3, 8, 8), torch.randn(3, 8, 8)),
    "convolution forward": lambda: layer(image.detach()),
    "convolution backward": lambda: torch.autograd.grad(result, (image, layer.weight), grad),
    "transposed convolution": lambda: functional.conv_transpose2d(image.detach(), torch.randn(8, 4, 3, 3)),
    "attention": lambda: functional.scaled_dot_product_attention(heads, heads, heads),
    "matrix-vector": lambda: torch.mv(torch.randn(64, 64), torch.randn(64)),
}
seen = {name: counted(work) > 0 for name, work in cases.items()}
print(seen)
assert [name for name, is_counted in seen.items() if is_counted] == ["bmm", "convolution forward"]
PY

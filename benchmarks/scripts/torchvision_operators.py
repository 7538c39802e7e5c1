"""Without these operators torchvision can't be imported: its wheel's own are compiled for CUDA and don't load beside a
torch for processors. No script here calls them."""

import importlib.util
from pathlib import Path

DECLARED = """
if not _has_ops():
    for _name in ("nms", "qnms"):
        torch.library.define(f"torchvision::{_name}", "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
"""


def declare() -> None:
    """Declare those that are missing in this environment's torchvision, if it has one."""
    found = importlib.util.find_spec("torchvision")
    if found is None or found.origin is None:
        return
    path = Path(found.origin).with_name("extension.py")
    lines = path.read_text()
    if DECLARED not in lines:
        path.write_text(lines + DECLARED)

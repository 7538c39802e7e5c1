"""Logs of training jobs as frameworks print them, of steps whose times are known."""

from __future__ import annotations

import datetime
import json
from collections.abc import Callable, Sequence
from pathlib import Path

BEGIN = datetime.datetime(2025, 6, 2, 10)


def clock(seconds: float, form: str = "%Y-%m-%d %H:%M:%S") -> str:
    """The time so many seconds after the job began."""
    return (BEGIN + datetime.timedelta(seconds=seconds)).strftime(form)


def exact(seconds: float) -> str:
    """The same with milliseconds, as Python's logging has it."""
    moment = BEGIN + datetime.timedelta(seconds=seconds)
    return f"{moment.strftime('%Y-%m-%d %H:%M:%S')},{moment.microsecond // 1000:03d}"


def elapsed(seconds: float) -> str:
    return f"{int(seconds) // 60:02d}:{int(seconds) % 60:02d}"


Line = Callable[[int, float, float, int], str]
"""Of a step's number from one, its seconds, the seconds from the job's begin to its end, the number of steps."""


def bar(step: int, seconds: float, end: float, count: int) -> str:
    """tqdm's bar, as it is drawn over itself."""
    left = elapsed((count - step) * seconds)
    drawn = f"\r{100 * step // count:3d}%|{'█' * (10 * step // count):10s}"
    return f"{drawn}| {step}/{count} [{elapsed(end)}<{left}, {seconds:5.2f}s/it]"


def hugging_face(step: int, seconds: float, end: float, count: int) -> str:
    row = "\r{'loss': '2.31', 'grad_norm': '1.2', 'learning_rate': '5e-05', 'epoch': '0.1'}\n" if step % 10 == 0 else ""
    return bar(step, seconds, end, count) + row


def lightning(step: int, seconds: float, end: float, count: int) -> str:
    shown = f"{step}/{count} [{elapsed(end)}<00:09, {1 / seconds:5.2f}it/s, v_num=0, train_loss=0.123]"
    return f"\rEpoch 0: {100 * step // count:3d}%|███       | {shown}"


LINES: dict[str, tuple[str, Line]] = {
    "megatron": (
        "megatron-lm",
        lambda n, s, t, _: (
            f"[default0]: [{clock(t)}] iteration {n:8d}/    5000 | consumed samples: {n * 64:12d} | elapsed time per "
            f"iteration (ms): {s * 1000:.1f} | learning rate: 1.0E-04 | global batch size:    64 | lm loss: 7.1E+00 | "
            "loss scale: 1.0 | grad norm: 1.234 | number of skipped iterations:   0 |\n"
        ),
    ),
    "torchtitan": (
        "torchtitan",
        lambda n, s, t, _: (
            f"[rank0]:[titan] {exact(t)} - root - INFO - step: {n:2d}  loss:  7.1234  grad_norm:  1.2  memory: "
            f"10.11GiB(12.76%)  tps: {8 * 2048 / s:,.0f}  tflops: 56.78  mfu: 18.20%\n"
        ),
    ),
    "nemo": (
        "nemo",
        lambda n, s, _, __: (
            f"Training epoch 0, iteration {n}/999 | lr: 0.0003 | global_batch_size: 8 | global_step: {n} | "
            f"reduced_train_loss: 10.3 | train_step_timing in s: {s:.4f} | consumed_samples: {n * 8}\n"
        ),
    ),
    "deepspeed": (
        "deepspeed",
        lambda n, s, t, _: (
            f"[{exact(t)}] [INFO] [logging.py:96:log_dist] [Rank 0] step={n}, skipped=0, lr=[0.001], mom=[[0.9]]\n"
            f"[{exact(t)}] [INFO] [timer.py:258:stop] epoch=0/micro_step={n}/global_step={n}, "
            f"RunningAvgSamplesPerSec=12.3, CurrSamplesPerSec={32 / s:.6f}, MemAllocated=1.2GB, MaxMemAllocated=3.0GB\n"
            f"[Rank 0] time (ms) | fwd: {s * 300:.2f} | bwd: {s * 600:.2f} | step: {s * 100:.2f}\n"
        ),
    ),
    "deepspeed_pipeline": (
        "deepspeed",
        lambda n, s, _, __: f"steps: {n} loss: 7.1 iter time (s): {s:.3f} samples/sec: {32 / s:.3f}\n",
    ),
    "hugging_face": ("hf-trainer", hugging_face),
    "lightning": ("lightning", lightning),
    "nanogpt": ("plain", lambda n, s, _, __: f"iter {n}: loss 2.1, time {s * 1000:.2f}ms, mfu 12.34%\n"),
    "imagenet": (
        "plain",
        lambda n, s, _, __: f"Epoch: [0][{n:4d}/5005]\tTime  {s:.3f} ( 0.400)\tData  0.001 ( 0.020)\tLoss 6.9 (6.9)\n",
    ),
    "detectron2": (
        "detectron2",
        lambda n, s, t, _: (
            f"[{clock(t, '%m/%d %H:%M:%S')} d2.utils.events]:  eta: 1:00:00  iter: {n}  loss: 2.3  time: {s:.4f}  "
            f"last_time: {s:.4f}  data_time: 0.0123  lr: 0.0001  max_mem: 2345M\n"
        ),
    ),
    "mmengine": (
        "mmengine",
        lambda n, s, t, _: (
            f"{clock(t, '%m/%d %H:%M:%S')} - mmengine - INFO - Epoch(train)  [1][{n:5d}/20000]  lr: 1.0000e-03  eta: "
            f"0:00:10  time: {s:.4f}  data_time: 0.0123  memory: 3456  loss: 2.3456\n"
        ),
    ),
    "timm": (
        "plain",
        lambda n, s, _, __: (
            f"Train: 0 [{n:4d}/1251 (  4%)]  Loss: 6.93 (6.93)  Time: {s:.3f}s,  {256 / s:7.2f}/s  (0.4s,  640.0/s)  "
            "LR: 1.000e-05  Data: 0.010 (0.020)\n"
        ),
    ),
    "maxtext": (
        "maxtext",
        lambda n, s, _, __: (
            f"completed step: {n}, seconds: {s:.3f}, TFLOP/s/device: 123.4, Tokens/s/device: {8192 / s:.3f}, "
            "total_weights: 65536, loss: 7.123\n"
        ),
    ),
    "plain": ("plain", lambda n, s, _, __: f"step {n} loss 2.1 {s:.3f} s/it\n"),
    "decimal_commas": ("plain", lambda n, s, _, __: f"step {n} loss 2.1 {s:.3f} s/it\n".replace(".", ",")),
    "time_stamps": ("plain", lambda n, _, t, __: f"{exact(t)} INFO step {n}/500 loss=2.1\n"),
    "json_lines": (
        "plain",
        lambda n, s, _, __: json.dumps({"step": n, "loss": 2.3, "step_time": s, "lr": 1e-4}) + "\n",
    ),
    "litgpt": (
        "plain",
        lambda n, s, _, __: (
            f"Epoch 1 | iter {n} step {n} | loss train: 1.2, val: n/a | iter time: {s * 1000:.2f} ms (step) remaining "
            "time: 0:10:00\n"
        ),
    ),
}
"""By name the format that the words on the lines tell, and a line."""


def text_of(line: Line, seconds: Sequence[float], before: str = "", begin: float = 0.0, first: int = 1) -> str:
    """A log of steps that take these seconds."""
    end, lines = begin, [before]
    for number, own in enumerate(seconds, first):
        end += own
        lines.append(line(number, own, end, len(seconds)))
    return "".join(lines)


def written(path: Path, text: str) -> Path:
    path.write_text(text, encoding="utf-8")
    return path


class Mlperf:
    """Lines of MLPerf, on a clock that goes on."""

    def __init__(self, label: str = "") -> None:
        self.ms, self.label, self.lines = 1_760_000_000_000, label, list[str]()

    def add(self, key: str, value: object = None, passed: float = 0.0, **meta: object) -> Mlperf:
        self.ms += round(passed * 1000)
        row = {"namespace": "", "time_ms": self.ms, "event_type": "POINT_IN_TIME", "key": key, "value": value}
        row["metadata"] = {"file": "train.py", "lineno": 1, **meta}
        self.lines.append(f"{self.label}:::MLLOG {json.dumps(row)}")
        return self

    @property
    def text(self) -> str:
        return "\n".join(self.lines) + "\n"

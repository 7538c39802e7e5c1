"""What holds memory at the peak: by the user's own line, by kind, and what would shrink it. Synthetic snapshots."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest
from helpers.cli import call
from rich.console import Console

import gpuscope
from gpuscope.report.html import html_report
from gpuscope.report.terminal import first_screen, report_text
from gpuscope.report.terminal.screen import Writer
from gpuscope.report.view.report_rows import to_record
from gpuscope.schema.document import Report
from gpuscope.trace.frameworks import FRAME_TEXT, StackKind, kind_of, own_line
from tests.helpers.allocator import EPOCH_US, MIB, Entry, events, segment, snapshot

PACKAGES = "/usr/lib/python3.11/site-packages"
TORCH = f"{PACKAGES}/torch"


def stack(*frames: tuple[str, str, int]) -> list[Entry]:
    return [{"name": name, "filename": file, "line": line} for name, file, line in frames]


TRAIN = ("<module>", "/job/train.py", 90)
RUNPY = ("_run_code", "/usr/lib/python3.11/runpy.py", 86)
CALL = ("_call_impl", f"{TORCH}/nn/modules/module.py", 1739)
SOFTMAX = stack(
    ("softmax", f"{TORCH}/nn/functional.py", 2140),
    ("attention", "/job/model.py", 40),
    CALL,
    ("forward", "/job/model.py", 80),
    TRAIN,
    RUNPY,
)
CALLED = stack(  # torch.softmax(scores, -1)
    ("at::_ops::_softmax::call(at::Tensor const&, long, bool)", "??", 0),
    ("forward", "/job/attention.py", 44),
    CALL,
    TRAIN,
)
PRODUCT = stack(("scaled_product_attention", "/job/model.py", 42), CALL, ("forward", "/job/model.py", 80), TRAIN, RUNPY)
LINEAR = stack(
    ("forward", f"{TORCH}/nn/modules/linear.py", 125), CALL, ("forward", "/job/model.py", 81), CALL, TRAIN, RUNPY
)
ADAM = f"{TORCH}/optim/adam.py"
STATES = stack(("_init_group", ADAM, 174), ("step", ADAM, 234), ("train_step", "/job/train.py", 18), TRAIN)
SECOND_STATES = stack(("_init_group", ADAM, 178), *((f["name"], f["filename"], f["line"]) for f in STATES[1:]))
COPIES = stack(("_multi_tensor_adam", ADAM, 703), *((f["name"], f["filename"], f["line"]) for f in STATES[1:]))
GRADIENT = stack(
    ("c10::cuda::CUDACachingAllocator::malloc(unsigned long)", "??", 0),
    ("at::_ops::clone::call(at::Tensor const&)", "??", 0),
    ("torch::autograd::AccumulateGrad::apply(std::vector<at::Tensor>&&)", "??", 0),
    ("__clone", "??", 0),
)


def held(path: Path, *blocks: tuple[int, list[Entry]]) -> Path:
    """A snapshot in which these blocks (MiB, stack) are allocated one after the other, all in use at the end."""
    at, trace, states = 1 << 30, list[Entry](), list[tuple[int, str]]()
    for size, frames in blocks:
        trace += events(("segment_alloc", at, size * MIB), ("alloc", at, size * MIB), frames=frames)
        states.append((size * MIB, "active_allocated"))
        at += size * MIB
    for i, one in enumerate(trace):
        one["time_us"] = EPOCH_US + i
    segments, at = [], 1 << 30
    for (size, state), (_, frames) in zip(states, blocks, strict=True):
        segments.append(segment(at, (size, state)))
        segments[-1]["blocks"][0]["frames"] = frames
        at += size
    return snapshot(path, segments, trace)


def screen(report: Report, width: int = 80, *, full: bool = False) -> str:
    out = io.StringIO()
    console = Console(file=out, width=width)
    if full:
        report_text.render(report, console)
    else:
        first_screen.render(report, Writer(console))
    return out.getvalue()


def texts(frames: list[Entry]) -> list[str]:
    return [f"{one['name']} ({one['filename']}:{one['line']})" for one in frames]


@pytest.mark.parametrize(
    ("frames", "line", "kind"),
    [
        (SOFTMAX, "attention (/job/model.py:40)", StackKind.ATTENTION_SCORES),
        (CALLED, "forward (/job/attention.py:44)", StackKind.ATTENTION_SCORES),
        (LINEAR, "forward (/job/model.py:81)", StackKind.FORWARD),
        (STATES, "train_step (/job/train.py:18)", StackKind.OPTIMIZER),
        (COPIES, "train_step (/job/train.py:18)", StackKind.OPTIMIZER_TEMPORARIES),
        (GRADIENT, "AccumulateGrad", StackKind.GRADIENTS),
        # Nothing of the user's own: the library that they run, rather than what started it.
        (
            stack(("forward", f"{TORCH}/nn/modules/linear.py", 1), ("forward", f"{PACKAGES}/vllm/llama.py", 7), RUNPY),
            f"forward ({PACKAGES}/vllm/llama.py:7)",
            StackKind.FORWARD,
        ),
        (
            stack(("f", "/opt/pytorch/torch/nn/functional.py", 1), ("g", "/home/me/torch/train.py", 2)),
            "g (/home/me/torch/train.py:2)",
            StackKind.OTHER,
        ),
        ([], "", StackKind.NO_STACK),
    ],
)
def test_a_stack_is_told_by_the_users_own_line(frames: list[Entry], line: str, kind: StackKind) -> None:
    assert (own_line(texts(frames)), kind_of(texts(frames))) == (line, kind)


def fused_attention_saves(report: Report) -> list[int]:
    """MiB."""
    bounds = [one["memory_bound"] for one in report["advice"]["unpredicted"] if one["code"] == "fused_attention"]
    return [(one["peak_bytes_before"] - one["peak_bytes_low"]) // MIB for one in bounds]


def test_casts_of_the_scores_are_scores_too(tmp_path: Path) -> None:
    """Eight softmaxes of 256 MiB, each cast to 16 bits; the attention's results stay, whoever computes them."""
    scores = [(256, CALLED), (128, PRODUCT), (16, PRODUCT), (128, LINEAR)]
    assert fused_attention_saves(gpuscope.analyze(held(tmp_path / "a.pickle", *scores * 8)).report) == [8 * (256 + 128)]
    short = [(4, SOFTMAX), (2, PRODUCT), (128, LINEAR)]
    assert fused_attention_saves(gpuscope.analyze(held(tmp_path / "b.pickle", *short * 8)).report) == []


def test_the_headline_is_what_holds_the_peak_and_what_would_shrink_it(tmp_path: Path) -> None:
    """6,144 MiB of scores and 2,048 of other activations of 10,240; the rest is gradients."""
    path = held(tmp_path / "snap.pickle", *[(256, SOFTMAX)] * 24, (2048, LINEAR), (2048, GRADIENT))
    analysis = gpuscope.analyze(path)
    report = analysis.report
    assert report["verdict"]["abstained"]
    assert "6,144 MiB" in report["verdict"]["why"]
    assert "model.py:40" in report["verdict"]["why"]
    (finding,) = report["findings"]
    assert finding["code"] == "memory_peak"
    bounds = {one["code"]: one["memory_bound"] for one in report["advice"]["unpredicted"]}
    saved = {code: (one["peak_bytes_before"] - one["peak_bytes_low"]) // MIB for code, one in bounds.items()}
    assert saved == {
        "fused_attention": 6144,
        "activation_checkpointing": 8192,
        "smaller_micro_batch": 4096,
        "shard_states": 2048,
    }
    first = screen(report)
    assert "No verdict:" not in first.splitlines()[0]
    assert "6,144 MiB" in " ".join(first.split("\n\n")[0].split())
    assert "runpy" not in first
    assert max(map(len, first.splitlines())) <= 80
    page = html_report.render(report)
    assert "6,144 MiB (60.0" in page.partition("</header>")[0].replace("\u00a0", " ")
    assert "6,144 MiB" in analysis._repr_html_().replace("\u00a0", " ")


def test_what_only_copies_and_states_hold_is_not_answered_by_checkpointing(tmp_path: Path) -> None:
    path = held(tmp_path / "snap.pickle", (90, STATES), (90, SECOND_STATES), (90, COPIES), (30, stack(TRAIN)))
    report = gpuscope.analyze(path).report
    codes = [one["code"] for one in report["advice"]["unpredicted"]]
    assert codes == ["single_tensor_optimizer", "shard_states", "cpu_offload"]
    # Three stacks through one line are one row.
    rows = [(one["line"], one["bytes"] // MIB, one["stacks"]) for one in report["memory"][0]["at_peak"]]
    assert rows == [("train_step (/job/train.py:18)", 270, 3), ("<module> (/job/train.py:90)", 30, 1)]
    assert screen(report).count("train.py:18") == 2  # once in the headline, once in the table


def test_nothing_is_proposed_that_the_snapshot_does_not_show(tmp_path: Path) -> None:
    """Inference: no backward pass and no optimizer, so nothing is kept for one."""
    report = gpuscope.analyze(held(tmp_path / "snap.pickle", (100, LINEAR))).report
    assert [one["code"] for one in report["advice"]["unpredicted"]] == ["smaller_micro_batch"]


def test_snapshots_that_no_label_tells_are_each_their_own(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    held(tmp_path / "small.pickle", (100, LINEAR), (100, GRADIENT))
    held(tmp_path / "large.pickle", (500, SOFTMAX), (100, GRADIENT))
    held(tmp_path / "third.pickle", (50, STATES))
    (tmp_path / "timeline.raw.gz").write_bytes(b"\x1f\x8bwhatever")
    done = call(capsys, "analyze", tmp_path, "--json")
    report = json.loads(done.stdout)
    assert report["trace"]["ranks_present"] == []
    assert [one["ranks"] for one in report["trace"]["sources"]] == [[], [], []]
    assert [one["rank_told"] for one in report["memory"]] == [False] * 3
    assert [problem["count"] for problem in report["problems"] if "timeline.raw.gz" in problem["message"]] == [1]
    of = {Path(one["path"]).name for one in report["advice"]["unpredicted"]}
    assert of == {"small.pickle", "large.pickle", "third.pickle"}
    shown = screen(report)
    assert "rank 0" not in shown
    for name in ("small.pickle", "large.pickle", "third.pickle", "timeline.raw.gz"):
        assert name in shown
    page = html_report.render(report)
    assert page.index('id="memory"') < page.index("<h3>large.pickle") < page.index("<h3>small.pickle")


def test_snapshots_of_ranks_are_ranks(tmp_path: Path) -> None:
    for rank in (0, 3):
        held(tmp_path / f"rank{rank}_oom.pickle", (100 + rank, LINEAR), (100, GRADIENT))
    report = gpuscope.analyze(tmp_path).report
    assert report["trace"]["ranks_present"] == [0, 3]
    assert report["findings"][0]["ranks"] == [0, 3]
    assert not any("path" in one for one in report["advice"]["unpredicted"])


def test_enormous_names_make_no_enormous_page(tmp_path: Path) -> None:
    """8 MB of names of frames: the page stays small, and says what was cut and what was left out."""
    stacks = [stack((f"f{i}_" + "x" * 20_000, "/job/model.py", i), TRAIN) for i in range(400)]
    path = held(tmp_path / "snap.pickle", *((2, frames) for frames in stacks))
    assert path.stat().st_size > 8_000_000
    report = gpuscope.analyze(path).report
    page = html_report.render(report)
    assert len(page) < 200_000
    assert len(json.dumps(report)) < 300_000
    assert [(one["code"], one["count"]) for one in report["problems"]] == [("frame_name_cut", 400)]
    assert str(FRAME_TEXT) in page
    left = report["memory"][0]["at_peak_left"]
    assert (left["lines"], left["bytes"]) == (388, 388 * 2 * MIB)
    assert "388 more lines" in page
    assert "392 more lines" in screen(report)
    assert len(screen(report, full=True)) < 20_000


def test_many_failed_requests_are_counted_and_a_few_told(tmp_path: Path) -> None:
    trace = events(
        ("segment_alloc", 0x1000, 20 * MIB), ("alloc", 0x1000, 20 * MIB), *[("oom", 1 * MIB, 50 * MIB)] * 300
    )
    path = snapshot(tmp_path / "snap.pickle", [segment(0x1000, (20 * MIB, "active_allocated"))], trace)
    report = gpuscope.analyze(path).report
    (entry,) = report["memory"]
    assert (len(entry["failures"]), entry["failures_left"]) == (16, 284)
    assert "284 more failed requests" in html_report.render(report)
    assert "297 more failed requests" in screen(report)


def test_stacks_are_asked_for_of_python_alone() -> None:
    """With those of C++ a snapshot took minutes in place of seconds."""
    unknown = {"kind": StackKind.NO_STACK.value, "bytes": 10}
    told = to_record({"peak_by_kind": [unknown], "peak_allocated_bytes": 10})  # type: ignore[typeddict-item]
    assert '_record_memory_history(stacks="python")' in told

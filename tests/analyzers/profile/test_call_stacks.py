"""From kernel to line: what goes back to which place of the program, and that nothing is lost or counted twice."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner
from helpers.kineto import call, kernel, note, op, python, write

import gpuscope
from gpuscope.plugins import COMMANDS, load
from gpuscope.report.html.drawing import flame
from gpuscope.report.view import call_tree
from gpuscope.report.view.call_tree import Row
from gpuscope.schema.document import Report
from gpuscope.trace.frameworks import is_own_frame

TRAIN, SLEEP, MODEL = "train.py(3): main", "loader.py(8): pause", "model.py(20): forward"
US = 1000


def trace(path: Path, rank: int = 0) -> Path:
    """A forward kernel of 100 µs under a module, a backward kernel of 200 on a thread of its own, 400 µs of idle time
    between: 300 in `pause`, the rest in `main`; then a collective of 50, all of it exposed, launched in `main`."""
    return write(
        path,
        python(0, 1000, TRAIN),
        python(5, 60, "nn.Module: Net_0"),
        python(6, 58, MODEL),
        python(7, 50, "torch/nn/modules/linear.py(124): forward"),
        op(8, 40, "aten::linear"),
        op(9, 30, "aten::addmm"),
        call(10, 5, 1),
        kernel(100, 100, 1, "gemm"),
        python(250, 300, SLEEP),
        op(570, 100, "autograd::engine::evaluate_function: AddmmBackward0", tid=2),
        call(580, 5, 2, tid=2),
        kernel(600, 200, 2, "gemm_backward"),
        call(700, 5, 3),
        kernel(800, 50, 3, "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevComm*)", stream=20),
        rank=rank,
        world_size=2,
    )


def test_backward_work_belongs_to_the_module_of_its_forward_operator(tmp_path: Path) -> None:
    """Of three operators with one number the last to begin made the node; without numbers backward stays with main."""
    path = write(
        tmp_path / "rank0.json",
        python(0, 1000, TRAIN),
        python(5, 20, "nn.Module: Dropout_0"),
        op(8, 5, "aten::empty", **{"Sequence number": 7}),
        python(30, 30, "nn.Module: Linear_0"),
        python(31, 25, MODEL),
        op(32, 20, "aten::linear", **{"Sequence number": 7}),
        op(33, 10, "aten::addmm", **{"Sequence number": 7}),
        call(34, 5, 1),
        kernel(100, 100, 1, "gemm"),
        op(570, 100, "autograd::engine::evaluate_function: AddmmBackward0", tid=2, **{"Sequence number": 7}),
        op(571, 90, "AddmmBackward0", tid=2, **{"Sequence number": 7}),
        call(580, 5, 2, tid=2),
        kernel(600, 200, 2, "gemm_backward"),
        op(680, 10, "autograd::engine::evaluate_function: Other", tid=2),
        call(682, 5, 3, tid=2),
        kernel(800, 50, 3),
    )
    entries = report_on(path)["call_tree"]
    modules = {row.name: row.device_ns for row in call_tree.rows(entries, "module")}
    assert modules == {"Linear_0": 300 * US, "": 50 * US}
    assert call_tree.covered(entries, "module") == pytest.approx(300 / 350)
    lines = {row.name: row.device_ns for row in call_tree.rows(entries, "line")}
    assert lines == {MODEL: 300 * US, TRAIN: 50 * US}


@pytest.mark.parametrize(
    "said",
    [
        {"module_fqn": "layers.0.attention", "str": "qkv"},
        {"str": "layers.0.attention"},
        {"annotation": "layers.0.attention"},
    ],
)
def test_kernels_of_a_graph_belong_to_what_the_program_called_their_part(tmp_path: Path, said: dict[str, str]) -> None:
    """As `mark_kernels` and torch's annotating of traces leave it; the second kernel was not marked."""
    graph = {"graph id": 3}
    path = write(
        tmp_path / "rank0.json",
        python(0, 100, TRAIN),
        op(1, 50, "graph_replay"),
        call(2, 1, 1, name="cudaGraphLaunch"),
        kernel(30, 40, 1, "gemm", **graph, **{"graph node id": 11}, **said),
        kernel(70, 60, 1, "add", **graph, **{"graph node id": 12}),
    )
    modules = {row.name: row.device_ns for row in call_tree.rows(report_on(path)["call_tree"], "module")}
    assert modules == {"layers.0.attention": 40 * US, "": 60 * US}


def report_on(*paths: Path) -> Report:
    """The report, without advice."""
    return gpuscope.analyze(*paths, advice=False).report


def test_each_figure_stands_at_its_place(tmp_path: Path) -> None:
    entries = report_on(trace(tmp_path / "rank0.json"))["call_tree"]
    assert call_tree.rows(entries, "line") == [
        Row(TRAIN, 250 * US, 50 * US, 100 * US),  # what the backward's thread launched among it
        Row(SLEEP, 0, 0, 300 * US),
        Row(MODEL, 100 * US, 0, 0),
    ]
    assert call_tree.rows(entries, "module") == [Row("", 250 * US, 50 * US, 400 * US), Row("Net_0", 100 * US, 0, 0)]
    assert call_tree.covered(entries, "line") == 1
    paths = {tuple(stack) for stack, _ in call_tree.stacks(entries)}
    assert (TRAIN, "Net_0", MODEL, "aten::linear", "aten::addmm", "gemm") in paths
    assert (TRAIN, "autograd::engine::evaluate_function: AddmmBackward0", "gemm_backward") in paths


def test_ranks_are_added_up(tmp_path: Path) -> None:
    one = report_on(trace(tmp_path / "a" / "rank0.json"))["call_tree"]
    two = report_on(*(trace(tmp_path / "b" / f"rank{rank}.json", rank) for rank in (0, 1)))["call_tree"]
    assert [entry["name"] for entry in one] == [entry["name"] for entry in two]
    assert [2 * entry["device_ns"] for entry in one] == [entry["device_ns"] for entry in two]


def test_places_of_one_kind_keep_every_figure(tmp_path: Path) -> None:
    """The module of a backward kernel too; what has none around it stands apart, and nothing is lost."""
    entries = report_on(trace(tmp_path / "rank0.json"))["call_tree"]
    for kind in ("module", "line"):
        drawn = call_tree.only(entries, kind)
        assert {one["kind"] for one in drawn} <= {kind, "kernel", "unknown"}
        assert [sum(call_tree.figures(one)[n] for one in drawn) for n in range(3)] == [
            sum(call_tree.figures(one)[n] for one in entries) for n in range(3)
        ]
    parents = {one["id"]: one["name"] for one in drawn}
    gemm = next(one for one in call_tree.only(entries, "module") if one["name"] == "gemm")
    modules = {one["id"]: one["name"] for one in call_tree.only(entries, "module")}
    assert modules[gemm["parent"] or 0] == "Net_0"
    assert parents[next(one for one in drawn if one["name"] == "gemm")["parent"] or 0] == MODEL


def test_small_places_count_for_the_one_above(tmp_path: Path) -> None:
    path = write(
        tmp_path / "rank0.json",
        python(0, 100, TRAIN),
        op(1, 10, "aten::small"),
        call(2, 1, 1),
        call(20, 1, 2),
        kernel(30, 1, 1, "tiny"),
        kernel(31, 100_000, 2, "large"),
    )
    entries = report_on(path)["call_tree"]
    assert [entry["name"] for entry in entries] == [TRAIN, "large"]
    assert sum(entry["device_ns"] for entry in entries) == 100_001 * US


@pytest.mark.parametrize("name", ["ddp_slow_rank", "pp_1f1b", "fsdp_healthy"])
def test_exposed_and_idle_time_add_up_to_the_breakdown(samples: Path, name: str) -> None:
    report = report_on(samples / name)
    for key, part in (("exposed_communication_ns", "exposed_communication"), ("idle_ns", "idle")):
        told = sum(entry[key] for entry in report["call_tree"])  # type: ignore[literal-required]
        assert told == sum(rank["recorded_breakdown_ns"][part] for rank in report["ranks"])  # type: ignore[literal-required]


@pytest.mark.parametrize(
    "name",
    ["tracelens_ddp", "tracelens_qwen/h100.json.gz", "torch_prof_tutorial/dc3b_1752215573993169006.pt.trace.json"],
)
def test_published_traces_with_stacks_lead_to_lines(shared_traces: Path, name: str) -> None:
    known = call_tree.covered(report_on(shared_traces / "kineto" / name)["call_tree"], "line")
    assert known is not None
    assert known >= 0.9


@pytest.mark.parametrize(
    ("frame", "own"),
    [
        ("train.py(3): main", True),
        ("models/gpt.py(120): forward", True),
        ("torch/nn/modules/linear.py(124): forward", False),
        ("threading.py(900): run", False),
        ("asyncio/runners.py(190): run", False),
        ("/usr/lib/python3.11/site-packages/apex/x.py(1): f", False),
        ("<built-in method run>", False),
        ("nn.Module: Linear_0", False),
    ],
)
def test_whose_a_frame_is(frame: str, own: bool) -> None:
    assert is_own_frame(frame) is own


@pytest.mark.parametrize("by", ["line", "module", "operator", "kernel", "tree"])
def test_the_command_prints_it(tmp_path: Path, by: str) -> None:
    path = trace(tmp_path / "rank0.json")
    result = CliRunner().invoke(load(COMMANDS, "analyze"), [str(path), "--by", by, "--no-store"])
    assert result.exit_code == 0
    wanted = {"line": SLEEP, "module": "Net_0", "operator": "aten::addmm", "kernel": "gemm_backward", "tree": MODEL}
    assert wanted[by] in result.output


def test_without_stacks_it_says_what_to_record(samples: Path) -> None:
    arguments = [str(samples / "ddp_slow_rank"), "--by", "line", "--no-store"]
    assert "with_stack=True" in CliRunner().invoke(load(COMMANDS, "analyze"), arguments).output


def test_exports_hold_the_same_time(tmp_path: Path) -> None:
    path, out = trace(tmp_path / "rank0.json"), (tmp_path / "s.json", tmp_path / "c.txt")
    arguments = [str(path), "--speedscope", str(out[0]), "--collapsed", str(out[1])]
    assert CliRunner().invoke(load(COMMANDS, "export"), arguments, standalone_mode=False).exception is None
    document = json.loads(out[0].read_text())
    sums = {one["name"]: (sum(one["weights"]), one["endValue"]) for one in document["profiles"]}
    assert sums == {
        "device time": (350 * US, 350 * US),
        "exposed communication": (50 * US, 50 * US),
        "idle time": (400 * US, 400 * US),
    }
    assert all(
        0 <= frame < len(document["shared"]["frames"])
        for one in document["profiles"]
        for s in one["samples"]
        for frame in s
    )
    lines = [line.rpartition(" ") for line in out[1].read_text().splitlines()]
    assert sum(int(weight) for _, _, weight in lines) == 750 * US
    assert f"{TRAIN};{SLEEP};(idle)" in {stack for stack, _, _ in lines}


def test_an_export_without_host_events_is_an_error(tmp_path: Path) -> None:
    path = write(tmp_path / "rank0.json", kernel(0, 10))
    result = CliRunner().invoke(load(COMMANDS, "export"), [str(path), "--speedscope", str(tmp_path / "s.json")])
    assert result.exit_code != 0
    assert not (tmp_path / "s.json").exists()


def test_the_picture_fits_its_frame(tmp_path: Path) -> None:
    found = flame(report_on(trace(tmp_path / "rank0.json")))
    assert found is not None
    assert all(float(box.x) >= 0 and float(box.x) + float(box.width) <= 960.2 for box in found.boxes)
    assert found.boxes[0].width == "960.0"


def test_ranges_are_places_too(tmp_path: Path) -> None:
    path = write(tmp_path / "rank0.json", note(0, 50, "encoder"), call(1, 1, 1), kernel(5, 10, 1))
    assert [entry["kind"] for entry in report_on(path)["call_tree"]] == ["range", "kernel"]

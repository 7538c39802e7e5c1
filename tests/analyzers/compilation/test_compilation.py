"""What compiling costs beside a trace: recompilations in steps, idle time between broken graphs, ranks unlike."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from helpers.kineto import Event, call, kernel, note, op, python, write

import gpuscope
from gpuscope.report.view import call_tree
from gpuscope.report.view.summary import summary

US = 1000


def logged(path: Path, *compiles: dict[str, Any], breaks: tuple[tuple[str, int, str], ...] = ()) -> Path:
    """A log with these compilations, and breaks of (compile id, line, reason)."""
    lines: list[str] = []

    def add(payload: str = "", **told: object) -> None:
        lines.append(f"V1123 20:39:24.554000 100 torch/x.py:1] {json.dumps(told)}")
        lines.extend(f"\t{line}" for line in payload.splitlines())

    for one in compiles:
        frame, nth = one["id"]
        ids = {"frame_id": frame, "frame_compile_id": nth, "attempt": 0}
        add(
            compilation_metrics={
                "co_name": one.get("name", "f"),
                "co_filename": "/a/train.py",
                "co_firstlineno": one.get("line", 3),
                "start_time_us": one["at"],
                "duration_us": one["dur"],
                "fail_type": one.get("fails"),
                "fail_reason": one.get("fails_for"),
            },
            **ids,
        )
        if "why" in one:
            add(f"{frame}/0: {one['why']}", artifact={"name": "recompile_reasons", "encoding": "json"}, **ids)
        if "schedule" in one:
            add(
                json.dumps(one["schedule"]),
                artifact={"name": "inductor_collective_schedule", "encoding": "json"},
                **ids,
            )
    for compile_id, line, reason in breaks:
        frame, nth = map(int, compile_id.split("/"))
        text = f"Graph break in user code at /a/train.py:{line}\nGraph Break Reason: {reason}\n  Hint: Take it out.\n"
        add(
            text,
            artifact={"name": "dynamo_graph_break_reason", "encoding": "string"},
            frame_id=frame,
            frame_compile_id=nth,
            attempt=0,
        )
    path.write_text("\n".join(lines) + "\n")
    return path


def steps(count: int = 6) -> list[Event]:
    """Steps of 1 ms: a compiled call breaks once; 300 µs lie between its graphs, in 200 of which the device idles."""
    events: list[Event] = []
    for k in range(count):
        at = 1000 * k
        events += [
            note(at, 1000, f"ProfilerStep#{k}"),
            op(at + 10, 900, "Torch-Compiled Region: 0/0"),
            op(at + 20, 100, "## Call CompiledFxGraph a ##"),
            call(at + 30, 5, 2 * k + 1),
            kernel(at + 40, 180, 2 * k + 1, "triton_poi_fused_sin_0"),
            op(at + 400, 300, "Torch-Compiled Region: 1/0"),
            op(at + 420, 100, "## Call CompiledFxGraph b ##"),
            call(at + 425, 5, 2 * k + 2),
            kernel(at + 430, 560, 2 * k + 2, "gemm"),
        ]
    return events


def test_the_idle_time_between_broken_graphs_is_the_cost_of_the_line(tmp_path: Path) -> None:
    write(tmp_path / "rank0.json", *steps())
    logged(
        tmp_path / "dedicated_log_torch_trace_rank_0_x.log",
        {"id": (0, 0), "at": 1, "dur": 1},
        {"id": (1, 0), "at": 2, "dur": 1, "name": "torch_dynamo_resume_in_f_at_5"},
        breaks=(("0/0", 5, "Data-dependent branching"),),
    )
    report = gpuscope.analyze(tmp_path).report
    (broken,) = report["compilation"]["graph_breaks"]
    assert (broken["line"], broken["per_step"], broken["host_ns_per_step"]) == (5, 1, 300 * US)
    assert broken["idle_ns_per_step"] == 200 * US
    (finding,) = (one for one in report["findings"] if one["code"] == "graph_break")
    assert (finding["cost_ns_per_step"], finding["severity"]) == (200 * US, "high")
    (advice,) = (one for one in report["advice"]["unpredicted"] if one["code"] == "whole_graph")
    assert "200.0 µs per step" in advice["why_not"]
    assert advice["setting"]["name"] == "torch.where"


def test_compiling_again_costs_its_time_in_steps(tmp_path: Path) -> None:
    write(tmp_path / "rank0.json", *steps())
    again = {"id": (0, 1), "at": 2_100, "dur": 400, "why": "tensor 'x' size mismatch at index 1. expected 4, actual 5"}
    logged(tmp_path / "dedicated_log_torch_trace_rank_0_x.log", {"id": (0, 0), "at": 100, "dur": 200}, again)
    report = gpuscope.analyze(tmp_path).report
    (entry,) = (one for one in report["compilation"]["compiles"] if one["recompiled"])
    assert (entry["step"], entry["dur_ns"]) == (2, 400 * US)
    (rank,) = report["compilation"]["ranks"]
    assert (rank["compile_ns"], rank["in_steps_ns"]) == (600 * US, 600 * US)
    (finding,) = (one for one in report["findings"] if one["code"] == "recompiling")
    assert finding["cost_ns"] == 400 * US
    (advice,) = (one for one in report["advice"]["unpredicted"] if one["code"] == "stable_guard")
    assert (advice["setting"]["name"], advice["setting"]["value"]) == ("torch._dynamo.mark_dynamic", "x, 1")


def test_ranks_that_compile_unlike_are_named(tmp_path: Path) -> None:
    size = "tensor 'x' size mismatch at index 0. expected 4, actual 5"
    for rank in range(4):
        more = [{"id": (0, 1), "at": 500, "dur": 100, "why": size}] if rank == 2 else []
        logged(tmp_path / f"dedicated_log_torch_trace_rank_{rank}_x.log", {"id": (0, 0), "at": 100, "dur": 200}, *more)
    report = gpuscope.analyze(tmp_path).report
    (unlike,) = report["compilation"]["divergence"]
    assert (unlike["kind"], unlike["groups"]) == ("compilations", [[0, 1, 3], [2]])
    (finding,) = (one for one in report["findings"] if one["code"] == "compile_divergence")
    assert "rank 2 differs at f (train.py:3)" in finding["message"]
    assert "alike_compiled" in {one["code"] for one in report["advice"]["unpredicted"]}


@pytest.mark.parametrize(
    "guard",
    [
        "___check_obj_id(L['self'].act(x, 2), {address})",
        "___check_type_id(L['x'], {address}), type=<class 'int'>",
        "id(G['f']) == {address}",
        "L['f'] is <function f at 0x{address:x}>",
        "___dict_version(G) == {address}",
        "tensor 'x' device mismatch. expected cuda:{rank}",
    ],
)
def test_addresses_do_not_tell_ranks_apart(tmp_path: Path, guard: str) -> None:
    for rank, address in enumerate((140439264606080, 139645370122560, 94371840)):
        why = guard.format(address=address, rank=rank)
        logged(
            tmp_path / f"dedicated_log_torch_trace_rank_{rank}_x.log",
            {"id": (0, 0), "at": 100, "dur": 200},
            {"id": (0, 1), "at": 500, "dur": 100, "why": why},
        )
    report = gpuscope.analyze(tmp_path).report
    assert report["compilation"]["divergence"] == []
    (finding,) = (one for one in report["findings"] if one["code"] == "recompiling")
    assert finding["ranks"] == [0, 1, 2]


@pytest.mark.parametrize(
    "guards",
    [
        (
            "tensor 'x' size mismatch at index 0. expected 65536, actual 131072",
            "tensor 'x' size mismatch at index 0. expected 65536, actual 262144",
        ),
        ("___check_obj_id(f, 140439264606080)", "___check_obj_id(g, 140439264606080)"),
        ("L['n'] == 100000", "L['n'] == 200000"),
    ],
)
def test_other_guards_and_numbers_still_tell_ranks_apart(tmp_path: Path, guards: tuple[str, str]) -> None:
    for rank, why in enumerate(guards):
        logged(
            tmp_path / f"dedicated_log_torch_trace_rank_{rank}_x.log",
            {"id": (0, 0), "at": 100, "dur": 200},
            {"id": (0, 1), "at": 500, "dur": 100, "why": why},
        )
    assert len(gpuscope.analyze(tmp_path).report["compilation"]["divergence"]) == 1


def test_a_break_that_names_an_address_is_one_line(tmp_path: Path) -> None:
    for rank in range(2):
        logged(
            tmp_path / f"dedicated_log_torch_trace_rank_{rank}_x.log",
            {"id": (0, 0), "at": 1, "dur": 1},
            breaks=(("0/0", 5, f"Unsupported: <F object at 0x7f{rank}a>"),),
        )
    (broken,) = gpuscope.analyze(tmp_path).report["compilation"]["graph_breaks"]
    assert broken["ranks"] == [0, 1]


@pytest.mark.parametrize("traced", [True, False])
def test_a_failed_compilation_stands_on_the_first_screen(tmp_path: Path, traced: bool) -> None:
    if traced:
        write(tmp_path / "rank0.json", *steps())
    failed = {"id": (0, 0), "at": 100, "dur": 200, "fails": "BackendCompilerFailed", "fails_for": "no kernel for X"}
    logged(tmp_path / "dedicated_log_torch_trace_rank_0_x.log", failed)
    done = gpuscope.analyze(tmp_path)
    (finding,) = (one for one in done.report["findings"] if one["code"] == "compile_failed")
    assert finding["message"] == (
        "torch.compile failed at f (train.py:3), which runs uncompiled: BackendCompilerFailed: no kernel for X"
    )
    shown = summary(done.report)
    assert finding["message"] in (shown.limits if traced else shown.lines.what)  # without a trace it leads


def test_a_compilation_that_works_is_no_caveat(tmp_path: Path) -> None:
    write(tmp_path / "rank0.json", *steps())
    logged(tmp_path / "dedicated_log_torch_trace_rank_0_x.log", {"id": (0, 0), "at": 100, "dur": 200})
    assert "compile" not in summary(gpuscope.analyze(tmp_path).report).limits


def test_alike_ranks_and_whole_graphs_are_no_finding(tmp_path: Path) -> None:
    for rank in range(2):
        same = {"id": (0, 0), "at": 100, "dur": 200, "schedule": ["torch.ops._c10d_functional.all_reduce.default"]}
        logged(tmp_path / f"dedicated_log_torch_trace_rank_{rank}_x.log", same)
    report = gpuscope.analyze(tmp_path).report
    assert report["findings"] == []
    assert report["advice"]["unpredicted"] == []
    assert report["compilation"]["divergence"] == []


@pytest.mark.parametrize(
    ("guard", "setting"),
    [
        ("s == 0.1", "torch._dynamo.config.specialize_float"),
        ("GLOBAL_STATE changed: grad_mode", "torch.no_grad"),
        ("tensor 'x' dtype mismatch. expected Double, actual Float", "inputs"),
        ("n == 3", "torch.compile.dynamic"),
    ],
)
def test_each_guard_has_its_setting(tmp_path: Path, guard: str, setting: str) -> None:
    path = logged(
        tmp_path / "dedicated_log_torch_trace_x.log",
        {"id": (0, 0), "at": 1, "dur": 1},
        {"id": (0, 1), "at": 5, "dur": 1, "why": guard},
    )
    (advice,) = gpuscope.analyze(path).report["advice"]["unpredicted"]
    assert advice["setting"]["name"] == setting


def test_generated_kernels_are_led_to_their_line(tmp_path: Path) -> None:
    write(tmp_path / "rank0.json", python(0, 6000, "train.py(9): main"), *steps())
    graph = "# File: /a/train.py:3 in f, code: y = x.sin()\nsin = torch.ops.aten.sin.default(arg0_1)\n"
    code = "# Source node to ATen node mapping:\n#   y => sin\ntriton_poi_fused_sin_0 = async_compile.triton('x', '''\n"
    ids = {"frame_id": 0, "frame_compile_id": 0, "attempt": 0}
    prefix = "V1123 20:39:24.554000 100 torch/x.py:1] "
    texts = [
        (json.dumps({"inductor_post_grad_graph": {}, **ids}), graph),
        (json.dumps({"inductor_output_code": {}, **ids}), code),
    ]
    (tmp_path / "dedicated_log_torch_trace_rank_0_x.log").write_text(
        "".join(f"{prefix}{told}\n" + "".join(f"\t{line}\n" for line in text.splitlines()) for told, text in texts)
    )
    rows = {row.name: row.device_ns for row in call_tree.rows(gpuscope.analyze(tmp_path).report["call_tree"], "line")}
    assert rows["/a/train.py(3): f"] == 6 * 180 * US
    assert rows["train.py(9): main"] == 6 * 560 * US


def test_compiling_is_no_compute_on_a_cpu(tmp_path: Path) -> None:
    """What runs while a frame is compiled, and what only leads to a graph, computes nothing of the step."""
    events = [
        note(0, 1000, "ProfilerStep#0"),
        op(0, 700, "entire_frame_compile"),
        op(100, 300, "aten::mm"),
        op(710, 280, "Torch-Compiled Region: 0/0"),
        op(720, 200, "## Call CompiledFxGraph a ##"),
    ]
    report = gpuscope.analyze(write(tmp_path / "rank0.json", *events, rank=None)).report
    assert report["ranks"][0]["breakdown_ns"]["compute"] == 200 * US

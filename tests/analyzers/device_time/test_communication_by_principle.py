"""Kernels of communication libraries that no list names: by namespace, by what launched them, else doubted."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from helpers.kineto import call, kernel, note, op, python, write
from helpers.nsys import Export

import gpuscope
from gpuscope.schema.document import Report

STEPS = 10
DISPATCH = "void dpsk::ep::internode::dispatch<false, 8, false, 65536>(int4*, float*, int*)"
COMBINE = "void dpsk::ep::internode::combine<8, __nv_bfloat16>(int4*, float*)"
NOTIFY = "void dpsk::ep::internode::notify_dispatch<false, 8>(int const*, int*)"


def layers(dispatch: str = DISPATCH, combine: str = COMBINE, notify: str = NOTIFY) -> list[Any]:
    """Ten steps of 12.9 ms: compute for 12.5 of them, beside it 11.3 ms of dispatch and combine, 0.4 ms exposed."""
    events: list[Any] = []
    number = 0

    def launched(at: float, took: float, name: str, stream: int) -> None:
        nonlocal number
        number += 1
        events.extend([call(at - 30, 5, number), kernel(at, took, number, name, stream)])

    for step in range(STEPS):
        begin = 100 + 12_900 * step
        events.append(note(begin - 40, 12_800, f"ProfilerStep#{step}"))
        for place in range(125):
            launched(begin + 100 * place, 100, "ampere_bf16_s16816gemm_bf16_128x64", 7)
        launched(begin + 1_600, 300, notify, 20)
        launched(begin + 1_900, 5_500, dispatch, 20)
        launched(begin + 7_400, 5_500, combine, 20)
    return events


def communicated(report: Report) -> tuple[int, int]:
    """ns of communication per step, and ns of it that are exposed."""
    (rank,) = report["ranks"]
    steps = rank["steps"]
    return rank["communication_ns"] // steps, rank["breakdown_ns"]["exposed_communication"] // steps


def test_a_profile_of_the_shape_of_deepseeks(tmp_path: Path) -> None:
    """113 of 129 ms busy with communication, 4 ms of them exposed."""
    report = gpuscope.analyze(write(tmp_path / "r.json", *layers())).report
    assert communicated(report) == (11_300_000, 400_000)
    known = {entry["name"]: entry["known_by"] for entry in report["kernels"]}
    assert [known[name] for name in (DISPATCH, COMBINE, NOTIFY)] == ["namespace"] * 3
    assert known["ampere_bf16_s16816gemm_bf16_128x64"] is None


def test_an_unknown_kernel_that_behaves_so_is_named_and_doubted(tmp_path: Path) -> None:
    """The same under names that nobody knows: compute, but not surely."""
    named = gpuscope.analyze(write(tmp_path / "a.json", *layers("xq_phase_a", "xq_phase_b", "xq_phase_c"))).report
    plain = gpuscope.analyze(write(tmp_path / "b.json", *layers(*["some_sgemm_kernel"] * 3))).report
    assert communicated(named) == communicated(plain) == (0, 0)
    said = {p["message"] for p in named["problems"] if p["code"] == "looks_like_communication"}
    assert {message.rpartition(": ")[2] for message in said} == {"xq_phase_a", "xq_phase_b", "xq_phase_c"}
    assert "looks_like_communication" not in {p["code"] for p in plain["problems"]}
    assert named["verdict"]["confidence"] == 0.6 < plain["verdict"]["confidence"]
    assert any("behave like communication" in limit for limit in named["verdict"]["limits"])


@pytest.mark.parametrize(
    ("around", "operation"),
    [
        (op(90, 100, "c10d::alltoall_base_"), "all_to_all"),
        (op(90, 100, "symm_mem::one_shot_reduce_scatter"), "reduce_scatter"),
        (python(90, 100, "deep_ep/buffer.py(301): dispatch"), "all_to_all"),
        (python(90, 100, "<built-in method combine of deep_ep_cpp.Buffer object at 0x7f>"), "all_to_all"),
        (note(90, 100, "uccl::notify_dispatch"), "all_to_all"),
        # Beside the library's exchanges: layouts, waiting for others' work, and what the framework does for it.
        (python(90, 100, "deep_ep/buffer.py(250): get_dispatch_layout"), None),
        (op(90, 100, "c10d_functional::wait_tensor"), None),
        (op(90, 100, "aten::mm"), None),
    ],
)
def test_by_what_launched_it(tmp_path: Path, around: Any, operation: str | None) -> None:
    path = write(tmp_path / "r.json", around, call(100, 5, 1), kernel(120, 50, 1, "xq_phase_a"))
    trace = gpuscope.open_trace(path)
    assert [trace.names[code] for code in trace["collectives"]["op"].tolist()] == ([operation] if operation else [])
    known = [entry["known_by"] for entry in gpuscope.analyze(path).report["kernels"]]
    assert known == ["launcher" if operation else None]


@pytest.mark.parametrize(
    ("name", "inner"),
    [
        # c10d flattens by an operator of its own, and a kernel that adds is an addition whoever launches it.
        ("xq_phase_a", op(95, 50, "aten::copy_")),
        ("void at::native::vectorized_elementwise_kernel<4, at::native::AddFunctor<float>>(int)", note(0, 1, "x")),
    ],
)
def test_what_a_collective_has_done_for_it_computes(tmp_path: Path, name: str, inner: Any) -> None:
    outer = op(90, 100, "c10d::allgather_")
    path = write(tmp_path / "r.json", outer, inner, call(100, 5, 1), kernel(120, 50, 1, name))
    assert len(gpuscope.open_trace(path)["collectives"]) == 0


def test_by_the_range_around_the_launch_in_nsys(tmp_path: Path) -> None:
    export = Export()
    export.range(90, 200, "c10d::allreduce_")
    export.call(100, 105, 1)
    export.kernel(120, 170, 1, "xq_phase_a")
    trace = gpuscope.open_trace(export.write(tmp_path))
    assert [trace.names[code] for code in trace["collectives"]["op"].tolist()] == ["all_reduce"]

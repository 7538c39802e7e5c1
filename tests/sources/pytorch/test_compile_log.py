"""Logs of torch.compile: what torch writes itself (with a backend that compiles nothing), other versions, damage."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import gpuscope
from gpuscope.errors import InputError
from gpuscope.sources.pytorch.compile_log import places_by_code, places_by_mapping

SCRIPT = """
import torch

@torch.compile(backend="eager")
def scaled(x, factor):
    return x * factor

@torch.compile(backend="eager")
def stopped(x):
    return x * x.sum().item()

for size in (4, 5):
    scaled(torch.ones(size), 2.0)
stopped(torch.ones(3))
"""


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the log that torch writes of the script."""
    pytest.importorskip("torch")
    folder = tmp_path_factory.mktemp("compile")
    script = folder / "train.py"
    script.write_text(SCRIPT)
    environment = {**os.environ, "TORCH_TRACE": str(folder / "logs")}
    subprocess.run([sys.executable, str(script)], env=environment, check=True, capture_output=True, timeout=300)
    return folder / "logs"


def test_torchs_own_log_is_read_line_by_line(log: Path) -> None:
    tables = gpuscope.open_trace(log).tables
    compiles = [(row.compile_id, row.function, row.line, row.reason) for row in tables["compilations"].itertuples()]
    assert ("0/0", "scaled", 4) in [one[:3] for one in compiles]
    (again,) = (one for one in compiles if one[0] == "0/1")
    assert again[3] == "tensor 'x' size mismatch at index 0. expected 4, actual 5"
    assert (tables["compilations"]["end"] > tables["compilations"]["start"]).all()
    (broken,) = tables["graph_breaks"].itertuples()
    assert (Path(broken.file).name, broken.line) == ("train.py", 10)
    assert "Tensor.item()" in broken.reason
    assert "capture_scalar_outputs" in broken.hint


def test_the_report_names_the_guard_and_the_settings(log: Path) -> None:
    report = gpuscope.analyze(log).report
    section = report["compilation"]
    assert section["ranks"][0]["recompiles"] == 1
    assert section["ranks"][0]["in_steps_ns"] is None  # no trace lies beside it
    assert {one["code"] for one in report["findings"]} == {"recompiling", "graph_break"}
    settings = {(one["setting"]["name"], one["setting"]["value"]) for one in report["advice"]["unpredicted"]}
    assert ("torch._dynamo.mark_dynamic", "x, 0") in settings
    assert ("torch._dynamo.config.capture_scalar_outputs", "True") in settings


def entry(at: str = "20:39:24.554000", payload: str = "", **told: object) -> str:
    body = "".join(f"\t{line}\n" for line in payload.splitlines())
    return f"V1123 {at} 100 torch/x.py:1] {json.dumps(told)}\n{body}"


FRAME = {"frame_id": 0, "frame_compile_id": 0, "attempt": 0}


def test_metrics_of_other_versions(tmp_path: Path) -> None:
    """Seconds alone; no times but those of the events; a failure; a cut entry."""
    metrics = {"co_name": "f", "co_filename": "/a/train.py", "co_firstlineno": 7}
    begin, end = ({"name": "dynamo", "ts": at, "ph": phase} for at, phase in ((1e15, "B"), (1e15 + 2e6, "E")))
    text = (
        entry(compilation_metrics={**metrics, "start_time": 1e9, "entire_frame_compile_time_s": 0.5}, **FRAME)
        + entry(chromium_event={}, payload=json.dumps(begin), **{**FRAME, "frame_id": 1})
        + entry(chromium_event={}, payload=json.dumps(end), **{**FRAME, "frame_id": 1})
        + entry(
            compilation_metrics={**metrics, "fail_type": "Unsupported", "fail_reason": "no\nmore"},
            **{**FRAME, "frame_id": 1},
        )
        + 'V1123 20:39:24.554000 100 torch/x.py:1] {"artifact": {"na\n'
    )
    path = tmp_path / "dedicated_log_torch_trace_rank_3_x.log"
    path.write_text(text)
    trace = gpuscope.open_trace(path)
    first, second = trace.tables["compilations"].itertuples()
    assert (first.rank, first.start, first.end) == (3, 10**18, 10**18 + 500_000_000)
    assert (second.start, second.end) == (10**18, 10**18 + 2 * 10**9)
    assert second.failed == "Unsupported: no"
    assert [problem.count for problem in trace.problems] == [1]


def test_a_file_without_an_entry_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "dedicated_log_torch_trace_x.log"
    path.write_text("V1123 20:39:24.554000 100 torch/x.py:1] {\n")
    with pytest.raises(InputError, match="no entry"):
        gpuscope.open_trace(path)


GRAPH = """
class GraphModule(torch.nn.Module):
    def forward(self, arg0_1: "f32[4]"):
        # File: /a/train.py:3 in f, code: y = x.sin()
        sin: "f32[4]" = torch.ops.aten.sin.default(arg0_1)

        # File: /a/train.py:4 in f, code: return y + 1
        add: "f32[4]" = torch.ops.aten.add.Tensor(sin, 1)
        mul: "f32[4]" = torch.ops.aten.mul.Tensor(add, 2)
"""
CODE = """
# kernel path: /tmp/x.py
# Topologically Sorted Source Nodes: [y, add], Original ATen: [aten.sin, aten.add]
# Source node to ATen node mapping:
#   add => add, mul
#   y => sin
triton_poi_fused_add_sin_0 = async_compile.triton('triton_poi_fused_add_sin_0', '''
"""


def test_kernels_come_from_the_line_of_most_of_their_nodes() -> None:
    assert list(places_by_code(CODE, GRAPH)) == [("triton_poi_fused_add_sin_0", "/a/train.py(4): f")]
    mapping = json.dumps({"cppCodeToPost": {"cpp_fused_sin_0:1": ["sin"]}})
    assert list(places_by_mapping(mapping, GRAPH)) == [("cpp_fused_sin_0", "/a/train.py(3): f")]
    assert list(places_by_mapping("[", GRAPH)) == []


def test_shared_logs(shared_traces: Path) -> None:
    """tlparse's own: three ranks of which one compiles other collectives; a failure; Triton's kernels by line."""
    folder = shared_traces / "compile"
    report = gpuscope.analyze(folder / "tlparse_multi_rank_schedule").report
    (finding,) = (one for one in report["findings"] if one["code"] == "compile_divergence")
    assert (finding["ranks"], finding["severity"]) == ([1], "high")
    first = report["compilation"]["divergence"][0]
    assert (first["kind"], first["groups"], first["line"]) == ("schedule", [[0, 2], [1]], 28)
    assert "reduce_scatter" in first["what"][0]
    assert "reduce_scatter" not in first["what"][1]
    failure = gpuscope.analyze(folder / "tlparse_comp_failure.log").report["compilation"]["compiles"][0]
    assert failure["failed"] == "BackendCompilerFailed: backend='broken_backend' raised:"
    simple = gpuscope.open_trace(folder / "tlparse_simple.log").tables["compiled_kernels"]
    assert [row.place.endswith("test_torchinductor.py(11119): helper") for row in simple.itertuples()] == [True]

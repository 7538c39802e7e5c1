"""Inference servers: steps and phases, causes, words and advice, on simulated servers with known faults."""

from __future__ import annotations

import io
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from helpers.analysed import report as analysed
from rich.console import Console
from simulator.kineto_rows import Profiler
from simulator.serving import DECODES, SERVERS, Server

import gpuscope
from gpuscope.analyzers.advice.rule import Case
from gpuscope.analyzers.advice.rules import serving_rules
from gpuscope.analyzers.what_if_changes import Refused
from gpuscope.catalogue.findings import serving as kinds
from gpuscope.errors import InputError
from gpuscope.report.html import html_report
from gpuscope.report.terminal import report_text
from gpuscope.schema.document import Report
from gpuscope.trace.frameworks import Batch, attention_phase, batch_of, program

OF_SERVERS = {kind.code for kind in vars(kinds).values() if isinstance(kind, type) and hasattr(kind, "code")}
ADVICE = {
    "eager_decode": {"decode_graphs", "server_cores"},
    "uncaptured_batch": {"graph_sizes"},
    "prefill_stalls_decode": {"smaller_chunks"},
    "scheduler_gap": {"overlapped_scheduling", "server_cores"},
    "small_all_reduces": {"fused_all_reduce", "smaller_tensor_parallel"},
}
OF_TRAINING = ("optimizer", "gradient", "ddp", "fsdp", "backward", "training", "dataloader", "data loader")


def phases(found: Report, rank: int = 0) -> list[str | None]:
    return [step.get("phase") for step in found["steps"] if step["rank"] == rank and step["step"] is not None]


def codes(found: Report) -> list[str]:
    """Of findings on servers, the costliest first."""
    own = [one for one in found["findings"] if one["code"] in OF_SERVERS]
    return [one["code"] for one in sorted(own, key=lambda one: -one["share_frac"])]


def proposed(found: Report) -> set[str]:
    return {one["code"] for one in (*found["suggestions"], *found["advice"]["unpredicted"])}


def text(found: Report) -> str:
    console = Console(file=io.StringIO(), width=120)
    report_text.render(found, console)
    return console.file.getvalue()  # type: ignore[attr-defined, no-any-return]


@pytest.mark.parametrize("server", SERVERS, ids=lambda one: one.name)
def test_phases_causes_and_words(server: Server, tmp_path: Path) -> None:
    found = gpuscope.analyze(server.write(tmp_path)).report
    for rank in range(server.ranks):
        assert phases(found, rank) == server.labels
    assert found["trace"]["program"] == "server"
    assert found["steps_provenance"] == ("measured" if server.marks else "inferred")
    calm = server.cause is None and not server.name.endswith("_phases")  # there prompts come between answers
    assert codes(found)[:1] == ([] if calm else [server.cause or "prefill_stalls_decode"])
    known = server.cause is not None and server.marks != "tensorrt_llm"  # whose options we do not know
    assert proposed(found) == (ADVICE[server.cause] if known else set())
    shown = text(found)
    assert "Serving by phase" in shown
    assert not [word for word in OF_TRAINING if word in shown.lower()]
    sections = {one["phase"]: one for one in found["serving"]["phases"]}
    assert sum(one["steps"] for one in sections.values()) <= len(server.labels) * server.ranks
    assert sum(one["share_frac"] for one in sections.values()) == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("name", "batch"),
    [
        ("execute_context_1(512)_generation_32(32)", Batch("mixed", 1, 512, 32, 32)),
        ("execute_context_0(0)_generation_64(64)", Batch("decode", 0, 0, 64, 64)),
        (
            "execute_14721_context_2(sq14721sk14721sqsq1sqsk1)_generation_0(sq0sk0sqsq0sqsk0)",
            Batch("prefill", 2, 14721, 0, 0),
        ),
        (
            "execute_8192_context_9(sq8155sk8430sqsq7sqsk7)_generation_37(sq37sk34489sqsq37sqsk34489)",
            Batch("mixed", 9, 8155, 37, 37),
        ),
        ("execute_new_2_cached_0", Batch("prefill", 2, None, 0, 0)),
        ("execute_new_1_cached_8", Batch("mixed", 1, None, 8, 8)),
        ("execute_context_0(0)_generation_0(0)", Batch(None, 0, 0, 0, 0)),
        ("capture_512_PIECEWISE", Batch("capture", decode_tokens=512)),
        ("capture_128_decode", Batch("capture", decode_tokens=128)),
        ("step[EXTEND bs=2 toks=14721]", Batch("prefill", 2, 14721, 0, 0)),
        ("step[DECODE bs=64]", Batch("decode", 0, 0, 64, 64)),
        ("step[DECODE bs=64 g_sq=128 g_sqsq=256 g_sqsk=262144 g_sk=131072]", Batch("decode", 0, 0, 64, 128)),
        ("step[VERIFY bs=8]", Batch("decode", 0, 0, 8, None)),
        ("step[MIXED bs=2]", Batch("mixed")),
        (
            "step[MIXED bs=2 c=1 g=1 c_sq=5 c_sk=8 c_sqsq=25 c_sqsk=40 g_sq=1 g_sk=12 g_sqsq=1 g_sqsk=12]",
            Batch("mixed", 1, 5, 1, 1),
        ),
        ("step[IDLE bs=0]", Batch(None)),
        ("step[DRAFT bs=8]", None),
        ("[Executor] _forward_step 7: 1 ctx reqs, 0 gen reqs", Batch("prefill", 1, None, 0, 0)),
        ("[Executor] _forward_step 6: 0 ctx reqs, 0 ctx tokens, 32 gen reqs", Batch("decode", 0, 0, 32, 32)),
        ("decode[bs=117/128 tok=117 d=117]", Batch("decode", 0, 0, 117, 117)),
        ("decode[bs=128 tok=384 p=2 d=126 sqsq=132612]", Batch("mixed", 2, None, 126, 126)),
        ("prefill[bs=2 tok=14721 ctx=[7803, 6918]]", Batch("prefill", 2, 14721, 0, 0)),
        ("step", None),
        ("train_step[3]", None),
        ("execute_context", None),
        (f"step[DECODE bs={'9' * 50}]", None),
    ],
)
def test_names_of_steps(name: str, batch: Batch | None) -> None:
    assert batch_of(name) == batch


def test_names_of_attention() -> None:
    assert attention_phase("flashinfer::BatchDecodeWithPagedKVCacheKernel") == "decode"
    assert attention_phase("flashinfer::BatchPrefillWithPagedKVCacheKernel") == "prefill"
    assert attention_phase("kernel_unified_attention_2d") is None  # runs both
    both = ["vllm::unified_attention", "Optimizer.step#AdamW.step"]
    assert [program(names, {"kineto"}, True) for names in (both[:1], both)] == ["server", "pytorch"]


def test_figures_of_a_server(tmp_path: Path) -> None:
    """Two decode batches beside prompts: what is told of each is what was put in."""
    found = gpuscope.analyze(replace(SERVERS[0], name="one").write(tmp_path)).report
    serving = found["serving"]
    prefill, decode = (next(one for one in serving["phases"] if one["phase"] == name) for name in ("prefill", "decode"))
    assert (prefill["prefill_tokens"], decode["decode_requests"], serving["server"]) == (2_000, 32, "vllm")
    assert decode["tokens_per_s"] == pytest.approx(32e9 / decode["step_ns"], rel=0.05)
    assert (decode["graphs"], prefill["graphs"]) == (1, 0)
    assert decode["graphed_frac"] > 0.9 > prefill["graphed_frac"]
    interval = serving["token_interval"]
    assert interval is not None
    assert interval["median_ns"] == serving["decode_alone_ns"] == decode["step_ns"]
    assert serving["first_token"] is not None
    assert serving["first_token"]["median_ns"] == prefill["step_ns"]
    assert {one["kind"] for one in decode["work"]} == {"attention", "gemm", "other"}
    assert [one["requests"] for one in serving["batches"]] == [32]
    (products,) = [one for one in prefill["work"] if one["kind"] == "gemm"]  # of an H100 with 989.4 TFLOP/s
    assert products["floor_frac"] == pytest.approx(2 * 2_000 * 4_096**2 / 989.4e3 / 86_000, rel=0.01)
    assert 'id="serving"' in html_report.render(found)


def test_captured_sizes(tmp_path: Path) -> None:
    server = next(one for one in SERVERS if one.name == "vllm_phases")
    found = gpuscope.analyze(server.write(tmp_path)).report
    assert found["serving"]["captured"] == [32, 64]
    assert [step["role"] for step in found["steps"] if step.get("phase") == "capture"] == ["warmup", "warmup"]


@pytest.mark.parametrize(
    ("name", "changed", "code"),
    [
        ("vllm_eager", {"captured": 64}, "decode_graphs"),
        ("vllm_uncaptured", {"captured": 64}, "graph_sizes"),
        ("vllm_scheduler", {"overlapped": True}, "overlapped_scheduling"),
        ("vllm_messages", {"message_ns": 1_000}, "fused_all_reduce"),
    ],
)
def test_a_changed_server_takes_what_was_told(name: str, changed: dict[str, Any], code: str, tmp_path: Path) -> None:
    server = next(one for one in SERVERS if one.name == name)
    told = gpuscope.analyze(server.write(tmp_path)).report
    truth = gpuscope.analyze(replace(server, name="changed", **changed).write(tmp_path)).report["step_time"]
    assert truth is not None
    ranges = {one["code"]: (one["predicted"]["low_ns"], one["predicted"]["high_ns"]) for one in told["suggestions"]}
    for one in told["advice"]["unpredicted"]:
        if "bound" in one:
            ranges[one["code"]] = (one["bound"]["step_ns_low"], one["bound"]["step_ns_before"])
    low, high = ranges[code]
    assert low <= truth["median_ns"] <= high


@pytest.mark.parametrize("marks", ["vllm", "sglang", ""])
def test_a_rank_missing_leaves_small_messages_open(marks: str, tmp_path: Path) -> None:
    server = next(one for one in SERVERS if one.name == f"{marks or 'unmarked'}_messages")
    found = gpuscope.analyze(server.write(tmp_path, Profiler(left_out=(1,)))).report
    assert phases(found) == server.labels
    assert codes(found) == []
    assert (found["verdict"]["bound_by"], found["verdict"]["cause_abstained"]) == ("communication", True)


@pytest.mark.parametrize("marks", ["vllm", "sglang", ""])
def test_a_cut_file_keeps_the_phases_that_it_holds(marks: str, tmp_path: Path) -> None:
    server = Server("cut", (*DECODES, *DECODES), marks=marks)
    (path,) = server.write(tmp_path).iterdir()
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) * 7 // 10])
    with pytest.raises(InputError):
        gpuscope.analyze(path)
    found = phases(gpuscope.analyze(path, partial=True).report)
    assert set(found) <= {"decode", None}


def test_vllms_mixed_step(shared_traces: Path) -> None:
    """One step of 9 prompts (8155 tokens) and 37 answers, as its name tells: 8192 tokens in 156.5 ms."""
    found = analysed(shared_traces / "inference" / "vllm_prefilldecode_piecewise")
    assert phases(found) == ["mixed"]
    assert codes(found) == ["prefill_stalls_decode"]
    assert found["serving"]["phases"][0]["tokens_per_s"] == pytest.approx(8192 / 0.1564664)
    assert proposed(found) == {"smaller_chunks"}


FACTS: dict[str, dict[str, Any]] = {
    "eager_decode": {"launches": 99},
    "uncaptured_batch": {"batches": [48], "captured": 32},
    "prefill_stalls_decode": {"prompt_tokens": 8000.0, "interval_ns": 20, "alone_ns": None},
    "scheduler_gap": {"gap_ns": 5},
    "small_all_reduces": {"per_step": 24.0, "mean_ns": 7},
}


@pytest.mark.parametrize(
    ("server", "version", "code", "names"),
    [
        ("vllm", "0.33.0", "eager_decode", ["--enforce-eager", "--numa-bind"]),
        ("vllm", "0.33.0", "uncaptured_batch", ["--max-cudagraph-capture-size"]),
        ("vllm", "0.11.0", "uncaptured_batch", ["--cuda-graph-sizes"]),
        ("vllm", "", "prefill_stalls_decode", ["--max-num-batched-tokens"]),
        ("vllm", "0.33.0", "scheduler_gap", ["--async-scheduling", "--numa-bind"]),
        (
            "vllm",
            "0.33.0",
            "small_all_reduces",
            ["--compilation-config.pass_config.fuse_allreduce_rms", "--tensor-parallel-size"],
        ),
        (
            "vllm",
            "0.11.0",
            "small_all_reduces",
            ["--compilation-config.pass_config.enable_fi_allreduce_fusion", "--tensor-parallel-size"],
        ),
        ("sglang", "0.5.23", "eager_decode", ["--disable-cuda-graph", "--numa-node"]),
        ("sglang", "0.5.23", "uncaptured_batch", ["--cuda-graph-max-bs-decode"]),
        ("sglang", "0.5.12", "uncaptured_batch", ["--cuda-graph-max-bs"]),
        ("sglang", "0.5.12", "prefill_stalls_decode", ["--chunked-prefill-size"]),
        ("sglang", "0.5.12", "scheduler_gap", ["--disable-overlap-schedule", "--numa-node"]),
        ("sglang", "0.5.23", "small_all_reduces", ["--flashinfer-allreduce-fusion-backend", "--tensor-parallel-size"]),
        ("sglang", "0.5.12", "small_all_reduces", ["--enable-flashinfer-allreduce-fusion", "--tensor-parallel-size"]),
        ("tensorrt_llm", "", "eager_decode", []),
    ],
)
def test_options_by_version(server: str, version: str, code: str, names: list[str]) -> None:
    report: Any = {
        "serving": {},
        "steps": [{"role": "steady", "phase": "decode"}, {"role": "steady", "phase": "prefill"}],
        "trace": {
            "frameworks": [server],
            "parallelism": {"tp": 8},
            "world_size": 8,
            "setup": {"versions": {server: version}, "variables": {}, "cores_per_rank": None, "stacks": False},
        },
        "ranks": [],
    }
    finding: Any = {"code": code, "facts": FACTS[code], "share_frac": 0.2, "message": "It waits"}
    found = list(serving_rules.propose(Case(report, lambda _: Refused("a test")), finding))
    assert [one.setting["name"].rpartition(" ")[2] for one in found] == names


def test_training_is_no_server(samples: Path) -> None:
    found = analysed(samples / "ddp_healthy")
    assert "serving" not in found
    assert {step.get("phase") for step in found["steps"]} == {None}

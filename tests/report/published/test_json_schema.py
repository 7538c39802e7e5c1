"""What `--json` prints fits its published schema, and the schema knows every key of it."""

from __future__ import annotations

import json
import math
import pickle
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import click
import pytest
from fuzzing.seeds import MATRIX, recorder
from helpers.cli import call

from gpuscope.cli import cli
from gpuscope.report.published import DIALECT, DOCUMENTS, json_schema

jsonschema = pytest.importorskip("jsonschema")
ROOT = Path(__file__).resolve().parents[3]
SAMPLES = sorted(path.parent.name for path in (ROOT / "sample_traces").glob("*/manifest.json"))


def closed(schema: Any) -> Any:
    """The schema without the room that it leaves for keys of later versions."""
    if isinstance(schema, list):
        return [closed(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    inner = {key: closed(value) for key, value in schema.items()}
    return {**inner, "additionalProperties": False} if "properties" in schema and "type" in schema else inner


@cache
def strict(kind: str) -> Any:
    return jsonschema.Draft202012Validator(closed(json_schema(kind)))


def fits(document: Any, kind: str) -> None:
    errors = strict(kind).iter_errors(document)
    assert [f"{error.json_path}: {error.message[:200]}" for error in errors][:5] == []


@pytest.mark.parametrize("kind", DOCUMENTS)
def test_a_schema_is_one(kind: str) -> None:
    schema = json_schema(kind)
    jsonschema.Draft202012Validator.check_schema(schema)
    assert schema["$schema"] == DIALECT
    assert schema["$id"] == f"urn:gpuscope:{kind}:{DOCUMENTS[kind].version}"


def test_there_are_samples() -> None:
    assert len(SAMPLES) >= 17


@pytest.mark.parametrize("sample", SAMPLES)
def test_the_report_of_every_sample(sample: str, samples: Path, capsys: pytest.CaptureFixture[str]) -> None:
    done = call(capsys, "analyze", samples / sample, "--json")
    fits(json.loads(done.stdout), "report")
    done = call(capsys, "info", samples / sample, "--json")
    fits(json.loads(done.stdout), "info")


def test_comparisons_and_plans(samples: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pair = (samples / "ddp_slow_rank", samples / "ddp_healthy")
    fits(json.loads(call(capsys, "diff", *pair, "--json").stdout), "diff")
    checked = call(capsys, "check", pair[1], "--baseline", pair[0], "--json")
    fits(json.loads(checked.stdout), "diff")
    for cluster in ("8xH100", "2x8xA100"):
        done = call(capsys, "advise", "--model", "llama-3-8b", "--cluster", cluster, "--json")
        fits(json.loads(done.stdout), "plan")
    fits(json.loads(call(capsys, "query", pair[0], "SELECT rank, name FROM host_events", "--json").stdout), "query")


def printing_json(group: click.Group, path: str = "") -> Iterator[str]:
    """Every command that takes `--json`, as it is called."""
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        if any("--json" in parameter.opts for parameter in command.params if isinstance(parameter, click.Option)):
            yield f"{path}{name}"
        if isinstance(command, click.Group):
            yield from printing_json(command, f"{path}{name} ")


def test_every_command_that_prints_json_has_a_schema() -> None:
    published = [command for document in DOCUMENTS.values() for command in document.commands]
    assert sorted(printing_json(cli)) == sorted(published)


def test_the_report_of_a_hang_a_stored_one_and_their_list(
    samples: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    dump = tmp_path / "dump_0"
    dump.write_bytes(pickle.dumps(recorder(tmp_path)))
    fits(json.loads(call(capsys, "hang", dump, "--json").stdout), "report")
    monkeypatch.delenv("GPUSCOPE_NO_STORE", raising=False)
    store = tmp_path / "runs.db"
    call(capsys, "analyze", samples / "ddp_healthy", "--store", store)
    fits(json.loads(call(capsys, "runs", "show", "1", "--store", store, "--json").stdout), "report")
    runs = json.loads(call(capsys, "runs", "--store", store, "--json").stdout)
    assert len(runs) == 1
    fits(runs, "runs")


def test_the_bench_tools(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    pytest.importorskip("torch")
    small = ("--backend", "gloo", "--op", "broadcast", "-b", "4K", "-e", "4K", "--iterations", "2")
    measured = json.loads(call(capsys, "bench", "collectives", *small, "--json").stdout)
    fits(measured, "bench-collectives")
    assert (measured["world_size"], measured["rows"][0]["nbytes"]) == (2, 4096)
    copied = call(capsys, "bench", "transfers", "--size", "64K", "--iterations", "2", "--json")
    fits(json.loads(copied.stdout), "bench-transfers")
    matrix = tmp_path / "topo.txt"
    matrix.write_bytes(MATRIX)
    found = json.loads(
        call(capsys, "bench", "topology", "--from-file", matrix, "--gpu", "NVIDIA L40S", "--json").stdout
    )
    assert found["pairs"]
    fits(found, "bench-topology")


def test_the_bench_tool_that_takes_long(capsys: pytest.CaptureFixture[str]) -> None:
    """Its document from a row made up: each field of the report, whose times no test can wait for."""
    pytest.importorskip("torch")
    from gpuscope.instrumented_runtime.commands.bench import _print_json
    from gpuscope.schema.bench_documents import BenchScaling, ScalingRow

    row = ScalingRow(2, "dp2", 4096, 1_000, 1e6, math.nan, math.nan)
    _print_json(BenchScaling("ddp", "tiny", "weak", "cpu", 1, (row,), "").as_json())
    fits(json.loads(capsys.readouterr().out), "bench-scaling")

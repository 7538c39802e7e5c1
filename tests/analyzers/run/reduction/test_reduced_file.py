"""Parts on disk: the same report as from the traces, in any order, and nothing but an error from a damaged file."""

from __future__ import annotations

import json
import random
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers import needs
from helpers.cli import call
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gpuscope.analyzers.run.file_part import Options
from gpuscope.analyzers.run.reduction.part_file import (
    HEAD,
    TAG,
    TREE,
    UnpackableError,
    digest,
    pack,
    read_head,
    read_part,
    unpack,
)
from gpuscope.analyzers.run.reduction.reducing import reduced
from gpuscope.analyzers.run.runner import analyze
from gpuscope.errors import GpuscopeError, InputError, UsageError
from gpuscope.report.read_report import dumps
from gpuscope.sources.opening import inputs
from gpuscope.trace.table import Array

ROOT = Path(__file__).resolve().parents[4]
SAMPLES = ROOT / "sample_traces"
SHARED = ROOT.parent / "shared" / "traces" / "kineto"


def parts_of(run: Path, out: Path) -> list[Path]:
    paths = reduced(inputs([run]), Options(files=0), out, False)
    if (run / "manifest.json").exists():
        (out / "manifest.json").write_bytes((run / "manifest.json").read_bytes())
    return paths


@pytest.fixture(scope="module")
def parts(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    return parts_of(SAMPLES / "3d_healthy", tmp_path_factory.mktemp("parts"))


@pytest.mark.parametrize("name", ["pp_1f1b", "ddp_slow_rank", "ep_healthy"])
def test_the_report_is_that_of_the_traces(tmp_path: Path, name: str) -> None:
    found = parts_of(SAMPLES / name, tmp_path)
    assert dumps(analyze(*found).report) == dumps(analyze(SAMPLES / name).report)


@pytest.mark.parametrize("name", ["hta_2_of_128", "resnet50_num_workers_0"])
def test_the_report_of_public_traces_too(tmp_path: Path, name: str) -> None:
    if not SHARED.exists():
        pytest.skip(needs.PUBLIC_TRACES)
    found = parts_of(SHARED / name, tmp_path)
    assert dumps(analyze(*found).report) == dumps(analyze(SHARED / name).report)


@settings(max_examples=4, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(order=st.permutations(range(4)))
def test_parts_merge_in_any_order(parts: list[Path], order: list[int]) -> None:
    assert dumps(analyze(*(parts[index] for index in order)).report) == dumps(analyze(*parts).report)


def test_parts_and_traces_mix(parts: list[Path]) -> None:
    traces = [SAMPLES / "3d_healthy" / f"rank{rank}.json.gz" for rank in (2, 3)]
    mixed = analyze(*parts[:2], *traces).report
    assert mixed["trace"]["ranks_present"] == [0, 1, 2, 3]
    assert mixed["verdict"] == analyze(*parts).report["verdict"]


def test_what_a_part_cannot_answer_is_refused(parts: list[Path], tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="reduced for other steps"):
        analyze(*parts, steps=(1, 2))
    with pytest.raises(InputError, match="reduced already"):
        reduced(inputs([parts[0]]), Options(), tmp_path / "again.gsr", False)
    with pytest.raises(UsageError, match="don't go into one file"):
        reduced(inputs([SAMPLES / "3d_healthy"]), Options(), tmp_path / "one.gsr", False)
    assert analyze(*parts, ranks={0, 1}).report["trace"]["ranks_present"] == [0, 1]


def said_of(path: Path) -> str:
    """The error of reading a part, or its path where it can be read."""
    try:
        analyze(path, advice=False)
    except GpuscopeError as error:
        return str(error)
    return str(path)


def test_damage_is_an_error_with_a_remedy(parts: list[Path], tmp_path: Path) -> None:
    """Every cut and many flipped bytes: an error that names the file, or the same report where nothing was lost."""
    whole, path = parts[0].read_bytes(), tmp_path / "rank0.gsr"
    rng = random.Random(0)
    for case in range(60):
        if case < 12:
            data = whole[: len(whole) * case // 12]
        else:
            changed = bytearray(whole)
            for _ in range(rng.randrange(1, 6)):
                changed[rng.randrange(len(changed))] = rng.randrange(256)
            data = bytes(changed)
        path.write_bytes(data)
        assert "rank0.gsr" in said_of(path)


def rewritten(source: Path, path: Path, member: str, change) -> Path:  # type: ignore[no-untyped-def]
    with np.load(source) as stored:
        arrays = {name: stored[name] for name in stored.files}
    values = json.loads(arrays[member].tobytes())
    change(values)
    arrays[member] = np.frombuffer(json.dumps(values).encode(), np.uint8)
    head = json.loads(arrays.pop(HEAD).tobytes()) | {"digest": digest(arrays)}  # as somebody would who means harm
    arrays = {HEAD: np.frombuffer(json.dumps(head).encode(), np.uint8), **arrays}
    with path.open("wb") as file:
        np.savez(file, **arrays)
    return path


def test_another_version_or_class_is_refused(parts: list[Path], tmp_path: Path) -> None:
    other = rewritten(parts[0], tmp_path / "a.gsr", HEAD, lambda head: head.update(fingerprint="0"))
    with pytest.raises(InputError, match="reduce and analyse with one version"):
        analyze(other)
    named = {TAG: "subprocess.Popen", "of": {}}
    hostile = rewritten(parts[0], tmp_path / "b.gsr", TREE, lambda tree: tree.update(part=named))
    with pytest.raises(InputError, match="unknown kind"):
        analyze(hostile)
    beyond = rewritten(parts[0], tmp_path / "c.gsr", TREE, lambda tree: tree.update(arrays=[["int64", 0, 3]]))
    with pytest.raises(InputError, match="is damaged"):
        analyze(beyond)


def test_a_file_that_grows_without_bound_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "bomb.gsr"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as packed:
        packed.writestr(f"{HEAD}.npy", b"\0" * (80 << 20))
    with pytest.raises(InputError, match="would grow to"):
        read_head(path)


def test_only_listed_classes_are_packed() -> None:
    with pytest.raises(TypeError, match="not packed"):
        pack(object(), [])
    with pytest.raises(UnpackableError):
        unpack({TAG: "array", "n": 7}, [])
    arrays: list[Array] = []
    value = {"a": (1, 2.5, None), 3: [np.arange(3)], "s": {True}}
    back = unpack(json.loads(json.dumps(pack(value, arrays))), arrays)
    assert (back["a"], back["s"]) == (value["a"], {True})
    assert back[3][0].tolist() == [0, 1, 2]


def records(tree: Any, found: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """The first record of each class in a part's JSON; of a graph, one that is there."""
    for inner in tree.values() if isinstance(tree, dict) else tree if isinstance(tree, list) else ():
        records(inner, found)
    if isinstance(tree, dict) and isinstance(tree.get("of"), dict):
        found.setdefault(tree[TAG], tree)
    return found


def test_a_field_of_another_type_is_refused(parts: list[Path]) -> None:
    """Each field of each class, and each section, has its declared type or ends in one error."""
    arrays: list[Array] = []
    found = records(pack(read_part(parts[0])[1], arrays), {})
    assert {"Part", "LaneSummary", "Result", "Attributed", "Recorded", "Graph", "Sections", "SourceFile"} <= set(found)
    odd = {TAG: "set", "of": [{TAG: "frozenset", "of": []}]}
    for record in found.values():
        unpack(record, arrays)
        for field in record["of"]:
            with pytest.raises(UnpackableError):
                unpack({**record, "of": {**record["of"], field: odd}}, arrays)


def test_a_part_that_contradicts_itself_is_refused(parts: list[Path], tmp_path: Path) -> None:
    def refused(kind: str, field: str, value: Any) -> None:
        def change(tree: Any) -> None:
            records(tree["part"], {})[kind]["of"][field] = value

        with pytest.raises(InputError, match="is damaged"):
            analyze(rewritten(parts[0], tmp_path / "a.gsr", TREE, change))

    refused("Breakdown", "idle", -1)
    refused("LaneSummary", "facts", {TAG: "tuple", "of": []})
    refused("LaneSummary", "rank", 7)
    refused("Recorded", "numbers", {TAG: "tuple", "of": []})
    refused("Graph", "labels", {TAG: "tuple", "of": []})
    refused("StepWindow", "start", 2**70)


def test_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run, out = SAMPLES / "ddp_slow_rank", tmp_path / "parts"
    told = call(capsys, "reduce", str(run), "-o", str(out))
    assert "2 parts" in told.stdout
    assert sorted(path.name for path in out.iterdir()) == ["rank0.gsr", "rank1.gsr"]
    again = call(capsys, "reduce", str(run), "-o", str(out))
    assert (again.returncode, "exists already" in again.stderr) == (2, True)
    quiet = call(capsys, "analyze", str(out), "--no-store", "--quiet")
    assert quiet.returncode == 0
    assert quiet.stdout

"""What leaves the house names nobody: `analyze --share`."""

from __future__ import annotations

import getpass
import json
import socket
from pathlib import Path

import pytest
from click.testing import CliRunner
from helpers.kineto import call, kernel, note, python, write

from gpuscope.analyzers.run.file_part import Options
from gpuscope.analyzers.run.reduction.part_file import pack, read_part
from gpuscope.analyzers.run.reduction.reducing import reduced
from gpuscope.analyzers.run.runner import analyze
from gpuscope.plugins import COMMANDS, load
from gpuscope.report.section_tables import Replacing
from gpuscope.sources.opening import inputs

SECRETS = ("alice", "gpu-node-17", "secret_project", "10.1.2.3")


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    """A trace that names a user, a host, folders and an address."""
    folder = tmp_path / "secret_project"
    events = [
        note(0, 1000, "ProfilerStep#0"),
        call(10, 5, 1),
        kernel(20, 100, 1),
        call(400, 5, 2),
        kernel(700, 100, 2),
        python(150, 500, "/home/alice/secret_project/train.py(12): forward on 10.1.2.3"),
    ]
    write(folder / "rank0.json", *events, rank=0, host_name="gpu-node-17")
    return folder / "rank0.json"


@pytest.mark.parametrize("suffix", [".html", ".json"])
def test_a_shared_report_names_nobody(trace: Path, tmp_path: Path, suffix: str) -> None:
    out = tmp_path / f"shared{suffix}"
    command = load(COMMANDS, "analyze")
    result = CliRunner().invoke(command, [str(trace), "--share", str(out), "--no-store"], standalone_mode=False)
    assert result.exception is None, result.output
    text = out.read_text(encoding="utf-8")
    assert not [secret for secret in (*SECRETS, str(tmp_path)) if secret in text]
    if suffix == ".json":
        assert json.loads(text)["trace"]["sources"][0]["path"] == "rank0.json"
        assert json.loads(text)["shared"]["paths"] >= 1
    else:
        assert "names replaced for sharing" in text


def test_a_shared_part_names_nobody_and_says_the_same(trace: Path, tmp_path: Path) -> None:
    said = {}
    for name, flags in (("own", []), ("shared", ["--share"])):
        out = tmp_path / f"{name}.gsr"
        CliRunner().invoke(load(COMMANDS, "reduce"), [str(trace), "-o", str(out), *flags], standalone_mode=False)
        said[name] = analyze(out).report
    head, part = read_part(tmp_path / "shared.gsr")
    text = json.dumps([head, pack(part, [])], default=str, ensure_ascii=False)
    assert not [secret for secret in SECRETS if secret in text]
    assert "gpu-node-17" in json.dumps(pack(read_part(tmp_path / "own.gsr")[1], []), default=str)
    assert said["shared"]["verdict"] == said["own"]["verdict"]
    assert [rank["breakdown_ns"] for rank in said["shared"]["ranks"]] == [
        rank["breakdown_ns"] for rank in said["own"]["ranks"]
    ]


def test_hosts_of_shared_parts_stay_apart_or_together(tmp_path: Path) -> None:
    hosts = []
    for rank, host in enumerate(["gpu-node-17", "gpu-node-17", "gpu-node-18"]):
        events = [note(0, 1000, "ProfilerStep#0"), call(10, 5, 1), kernel(20, 100, 1)]
        write(tmp_path / f"rank{rank}.json", *events, rank=rank, host_name=host)
        reduced(inputs([tmp_path / f"rank{rank}.json"]), Options(), tmp_path / f"{rank}.gsr", False, share=True)
        hosts.append(read_part(tmp_path / f"{rank}.gsr")[1].trace.hosts)
    assert hosts[0] == hosts[1] != hosts[2]


def test_names_that_become_alike_stay_apart(tmp_path: Path) -> None:
    stacks = [python(150 + 10 * n, 5, f"/home/alice/{folder}/train.py(12): forward") for n, folder in enumerate("ab")]
    events = [note(0, 1000, "ProfilerStep#0"), call(10, 5, 1), kernel(20, 100, 1), *stacks]
    write(tmp_path / "rank0.json", *events, rank=0)
    reduced(inputs([tmp_path / "rank0.json"]), Options(), tmp_path / "part.gsr", False, share=True)
    names = read_part(tmp_path / "part.gsr")[1].trace.names.names
    own = [name for name in names if "train.py(12)" in name]
    assert own == ["…/train.py(12): forward", "…/train.py(12): forward (2)"]


def test_the_report_itself_keeps_its_names(trace: Path, tmp_path: Path) -> None:
    command = load(COMMANDS, "analyze")
    arguments = [str(trace), "--json", "--share", str(tmp_path / "x.json"), "--no-store"]
    result = CliRunner().invoke(command, arguments, standalone_mode=False)
    assert str(trace) in result.stdout


@pytest.mark.parametrize(
    ("text", "shared"),
    [
        ("/home/alice/run/train.py(3): step", "…/train.py(3): step"),
        ("C:\\Users\\alice\\run\\train.py(3)", "…/train.py(3)"),
        ("s3://bucket/alice/rank0.json", "…/rank0.json"),
        ("/usr/lib/python3.11/site-packages/torch/nn/modules/module.py(9)", "…/torch/nn/modules/module.py(9)"),
        ("alice's job on gpu-node-17, rank 3", "user-1's job on host-1, rank 3"),
        ("malice and gpu-node-170 are others", "malice and gpu-node-170 are others"),
        ("3.2 GB/s and/or 5 ms/step; a/b", "3.2 GB/s and/or 5 ms/step; a/b"),
        ("ncclDevKernel_AllReduce_RING_LL(ncclDevComm*)", "ncclDevKernel_AllReduce_RING_LL(ncclDevComm*)"),
        ("torch 2.13.0 on 10.1.2.3", "torch 2.13.0 on host-2"),
    ],
)
def test_what_is_replaced(text: str, shared: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(getpass, "getuser", lambda: "root")
    monkeypatch.setattr(socket, "gethostname", lambda: "localhost")
    replacing = Replacing(["/home/alice/x", "10.1.2.3"], ["gpu-node-17"], [])
    replacing._instead |= {"10.1.2.3": "host-2", "gpu-node-17": "host-1"}
    assert replacing.text(text) == shared


def test_another_suffix_is_refused_before_any_work(trace: Path, tmp_path: Path) -> None:
    result = CliRunner().invoke(load(COMMANDS, "analyze"), [str(trace), "--share", str(tmp_path / "x.pdf")])
    assert result.exit_code != 0
    assert not (tmp_path / "x.pdf").exists()

"""The search as a source of changes: what a job is given of what was measured, and what is left to its user."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from gpuscope.instrumented_runtime.record.applied.change import Change
from gpuscope.instrumented_runtime.tune import communication
from gpuscope.instrumented_runtime.tune.communication import CommunicationSearch, Options, Searched, Tried

LO = {"GLOO_SOCKET_IFNAME": "lo"}


def tried(candidate: str, ns: int, settings: dict[str, str], pieces: int = 1) -> Tried:
    """All-reduces of 1 MiB, 100 ns by default."""
    certain = ns < 100
    return Tried(
        "all_reduce",
        2,
        1 << 20,
        5,
        candidate,
        settings,
        pieces,
        ns,
        (ns, ns),
        1 - ns / 100,
        certain,
        "ring",
        "simple",
        8,
    )


@pytest.fixture
def searched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, samples: Path) -> Any:
    """The advice where these candidates were measured beside the default, and what was told."""

    def advice(backend: str, *rows: Tried, once_s: float = 1.0) -> tuple[Any, list[str]]:
        found = Searched(backend, "2.13", 2, 20, (tried("default", 100, {}), *rows), {})
        monkeypatch.setattr(communication, "first_calls", lambda *_: once_s)
        monkeypatch.setattr(communication, "search", lambda *_: found)
        told: list[str] = []
        search = CommunicationSearch(tmp_path, lambda: 300.0, told.append, Options(backend))
        report = {"trace": {"sources": [{"path": str(path)} for path in (samples / "ddp_healthy").glob("rank*")]}}
        made = search(report)
        assert search(report).candidates == []  # once is enough
        return made, told

    return advice


def test_a_variable_that_gains_is_tried_in_the_job(searched: Any, tmp_path: Path) -> None:
    made, told = searched("gloo", tried("loopback", 80, LO))
    assert [one.changes for one in made.candidates] == [(Change("env.GLOO_SOCKET_IFNAME", "lo"),)]
    assert "about" in told[0]
    assert json.loads((tmp_path / "communication.json").read_text())["rows"][1]["rounds_ns"] == [80, 80]


def test_several_messages_are_work_by_hand(searched: Any) -> None:
    made, _ = searched("gloo", tried("2 messages", 70, {}, pieces=2), tried("loopback", 120, LO))
    assert made.candidates == []
    assert [one["setting"] for one in made.by_hand] == ["all-reduces of 1 MiB in several messages"]


def test_rows_for_nccl_s_tuner_need_its_plugin(searched: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the plugin the job reads the rows; without it the variables of the candidate that gains over all."""
    simple = tried("ring/simple", 80, {"NCCL_ALGO": "Ring", "NCCL_PROTO": "Simple"})
    rows = tmp_path / "nccl_tuner.csv"
    monkeypatch.setenv("NCCL_TUNER_PLUGIN", "/opt/libnccl-tuner-example.so")
    made, _ = searched("nccl", simple)
    (one,) = made.candidates
    assert one.changes == (
        Change("env.NCCL_TUNER_CONFIG_FILE", str(rows)),
        Change("env.NCCL_TUNER_PLUGIN", "/opt/libnccl-tuner-example.so"),
    )
    assert "allreduce,0,18446744073709551615,ring,simple,8,1,2" in rows.read_text()
    monkeypatch.delenv("NCCL_TUNER_PLUGIN")
    made, _ = searched("nccl", simple)
    assert [str(change) for one in made.candidates for change in one.changes] == [
        "env.NCCL_ALGO=Ring",
        "env.NCCL_PROTO=Simple",
    ]
    assert [one["setting"] for one in made.by_hand] == [f"NCCL_TUNER_CONFIG_FILE={rows}"]


def test_without_time_for_two_rounds_nothing_is_searched(searched: Any, tmp_path: Path) -> None:
    made, told = searched("gloo", tried("loopback", 80, LO), once_s=100.0)
    assert made.candidates == []
    (told,) = told
    assert "not searched: that takes 13.33 min" in told  # four candidates of an all-reduce, twice
    assert not (tmp_path / "communication.json").exists()

"""Flight Recorder dumps: what is read of them, and that nothing in them runs."""

from __future__ import annotations

import json
import os
import pickle
from pathlib import Path
from typing import Any

import pytest
from helpers.flight_recorder import Group, dump, entry

import gpuscope
from gpuscope.errors import InputError
from gpuscope.sources.pytorch import log_signs

WORLD: Group = ("0", "default_pg", [0, 1])


def test_ranks_within_a_group_become_ranks_of_the_job(tmp_path: Path) -> None:
    pair: Group = ("39", "pp", [0, 8])
    path = dump(tmp_path, 8, [pair], [entry(pair, 4, "recv 1<-0")])
    (row,) = gpuscope.open_trace(path).tables["flight_records"].to_dict("records")
    assert (row["rank"], row["op"], row["peer"], row["p2p_seq"], row["done"]) == (8, "recv", 0, 4, 0)


def test_groups_of_a_dump_without_entries_are_named_by_order(tmp_path: Path) -> None:
    """Status is kept by a number of the rank's own: the second-lowest is the second group made."""
    status = {"0": {"last_enqueued_collective": -1}, "5": {"last_enqueued_collective": 7}}
    path = dump(tmp_path, 0, [WORLD, ("37", "tp", [0, 1])], [], pg_status=status)
    frame = gpuscope.open_trace(path).tables["group_status"]
    assert frame[["group", "enqueued"]].astype(str).to_numpy().tolist() == [["0", "0"], ["37", "7"]]


def test_json_is_read_as_the_pickle(tmp_path: Path) -> None:
    path = dump(tmp_path, 1, [WORLD], [entry(WORLD, 1)])
    other = tmp_path / "json" / "rank1.json"
    other.parent.mkdir()
    other.write_text(json.dumps(pickle.loads(path.read_bytes())))
    first, second = (gpuscope.open_trace(p).tables["flight_records"] for p in (path, other))
    assert first.equals(second)


class Command:
    def __reduce__(self) -> Any:
        return os.system, ("touch pwned",)


def test_a_pickle_that_names_a_function_is_refused_and_does_not_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    path = dump(tmp_path, 0, [WORLD], [entry(WORLD, 1, frames=Command())])
    with pytest.raises(InputError, match=r"nccl_trace_rank_0: names posix\.system"):
        gpuscope.open_trace(path)
    assert not (tmp_path / "pwned").exists()


def test_a_pickle_that_asks_for_32_gb_gets_none() -> None:
    """LONG_BINPUT with index 2³²−1: the unpickler in C makes room for that many objects."""
    assert log_signs.loads(b"\x80\x02Nr\xff\xff\xff\xff.") is None


def test_a_dump_cut_off_anywhere_is_told(tmp_path: Path) -> None:
    whole = dump(tmp_path, 0, [WORLD], [entry(WORLD, 1)]).read_bytes()
    path = tmp_path / "cut_rank_0"
    for length in range(60, len(whole), 97):
        path.write_bytes(whole[:length])
        with pytest.raises(InputError):
            gpuscope.open_trace(path)


@pytest.mark.parametrize(
    "data", [b"", b"\x80", b"\x80\x02(((", b"\x80\x04" + b"]" * 500, b"\x80\x02\x8a\xff.", b"cos\nsystem\n."]
)
def test_damaged_pickles_are_no_traceback(data: bytes) -> None:
    with pytest.raises(InputError):
        log_signs.loads(data)


@pytest.mark.parametrize(
    "told",
    [{"version": "1.0"}, {"version": "3.0"}, {"entries": {}}],
)
def test_other_versions_are_refused(tmp_path: Path, told: dict[str, Any]) -> None:
    with pytest.raises(InputError):
        gpuscope.open_trace(dump(tmp_path, 0, [WORLD], [], **told))


def test_entries_that_are_none_are_counted(tmp_path: Path) -> None:
    good = {"record_id": 0, **entry(WORLD, 1)}
    path = dump(tmp_path, 0, [WORLD], [], entries=[good, {"record_id": "x"}, 7])
    trace = gpuscope.open_trace(path)
    assert len(trace["flight_records"]) == 1
    assert [(p.code, p.count) for p in trace.problems if p.severity == "data_loss"] == [("record_unreadable", 2)]


def test_a_rank_and_a_group_that_the_dump_does_not_name_are_told(tmp_path: Path) -> None:
    status = {number: {"last_enqueued_collective": 1} for number in ("7", "9")}
    path = dump(tmp_path, 0, [WORLD], [entry(WORLD, 1)], pg_status=status)
    trace = gpuscope.open_trace(path.rename(tmp_path / "dump"))
    assert {p.code: p.count for p in trace.problems} == {"rank_guessed": 1, "group_unnamed": 2}

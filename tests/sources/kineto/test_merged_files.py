"""Traces of several ranks merged into one file give the report of the separate files."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from helpers.kineto import op, write
from helpers.pair import write_pair

import gpuscope
from gpuscope.errors import InputError

Document = dict[str, Any]
Merge = Callable[[list[Document]], Document]


def documents(folder: Path) -> list[Document]:
    """The traces of a folder by rank; each rank gets process ids of its own, as on one host."""
    found = []
    for path in sorted(folder.glob("rank*.json*")):
        data = path.read_bytes()
        document = json.loads(gzip.decompress(data) if path.suffix == ".gz" else data)
        rank = document["distributedInfo"]["rank"]
        hosts = {event["pid"] for event in document["traceEvents"] if event.get("cat") in ("cpu_op", "cuda_runtime")}
        for event in document["traceEvents"]:
            if event.get("pid") in hosts:
                event["pid"] = 40_000 + rank
        found.append(document)
    return found


def _joined(found: list[Document], events: list[Any]) -> Document:
    """Headers as mergers leave them: of each key the first file's."""
    header: Document = {}
    for document in found:
        header = {**document, **header}
    return {**header, "traceEvents": events}


def sglang(found: list[Document]) -> Document:
    events = []
    for rank, document in enumerate(found):
        for event in document["traceEvents"]:
            events.append({**event, "pid": f"[TP{rank:02d}-DP00] {event.get('pid')}"})
    return _joined(found, events)


def tracelens(found: list[Document]) -> Document:
    """Process ids and correlations moved by an offset per rank, and the rank among the arguments."""
    events = []
    for rank, document in enumerate(found):
        for event in document["traceEvents"]:
            args = {**event.get("args", {}), "rank": rank, "pid_raw": event.get("pid")}
            if "correlation" in args:
                args |= {"correlation": args["correlation"] + 1_000_000 * rank, "correlation_raw": args["correlation"]}
            pid = event.get("pid")
            events.append({**event, "pid": pid + 100_000 * rank if isinstance(pid, int) else pid, "args": args})
    return {"traceEvents": events}


def by_hand(found: list[Document]) -> Document:
    return _joined(found, [event for document in found for event in document["traceEvents"]])


def one_process_per_rank(found: list[Document]) -> Document:
    """As scripts beside Megatron do: everything of a rank in the process of its number, which has the rank's name."""
    events: list[Any] = []
    for rank, document in reversed(list(enumerate(found))):
        events.append({"ph": "M", "name": "process_name", "pid": 7 - rank, "tid": 0, "args": {"name": f"Rank {rank}"}})
        events += [{**event, "pid": 7 - rank} for event in document["traceEvents"]]
    return {"traceEvents": sorted(events, key=lambda event: event.get("ts", 0))}


MERGES: list[Merge] = [sglang, tracelens, by_hand, one_process_per_rank]


def facts(path: Path) -> Document:
    """What a report says of the run."""
    report = gpuscope.analyze(path).report
    told = {key: report[key] for key in ("ranks", "steps", "stragglers", "collectives")}  # type: ignore[literal-required]
    verdict = {key: value for key, value in report["verdict"].items() if key in ("bound_by", "cause", "share_frac")}
    findings = [(one["code"], one["ranks"], one["cost_ns"]) for one in report["findings"]]
    return {**told, "verdict": verdict, "findings": findings, "present": report["trace"]["ranks_present"]}


@pytest.fixture(params=["pair", "ddp_slow_rank"])
def separate(request: pytest.FixtureRequest, tmp_path: Path, samples: Path) -> Path:
    return write_pair(tmp_path / "pair") if request.param == "pair" else samples / request.param


@pytest.mark.parametrize("merge", MERGES, ids=lambda merge: merge.__name__)
def test_a_merged_file_gives_the_report_of_the_separate_ones(merge: Merge, separate: Path, tmp_path: Path) -> None:
    apart = tmp_path / "apart"
    apart.mkdir()
    whole = documents(separate)
    for rank, document in enumerate(whole):
        info = {**document["distributedInfo"]}
        if merge in (tracelens, one_process_per_rank):  # which drop the header
            document = {"traceEvents": document["traceEvents"], "distributedInfo": {"rank": rank}}
        else:
            document = {**document, "distributedInfo": info}
        (apart / f"rank{rank}.json").write_text(json.dumps(document))
    merged = tmp_path / "merged.json"
    merged.write_text(json.dumps(merge(whole)))
    found, expected = facts(merged), facts(apart)
    assert found["present"] == [0, 1]
    assert found == expected


@pytest.mark.parametrize("merge", MERGES, ids=lambda merge: merge.__name__)
def test_ranks_of_a_merged_file_can_be_chosen(merge: Merge, tmp_path: Path) -> None:
    merged = tmp_path / "merged.json"
    merged.write_text(json.dumps(merge(documents(write_pair(tmp_path / "pair")))))
    assert gpuscope.open_trace(merged, ranks=[1]).ranks == [1]
    for read in (gpuscope.open_trace, gpuscope.analyze):
        with pytest.raises(InputError, match="contains none of the requested ranks"):
            read(merged, ranks=[5])


def test_events_mixed_by_time_are_refused_where_nothing_tells_whose_a_kernel_is(tmp_path: Path) -> None:
    whole = documents(write_pair(tmp_path / "pair"))
    for document in whole:
        document["traceEvents"] *= 10
    document = by_hand(whole)
    document["traceEvents"].sort(key=lambda event: event.get("ts", 0))
    merged = tmp_path / "merged.json"
    merged.write_text(json.dumps(document))
    with pytest.raises(InputError, match="2 processes whose events are mixed"):
        gpuscope.open_trace(merged)


@pytest.mark.parametrize(
    ("processes", "ranks"), [([2.5, None], [0]), (["one", 2], [0, 1]), (["one", "two", None], [0, 1]), ([None], [0])]
)
def test_a_process_is_what_has_an_id(processes: list[Any], ranks: list[int], tmp_path: Path) -> None:
    events = [{**op(10 * number, 5), "pid": pid} for number, pid in enumerate(processes)]
    path = write(
        tmp_path / "t.json", *({key: value for key, value in one.items() if value is not None} for one in events)
    )
    assert gpuscope.open_trace(path).ranks == ranks

"""Events on one clock: tracks, what is known of an event, search, windows to export."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

from helpers.pair import IMAGE, SCRIPT

from gpuscope.analyzers.run import set_apart
from gpuscope.dashboards.data.event_details import details, search
from gpuscope.dashboards.data.events import Events
from gpuscope.dashboards.data.open_runs import OpenRun
from gpuscope.dashboards.web.downloads import cut


def events_of(run: OpenRun) -> Events:
    assert run.events is not None
    return run.events


def ref(events: Events, name: str, rank: int, which: int = 0) -> str:
    table = events.trace["device_events"]
    code = events.trace.names.find(name)
    rows = [row for row in range(len(table)) if table["name"][row] == code and table["rank"][row] == rank]
    return f"d{rows[which]}"


def test_each_event_is_on_one_track(slow_rank: OpenRun, pair: OpenRun) -> None:
    for events in map(events_of, (slow_rank, pair)):
        for name in ("device_events", "host_events", "steps"):
            rows = sorted(row for track in events.tracks if track.table == name for row in track.rows.tolist())
            assert rows == list(range(len(events.trace[name])))


def test_what_is_known_of_a_kernel(pair: OpenRun) -> None:
    events = events_of(pair)
    found = details(events, ref(events, SCRIPT, 0, which=1))
    assert found is not None
    assert (found.event.name, found.event.rank, found.event.duration, found.step) == (SCRIPT, 0, 300_000, 1)
    assert found.launch is not None
    assert found.launch.name == "cudaLaunchKernel"
    assert found.operator is not None
    assert found.operator.name == "aten::mm"
    assert [frame.name for frame in found.stack] == ["train.py(7): step"]
    assert [one.name for one in found.ranges] == ["ProfilerStep#1"]


def test_a_collective_has_its_partner_on_the_other_rank(pair: OpenRun) -> None:
    events = events_of(pair)
    found = details(events, ref(events, "ncclDevKernel_AllReduce_Sum_f32", 0, which=1))
    assert found is not None
    assert dict(found.collective)["seq"] == 1
    (partner,) = found.partners
    assert (partner.rank, partner.duration) == (1, 100_000)  # it came 100 µs later, and both end together


def test_an_operator_knows_what_it_launched(pair: OpenRun) -> None:
    events = events_of(pair)
    kernel = details(events, ref(events, SCRIPT, 1))
    assert kernel is not None
    assert kernel.operator is not None
    found = details(events, kernel.operator.ref)
    assert found is not None
    assert [one.name for one in found.launched] == [SCRIPT]
    assert details(events, "d999999") is None
    assert details(events, "x1") is None


def test_search_counts_all_and_shows_from_a_time_on(pair: OpenRun) -> None:
    events = events_of(pair)
    first = events.first
    assert search(events, "NCCLdev", first).count == 4
    later = search(events, "ncclDev", first + 1_000_000, ranks={1})
    assert (later.count, [one.rank for one in later.events]) == (2, [1])
    assert search(events, "  ", first).count == 0


def test_an_exported_window_holds_its_events_on_the_common_clock(pair: OpenRun, tmp_path: Path) -> None:
    events = events_of(pair)
    window = (events.first + 1_000_000, events.last)  # the second step
    set_apart.write(cut(events.trace, events.clock, window, {0}), tmp_path / "w.json.gz")
    document = json.loads(gzip.decompress((tmp_path / "w.json.gz").read_bytes()))
    drawn = [event["name"] for event in document["traceEvents"] if event["ph"] == "X" and event["cat"] != "op"]
    assert sorted(name for name in drawn if name in (SCRIPT, IMAGE)) == [IMAGE, SCRIPT]
    assert {event["pid"] for event in document["traceEvents"]} == {0}

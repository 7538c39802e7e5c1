"""The processes of an nsys export that did work, seen without reading its events: to number files of one run."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from gpuscope.sources.nsys.export_facts import devices_used, read_facts
from gpuscope.sources.nsys.formats.export_tables import Tables
from gpuscope.sources.nsys.rows.event_tables import RUNTIME, Rows
from gpuscope.sources.nsys.rows.host_events import ids
from gpuscope.sources.nsys.rows.process_ranks import ON_DEVICE, devices_by_process, environment
from gpuscope.sources.rank_numbers import Processes
from gpuscope.sources.source import rank_in_name
from gpuscope.trace.columns.distinct import distinct
from gpuscope.trace.naming import kinds
from gpuscope.trace.schema import NA


def working_processes(tables: Tables, named: Path) -> Processes:
    """What `tables`, an export of `named`, shows of its processes. Raises `InputError` where it is damaged."""
    rows: list[Rows] = []
    for table in ON_DEVICE:
        own = dict(tables.integers(table, ("start", "end", "globalPid", "deviceId")))
        own["process"] = np.where(own["globalPid"] == NA, NA, own["globalPid"] & ~0xFFFFFF)
        rows.append(own)
    devices = devices_by_process(rows)
    variables = environment(tables)
    known = len(devices) == 1 and 0 in variables.rank  # then nothing has to be numbered, and the calls need not be read
    processes = set(devices) | (set() if known else _launching(tables))
    single = len(devices) == 1 or len(processes) == 1
    facts, identity = read_facts(tables), devices_used(tables)
    used = ((ids(process)[0], device) for process, own in devices.items() for device in own)
    starts, ends = (np.concatenate([own[column] for own in rows]) for column in ("start", "end"))
    span = (int(starts.min()) + facts.epoch_ns, int(ends.max()) + facts.epoch_ns) if len(starts) else None
    host = facts.described["host_name"]
    return Processes(
        pids=frozenset(ids(process)[0] for process in processes),
        ranks=sum(len(devices.get(process, [NA])) for process in processes),
        rank=variables.rank.get(0) if single else None,
        named=rank_in_name(named) if single else None,
        recorded=bool(len(tables.integers("MPI_RANKS", ("rank",))["rank"])),
        host=None if host is None else str(host),
        devices=frozenset(identity[key] for key in used if key in identity),
        span=span,
        dated=facts.described["session_start_utc_ns"] is not None,
        events=len(starts),
    )


def _launching(tables: Tables) -> set[int]:
    """Processes that launched kernels, whether or not any was recorded."""
    calls = tables.integers(RUNTIME, ("globalTid", "nameId"))
    strings = tables.integers("StringIds", ("id",))["id"]
    wanted = np.isin(strings, distinct(calls["nameId"])[0])
    texts = tables.texts("StringIds", "value", wanted)
    launching = [
        number
        for number, text in zip(strings[wanted].tolist(), texts, strict=True)
        if text and kinds.is_kernel_launch(text)
    ]
    threads = calls["globalTid"][np.isin(calls["nameId"], launching)]
    return {thread & ~0xFFFFFF for thread in distinct(threads)[0].tolist() if thread != NA}

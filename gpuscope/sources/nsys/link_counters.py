"""Counters of links in an nsys export: network ports (`--nic-metrics`), InfiniBand switches
(`--ib-switch-metrics-devices`, `--ib-switch-congestion-devices`), NVLink and PCIe (`--gpu-metrics-devices`).

Of `GPU_METRICS` what passes over NVLink and PCIe is taken, and what SMs and memory do; its values are percent of the
peak, and the low byte of `typeId` is the GPU. `NET_NIC_METRIC` names card and counter through `NIC_ID_MAP`,
`TARGET_INFO_NIC_INFO` and `TARGET_INFO_NETWORK_METRICS`, whose unit says what a value is. `NET_IB_SWITCH_METRIC` has
the same columns, but its `globalId` is a switch's GUID, which `NET_IB_DEVICE_INFO` names.
`NET_IB_SWITCH_CONGESTION_EVENT` holds instants, which are counted by the millisecond. Schemas 3.7 to 3.27 (Nsight
Systems User Guide, «SQLite Schema Reference»).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from gpuscope.errors import InputError
from gpuscope.problems import reading
from gpuscope.sources.nsys.export_tables import Tables
from gpuscope.sources.nsys.recognition import FORMATS, RARER, USUAL, RangeTexts, range_texts, table_files
from gpuscope.sources.rank_numbers import require_pyarrow
from gpuscope.sources.source import check_readable
from gpuscope.trace.builder import TraceBuilder
from gpuscope.trace.schema import NA
from gpuscope.trace.table import Array, Mask, Times, constant, narrowed
from gpuscope.when_used import dataclass

# nsys exports of type parquetdir and arrowdir: a folder with one file per table.
#
# The tables are those of the SQLite export, StringIds among them. pyarrow is imported only here, and only
# when such a folder is opened.


class ArrowTables:
    """A parquetdir or arrowdir, as `nsys_tables.Tables`."""

    def __init__(self, path: Path) -> None:
        """Raises `InputError` where pyarrow is not installed, or a table is no plain file."""
        self.path = path
        self.invalid_utf8 = False
        files = table_files(path)
        for file in files:
            check_readable(file)
        self._files = {file.stem: file for file in files}
        self.format = FORMATS[files[0].suffix]
        self._arrow = require_pyarrow(path, "a parquetdir or arrowdir")
        self._columns: dict[str, frozenset[str]] = {}

    def names(self) -> list[str]:
        return list(self._files)

    def columns(self, table: str) -> frozenset[str]:
        if table not in self._columns:
            found = self._read(table, None) if table in self._files else None
            self._columns[table] = frozenset() if found is None else frozenset(found.column_names)
        return self._columns[table]

    def narrow_integers(self, table: str, columns: Sequence[str]) -> dict[str, Array]:
        return {name: narrowed(column) for name, column in self.integers(table, columns).items()}

    def integers(self, table: str, columns: Sequence[str]) -> dict[str, Times]:
        there = [name for name in columns if name in self.columns(table)]
        if not there:
            return dict.fromkeys(columns, constant(NA, self._count(table), np.int64))
        found = self._read(table, there)
        missing = constant(NA, found.num_rows, np.int64)
        return {name: self._integers(found[name]) if name in there else missing for name in columns}

    def _integers(self, column: Any) -> Times:
        types = self._arrow.types
        if not (types.is_integer(column.type) or types.is_boolean(column.type)):
            return np.full(len(column), NA, np.int64)
        # globalTid is unsigned and may use the topmost bit, as SQLite's signed integers do.
        whole = column.cast(self._arrow.int64(), safe=False).fill_null(NA)
        return np.asarray(whole.to_numpy(), np.int64)

    def texts(self, table: str, column: str, rows: Mask | None = None) -> Iterator[str | None]:
        return map(self._text, self._values(table, column, rows))

    def _text(self, value: Any) -> str | None:
        if not isinstance(value, bytes):
            return value if value is None else str(value)
        try:
            return value.decode()
        except UnicodeDecodeError:
            self.invalid_utf8 = True
            return value.decode("utf-8", "replace")

    def range_texts(self, table: str, column: str) -> RangeTexts:
        values = self._column(table, column)
        if values is None:
            return range_texts(())
        if not self._arrow.types.is_large_binary(values.type):
            return range_texts(self.texts(table, column))
        from pyarrow import compute

        def without(texts: Any, what: str) -> Any:
            return compute.replace_substring_regex(texts, f"(?s){what}.*", "")

        encoded = _encoded(values)
        whole = encoded.dictionary
        names = without(whole, USUAL)
        # Where nothing of the usual is there, what is rarer may be.
        names = compute.if_else(compute.equal(names, whole), without(names, RARER), names)
        try:
            whole.cast(self._arrow.large_string())
        except self._arrow.ArrowInvalid:
            self.invalid_utf8 = True
        # One name may occur both cut and as it stands: a mark before it keeps the two apart.
        mark = compute.if_else(compute.equal(names, whole), b"=", b"<").cast(values.type)
        marked = _encoded(compute.binary_join_element_wise(mark, names, self._arrow.scalar(b"", values.type)))
        texts = marked.dictionary.to_pylist()
        place = np.append(marked.indices.to_numpy(), -1)[encoded.indices.fill_null(-1).to_numpy()]
        shortened = [text[:1] == b"<" for text in texts]
        return RangeTexts([str(self._text(text[1:])) for text in texts], shortened, place.astype(np.int32))

    def blobs(self, table: str, column: str, rows: Mask) -> list[bytes | None]:
        values = self._values(table, column, rows)
        return [value if value is None or isinstance(value, bytes) else str(value).encode() for value in values]

    def _values(self, table: str, column: str, rows: Mask | None) -> list[Any]:
        """Python values of a column."""
        values = self._column(table, column)
        if values is None:
            return [None] * (self._count(table) if rows is None else int(np.count_nonzero(rows)))
        if rows is not None:
            values = values.filter(self._arrow.array(rows))
        return list(values.to_pylist())

    def _count(self, table: str) -> int:
        """Rows of a table; 0 where it is missing."""
        if table not in self._files:
            return 0
        some = sorted(self.columns(table))[:1]
        return int(self._read(table, some).num_rows) if some else 0

    def _column(self, table: str, column: str) -> Any:
        """A column, text as bytes, since nsys does not promise UTF-8; None where it is missing."""
        if column not in self.columns(table):
            return None
        values = self._read(table, [column])[column]
        types = self._arrow.types
        if types.is_dictionary(values.type):
            values = values.cast(values.type.value_type)
        text = types.is_string(values.type) or types.is_large_string(values.type) or types.is_binary(values.type)
        return values.cast(self._arrow.large_binary()) if text else values

    def _read(self, table: str, columns: list[str] | None) -> Any:
        """The table, or only `columns`; without columns a table that is good for its names only."""
        file = self._files[table]
        try:
            if file.suffix == ".parquet":
                from pyarrow import parquet

                if columns is None:
                    return parquet.read_schema(file).empty_table()
                return parquet.read_table(file, columns=columns)
            found = self._read_ipc(file)
            found.column_names  # noqa: B018 - raises here where a name is no UTF-8
            return found if columns is None else self._checked(found.select(columns))
        except (self._arrow.ArrowException, OSError, EOFError, UnicodeDecodeError) as error:
            raise InputError(
                f"{file}: can't be read: {error}",
                hint="export it again: nsys export --type parquetdir --force-overwrite true -o OUT IN.nsys-rep",
            ) from error

    def _read_ipc(self, file: Path) -> Any:
        """An Arrow file of either kind: random access, or a stream."""
        from pyarrow import ipc

        with self._arrow.memory_map(str(file)) as mapped:
            magic = mapped.read(6)
            mapped.seek(0)
            reader = ipc.open_file(mapped) if magic == b"ARROW1" else ipc.open_stream(mapped)
            return reader.read_all()

    def _checked(self, found: Any) -> Any:
        """The table with text as bytes. Raises `ArrowInvalid` where offsets lead out of it: pyarrow does not look by
        itself, and would read whatever memory they lead to."""
        types = self._arrow.types
        for place, field in enumerate(found.schema):
            if types.is_string(field.type) or types.is_large_string(field.type):
                kind = self._arrow.large_binary() if types.is_large_string(field.type) else self._arrow.binary()
                chunks = [
                    self._arrow.Array.from_buffers(kind, len(one), one.buffers(), one.null_count, one.offset)
                    for one in found.column(place).chunks
                ]
                found = found.set_column(place, field.name, self._arrow.chunked_array(chunks, kind))
        found.validate(full=True)
        return found

    def close(self) -> None:
        self._files = {}


def _encoded(values: Any) -> Any:
    """An Arrow column as a dictionary of its distinct values, in order of appearance, and their places."""
    encoded = values.dictionary_encode()
    return encoded.unify_dictionaries().combine_chunks() if hasattr(encoded, "unify_dictionaries") else encoded


PERCENT = "%"
MILLISECOND = 1_000_000
_TAKEN = ("nvlink", "pcie", "sms active", "sm issue", "tensor active", "dram")
"""Of the metrics of a GPU; nsys samples some fifty."""
_KINDS = "ENUM_NET_IB_CONGESTION_EVENT_TYPE"


def add_link_counters(builder: TraceBuilder, tables: Tables, source: int, epoch_ns: int) -> None:
    """Fill `counters`; values that are no whole numbers are left out and counted."""
    adder = _Adder(builder, source, epoch_ns)
    lost = _of_network(adder, tables, "NET_NIC_METRIC", _cards(tables))
    lost += _of_network(adder, tables, "NET_IB_SWITCH_METRIC", _Switches(tables))
    lost += _of_congestion(adder, tables) + _of_gpus(adder, tables)
    builder.problem(reading.LINK_COUNTER_UNREADABLE, lost)


@dataclass(frozen=True)
class _Adder:
    """Adds samples of one file."""

    builder: TraceBuilder
    source: int
    epoch_ns: int

    def add(
        self,
        places: Sequence[str],
        counters: Sequence[str],
        units: Sequence[str],
        start: Times,
        end: Times,
        value: Array,
    ) -> None:
        """A row per sample; times in ns as exported."""
        code = self.builder.names.code
        self.builder.add(
            "counters",
            len(places),
            {
                "source": self.source,
                "place": [code(one) for one in places],
                "counter": [code(one) for one in counters],
                "unit": [code(one) for one in units],
                "start": start + self.epoch_ns,
                "end": end + self.epoch_ns,
                "value": value,
            },
        )


def _of_network(adder: _Adder, tables: Tables, table: str, devices: Mapping[int, str | None] | _Switches) -> int:
    """Samples of a table of ports, by device; the port is named where a device has several."""
    columns = ("start", "end", "globalId", "portId", "metricsListId", "metricsIdx", "value")
    rows = tables.integers(table, columns)
    name, unit = _by_metric(tables, "name"), _by_metric(tables, "unit")
    keys = list(zip(rows["metricsListId"].tolist(), rows["metricsIdx"].tolist(), strict=True))
    numbers = rows["globalId"].tolist()
    ports = {number: len(np.unique(rows["portId"][rows["globalId"] == number])) for number in set(numbers)}
    places = [
        None if (device := devices.get(number)) is None else f"{device}, port {port}" if ports[number] > 1 else device
        for number, port in zip(numbers, rows["portId"].tolist(), strict=True)
    ]
    counters = [name.get(key) for key in keys]
    known = np.array(
        [place is not None and counter is not None for place, counter in zip(places, counters, strict=True)], np.bool_
    )
    known &= (rows["start"] != NA) & (rows["end"] != NA) & (rows["value"] != NA)
    kept = np.flatnonzero(known).tolist()
    adder.add(
        [str(places[row]) for row in kept],
        [str(counters[row]) for row in kept],
        [unit.get(keys[row]) or "" for row in kept],
        rows["start"][kept],
        rows["end"][kept],
        rows["value"][kept],
    )
    return len(known) - len(kept)


def _by_metric(tables: Tables, column: str) -> dict[tuple[int, int], str | None]:
    table = "TARGET_INFO_NETWORK_METRICS"
    ids = tables.integers(table, ("metricsListId", "metricsIdx"))
    keys = zip(ids["metricsListId"].tolist(), ids["metricsIdx"].tolist(), strict=True)
    return dict(zip(keys, tables.texts(table, column), strict=True))


def _cards(tables: Tables) -> dict[int, str | None]:
    """Network cards by the metrics' globalId."""
    infos = tables.integers("TARGET_INFO_NIC_INFO", ("nicId",))["nicId"].tolist()
    names = dict(zip(infos, tables.texts("TARGET_INFO_NIC_INFO", "name"), strict=True))
    mapped = tables.integers("NIC_ID_MAP", ("globalId", "nicId"))
    pairs = zip(mapped["globalId"].tolist(), mapped["nicId"].tolist(), strict=True)
    return {g: f"NIC {name}" if (name := names.get(n)) is not None else None for g, n in pairs}


class _Switches:
    """InfiniBand switches by GUID: their names, else the GUID itself."""

    def __init__(self, tables: Tables) -> None:
        table = "NET_IB_DEVICE_INFO"
        guids = tables.integers(table, ("guid",))["guid"].tolist()
        self._names = dict(zip(guids, tables.texts(table, "name"), strict=True))

    def get(self, guid: int) -> str | None:
        """None where there is no GUID."""
        if guid == NA:
            return None
        return f"IB switch {self._names.get(guid) or hex(guid & (1 << 64) - 1)}"


def _of_congestion(adder: _Adder, tables: Tables) -> int:
    """Packets that a switch marked as congested, per egress port and millisecond."""
    table, switches = "NET_IB_SWITCH_CONGESTION_EVENT", _Switches(tables)
    rows = tables.integers(table, ("start", "globalId", "congestionType", "switchEgressPort"))
    kinds = dict(zip(tables.integers(_KINDS, ("id",))["id"].tolist(), tables.texts(_KINDS, "label"), strict=True))
    known = (rows["start"] != NA) & (rows["globalId"] != NA)
    keys = np.stack(
        [rows[name][known] for name in ("globalId", "switchEgressPort", "congestionType")]
        + [rows["start"][known] // MILLISECOND],
        axis=1,
    )
    found, counts = np.unique(keys, axis=0, return_counts=True)
    start = found[:, 3] * MILLISECOND
    adder.add(
        [
            f"{switches.get(guid)}, port {port}" if port != NA else str(switches.get(guid))
            for guid, port in found[:, :2].tolist()
        ],
        [f"Congestion events: {kinds.get(kind) or 'any'}" for kind in found[:, 2].tolist()],
        ["/ms"] * len(found),
        start,
        start + MILLISECOND,
        counts,
    )
    return int((~known).sum())


def _of_gpus(adder: _Adder, tables: Tables) -> int:
    """A sample holds until the next one of its kind."""
    table = "TARGET_INFO_GPU_METRICS"
    ids = tables.integers(table, ("metricId",))["metricId"].tolist()
    wanted = {
        number: name
        for number, name in zip(ids, tables.texts(table, "metricName"), strict=True)
        if name is not None and any(part in name.lower() for part in _TAKEN)
    }
    rows = tables.integers("GPU_METRICS", ("timestamp", "typeId", "metricId", "value"))
    lost = 0
    for number, name in wanted.items():
        own = rows["metricId"] == number
        for kind in np.unique(rows["typeId"][own]).tolist():
            mask = own & (rows["typeId"] == kind)
            whole = np.flatnonzero(mask & (rows["timestamp"] != NA) & (rows["value"] != NA))
            lost += int(mask.sum()) - len(whole)
            _add_gpu(adder, kind & 0xFF, name, rows["timestamp"][whole], rows["value"][whole])
    return lost


def _add_gpu(adder: _Adder, device: int, name: str, times: Times, values: Times) -> None:
    order = np.argsort(times, kind="stable")
    count = max(len(order) - 1, 0)
    starts = times[order]
    adder.add([f"GPU {device}"] * count, [name] * count, [PERCENT] * count, starts[:-1], starts[1:], values[order][:-1])

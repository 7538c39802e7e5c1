"""Columns that an export lacks, one at a time and in sets: a report or a clean refusal."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from random import Random

import pytest
from fuzzing.tables import write_arrow, write_sqlite
from helpers.nsys_schemas import Tables, columns, everything, sets, shortened, without

import gpuscope
from gpuscope.errors import InputError
from gpuscope.sources.nsys.export_tables import SqliteTables
from gpuscope.sources.nsys.report_export import device_ids, device_names
from gpuscope.trace.schema import NA

FORMS = ("sqlite", "parquetdir", "arrowdir")
EXPORTS = (
    "bolong/small_fwd_A100",
    "centerformer/poolformer",
    "fuser/report1_h100_2024.6",
    "ihor/result",
    "nsys-ai/mfu_2gpu_after",
    "nsys-ai/mfu_2gpu_before",
    "nsys-ai/mock",
    "pipit/perlmutter-cloverleaf-cuda",
    "pipit/saxpy-mpi-cuda_nsys_perlmutter0",
    "qcu/report1_mpirun_2023.3",
    "qcu/report8_python_2023.3",
    "ynan1/report2",
    "zx3xyy/result",
    "zx3xyy/result_2_7B_nvtx",
)


def bad(folder: Path, tables: Tables, gone: set[tuple[str, str]], form: str, whole: bool = True) -> str:
    """What went wrong without these columns; empty where a report (or, if not `whole`, a trace) was made, or the file
    refused."""
    left = without(tables, gone)
    path = write_sqlite(folder / "x.sqlite", left) if form == "sqlite" else write_arrow(folder, left, form)
    try:
        if not whole:
            gpuscope.open_trace(path)
            return ""
        report = gpuscope.analyze(path, advice=False).report
    except InputError as error:
        return "" if path.name in error.message else f"{sorted(gone)}: the message does not name the file"
    except Exception as error:  # whatever it is, a user would see a traceback
        return f"{sorted(gone)[:5]}: {type(error).__name__}: {error}"
    return "; ".join(f"{sorted(gone)[:5]}: {one['why']}" for one in report["analyzers"] if one["status"] == "failed")


def all_bad(folder: Path, tables: Tables, taken: Iterable[set[tuple[str, str]]], forms: Iterable[str]) -> list[str]:
    """A report of every tenth, a trace of the others: reading is what columns matter to, and the quicker."""
    cases = enumerate((gone, form) for gone in taken for form in forms)
    return [why for place, (gone, form) in cases if (why := bad(folder, tables, gone, form, place % 10 == 0))]


def test_the_export_has_rows_of_everything(tmp_path: Path) -> None:
    trace = gpuscope.open_trace(write_sqlite(tmp_path / "x.sqlite", everything()))
    tables = ("ranks", "device_events", "host_events", "syncs", "collectives", "counters", "steps", "shapes")
    assert [name for name in tables if not len(trace[name])] == []
    assert bad(tmp_path, everything(), set(), "sqlite") == ""


@pytest.mark.parametrize("form", FORMS)
def test_any_column_may_be_absent(tmp_path: Path, form: str) -> None:
    tables = everything()
    alone = [{column} for column in columns(tables)]
    assert all_bad(tmp_path, tables, alone if form == "sqlite" else alone[::12], [form]) == []


@pytest.mark.parametrize("form", FORMS)
def test_any_columns_may_be_absent(tmp_path: Path, form: str) -> None:
    tables = everything()
    assert all_bad(tmp_path, tables, sets(tables, 12, Random(form)), [form]) == []


@pytest.mark.parametrize("name", EXPORTS)
def test_columns_of_other_peoples_exports_may_be_absent(tmp_path: Path, shared_traces: Path, name: str) -> None:
    tables, random = shortened(shared_traces / "nsys" / f"{name}.sqlite"), Random(name)
    every = columns(tables)
    alone = [{column} for column in random.sample(every, min(12, len(every)))]
    assert all_bad(tmp_path, tables, alone, ["sqlite"]) == []
    assert all_bad(tmp_path, tables, sets(tables, 2, random), FORMS) == []


@pytest.mark.parametrize("gone", [{"id"}, {"cuDevice"}, {"id", "cuDevice"}, {"uuid"}, {"uuid", "busLocation", "id"}])
def test_devices_stay_apart_whatever_their_table_lacks(tmp_path: Path, gone: set[str]) -> None:
    """Else a host with two devices would pass for one with one, and its ranks for the whole job."""
    tables = without(everything(), {("TARGET_INFO_GPU", column) for column in gone})
    opened = SqliteTables(write_sqlite(tmp_path / "x.sqlite", tables))
    assert len(set(device_ids(opened).values())) == 2
    assert device_names(opened)[NA, NA] == "NVIDIA H100"

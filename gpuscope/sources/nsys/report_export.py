"""Exports of nsys reports (.nsys-rep, .qdrep): made by nsys itself, once, and read from there.

The export is kept in the user's cache directory, without the profiled program's environment, arguments and output;
nothing is ever written beside the report. It carries a table that says of which report it was made: only such a file is
trusted or replaced. An `X.sqlite` that someone else made beside `X.nsys-rep` is used if it was made from that report
and is not older.
"""

from __future__ import annotations

import os
import re
import shlex
import signal
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpuscope import when_used
from gpuscope.errors import InputError, UsageError
from gpuscope.problems import reading
from gpuscope.recorded_environment import allowed, kept_assignments, redacted
from gpuscope.sources.kineto.event_arguments import dropped_in
from gpuscope.sources.nsys.export_tables import SqliteTables, Tables, looks_like_nsys, pairs
from gpuscope.sources.nsys.recognition import REPORT_MAGIC
from gpuscope.sources.source import ReadOptions
from gpuscope.trace.builder import TraceBuilder
from gpuscope.trace.schema import NA
from gpuscope.when_used import dataclass

if TYPE_CHECKING:
    import sqlite3


# Takes out of an export of ours what a report holds of the profiled program beside its events.
#
# A report keeps the program's whole environment (DeviceEnvironment in TARGET_INFO_SYSTEM_ENV, one row per variable in
# META_DATA_CAPTURE), its arguments, what it printed (ProcessStreams), and messages that quote these.

_ENVIRONMENT, _CAPTURE, _PRINTED = "TARGET_INFO_SYSTEM_ENV", "META_DATA_CAPTURE", "ProcessStreams"
_SAID = "DIAGNOSTIC_EVENT"


def take_out_secrets(database: Path) -> None:
    """Leave of the environment what is allowed, of arguments and output nothing; what is deleted is overwritten.

    Raises `InputError` where the export is no usable SQLite file.
    """
    import sqlite3

    try:
        with closing(sqlite3.connect(database)) as connection:
            connection.text_factory = lambda raw: raw.decode("utf-8", "replace")
            connection.execute("PRAGMA secure_delete=ON")
            tables = {name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
            with connection:
                if _ENVIRONMENT in tables:
                    _shorten_environment(connection)
                if _CAPTURE in tables:
                    _delete_variables(connection)
                if _SAID in tables:
                    _redact_diagnostics(connection)
                if _PRINTED in tables:
                    _delete_output(connection, tables)
    except sqlite3.Error as error:
        raise InputError(f"{database}: nsys's export is no usable SQLite file: {error}") from error


def _shorten_environment(connection: sqlite3.Connection) -> None:
    rows = connection.execute(f"SELECT rowid, value FROM {_ENVIRONMENT} WHERE name = 'DeviceEnvironment'").fetchall()
    for row, value in rows:
        left = kept_assignments(value or "")
        connection.execute(f"UPDATE {_ENVIRONMENT} SET value = ? WHERE rowid = ?", (left, row))


def _delete_variables(connection: sqlite3.Connection) -> None:
    rows = connection.execute(
        f"SELECT rowid, name, value FROM {_CAPTURE} "
        "WHERE name LIKE '%:ENVIRONMENT_VARIABLE' OR name LIKE '%:ARGUMENT_%'"
    ).fetchall()
    for row, name, value in rows:
        if not (name.endswith(":ENVIRONMENT_VARIABLE") and allowed((value or "").partition("=")[0])):
            connection.execute(f"DELETE FROM {_CAPTURE} WHERE rowid = ?", (row,))


def _redact_diagnostics(connection: sqlite3.Connection) -> None:
    for row, text in connection.execute(f"SELECT rowid, text FROM {_SAID}").fetchall():
        if text and (left := redacted(text)) != text:
            connection.execute(f"UPDATE {_SAID} SET text = ? WHERE rowid = ?", (left, row))


def _delete_output(connection: sqlite3.Connection, tables: set[str]) -> None:
    if "StringIds" in tables:
        connection.execute(f"UPDATE StringIds SET value = '' WHERE id IN (SELECT contentId FROM {_PRINTED})")
    connection.execute(f"DELETE FROM {_PRINTED}")


# What an nsys export says of itself: version, clock, what was captured, devices, the profiler's complaints.

_ERROR = 3  # ENUM_DIAGNOSTIC_SEVERITY_LEVEL
_INCOMPLETE = when_used.pattern(r"\bnot all\b.*\bevents\b.*\bcollected\b", re.IGNORECASE)
"""«Not all CUDA events might have been collected.», also where a capture range ended as it should."""
_SWITCHES = {"cuda": "Cuda", "nvtx": "NvtxEvents", "osrt": "OSRuntime"}
_NO_NVIDIA_DEVICE = when_used.pattern(r"intel|microsoft|\bamd\b|radeon|aspeed|matrox", re.IGNORECASE)


@dataclass(frozen=True)
class Facts:
    """Metadata of an export."""

    export: Mapping[str, str]
    capture: Mapping[str, bool | None]
    """Per kind of event (cuda, nvtx, osrt): whether it was captured; None where the file does not say."""
    schema: str
    epoch_ns: int
    """To be added to the file's times to get UTC; 0 where it is not known or already in them."""
    described: Mapping[str, Any]
    """For `SourceFile.facts`."""


def read_facts(tables: Tables) -> Facts:
    """Read the metadata tables of whatever version."""
    export = dict(
        pairs(tables, "EXPORT_META_DATA", "name", "value") + pairs(tables, "META_DATA_EXPORT", "name", "value")
    )
    switches = pairs(tables, "META_DATA_CAPTURE", "name", "value")
    captured = {value for name, value in switches if name == "CAPTURE_EVENT_TYPE"}
    capture = {key: (switch in captured if captured else None) for key, switch in _SWITCHES.items()}
    clock = tables.integers("TARGET_INFO_SESSION_START_TIME", ("utcEpochNs",))["utcEpochNs"]
    start = [int(ns) for ns in clock if ns > 0]
    normalised = export.get("EXPORT_PARAM_TIME_NORMALIZE", "").lower() == "true"
    environment = dict(pairs(tables, "TARGET_INFO_SYSTEM_ENV", "name", "value"))
    described = {
        "export_format": tables.format,
        "product_version": export.get("EXPORT_PRODUCT_VERSION"),
        "capture": capture,
        "session_start_utc_ns": start[0] if start else None,
        "host_name": environment.get("Hostname"),
        "cpu_cores": environment.get("CpuCores"),
        "driver_version": environment.get("NvDriverVersion"),
        "derived": {name: value for name, value in export.items() if name.startswith("DERIVED_")},
    }
    epoch = start[0] if start and not normalised else 0
    return Facts(export, capture, export.get("EXPORT_SCHEMA_VERSION", ""), epoch, described)


def was_exported(facts: Facts, option: str) -> bool | None:
    """Whether an optional part (`BLOBS`, `JSON`) was asked for at export; None where versions do not say."""
    setting = facts.export.get(f"EXPORT_PARAM_INCLUDE_{option}")
    return None if setting is None else setting.lower() == "true"


@dataclass(frozen=True)
class _Gpu:
    """A device of the host that can compute: `number` is its id in the file, else its place in the list."""

    number: int
    ordinal: int
    """As CUDA counts; `NA` where the file does not say."""
    model: str
    identity: str
    """UUID, else PCI address, else the number."""


def _gpus(tables: Tables) -> list[_Gpu]:
    rows = tables.integers("TARGET_INFO_GPU", ("id", "cuDevice"))
    texts = (tables.texts("TARGET_INFO_GPU", column) for column in ("name", "uuid", "busLocation"))
    found: list[_Gpu] = []
    each = zip(rows["id"].tolist(), rows["cuDevice"].tolist(), *texts, strict=True)
    for place, (number, ordinal, model, uuid, address) in enumerate(each):
        if model and not _NO_NVIDIA_DEVICE.search(model):
            number = place if number == NA else number
            found.append(_Gpu(number, ordinal, model, uuid or address or str(number)))
    return found


def device_names(tables: Tables) -> dict[tuple[int, int], str]:
    """Model by (pid, CUDA ordinal); pid `NA` where the file does not distinguish the processes."""
    gpus = _gpus(tables)
    model = {gpu.number: gpu.model for gpu in gpus}
    found = {(pid, ordinal): model[gpu] for pid, ordinal, gpu in _mapped(tables) if gpu in model}
    for gpu in gpus:
        if gpu.ordinal != NA:
            found.setdefault((NA, gpu.ordinal), gpu.model)
    if len({gpu.model for gpu in gpus}) == 1:
        found[NA, NA] = gpus[0].model
    return found


def device_ids(tables: Tables) -> dict[int, str]:
    """UUID, else PCI address, of each of the host's devices that can compute, by its id in the file."""
    return {gpu.number: gpu.identity for gpu in _gpus(tables)}


def _mapped(tables: Tables) -> Iterator[tuple[int, int, int]]:
    """(pid, CUDA ordinal, the device's id in the file) for each process and device."""
    columns = ("pid", "cudaId", "gpuId")
    rows = tables.integers("TARGET_INFO_CUDA_DEVICE", columns)
    for pid, ordinal, gpu in zip(*(rows[column].tolist() for column in columns), strict=True):
        if NA not in (ordinal, gpu):
            yield pid, ordinal, gpu


def devices_used(tables: Tables) -> dict[tuple[int, int], str]:
    """UUID or PCI address by (pid, CUDA ordinal), for the processes whose devices the file distinguishes: with
    CUDA_VISIBLE_DEVICES the ordinals of each process are its own."""
    ids = device_ids(tables)
    return {(pid, ordinal): ids[gpu] for pid, ordinal, gpu in _mapped(tables) if gpu in ids and pid != NA}


def device_name(models: Mapping[tuple[int, int], str], pid: int, ordinal: int) -> str | None:
    """The model of a process's device: as mapped for it, as mapped for all, else the only model there is."""
    for key in ((pid, ordinal), (NA, ordinal), (NA, NA)):
        if key in models:
            return models[key]
    return None


def report_diagnostics(builder: TraceBuilder, tables: Tables) -> None:
    """nsys's own errors and warnings, verbatim: some are false alarms (a child process without CUDA). What it says
    it dropped is counted as lost."""
    severity = tables.integers("DIAGNOSTIC_EVENT", ("severity",))["severity"]
    lines = [" ".join((text or "").split()) for text in tables.texts("DIAGNOSTIC_EVENT", "text")]
    doubts = [bool(_INCOMPLETE.search(line)) for line in lines]
    for line, level, doubt in zip(lines, severity.tolist(), doubts, strict=True):
        if level == _ERROR or doubt:
            builder.problem(reading.NSYS_DIAGNOSTIC, 1, said=redacted(line))
    if lines:
        builder.recording(dropped=dropped_in(lines), incomplete=sum(doubts))


# Running `nsys export`: finding nsys, following its progress, passing on its words when it refuses.

_VERSION = when_used.pattern(REPORT_MAGIC + rb"(\d+)@(\d+)@(\d+)")
_NSYS_EXPORT_SAID = when_used.pattern(r"[Vv]ersion[^\d]{0,24}(\d{4})[.@](\d+)[.@](\d+)")
"""«Report was created in Nsight Systems version (2025.6.1.190)», «Version number is invalid: 2024@6@2@225»."""
_PERCENT = when_used.pattern(rb"(\d{1,3})%")
_PROGRESS = when_used.pattern(r"Exporting \d+ events: \[[^\]]*\]|^\s*Processing.*$", re.MULTILINE)
_WANTED = ("--include-blobs", "--include-json")
"""Off by default, and without them NCCL's sizes stay behind; versions before 2026 may lack them."""


def report_version(path: Path) -> str:
    """The nsys that made a report («2024.6.2»), from its first bytes; "" before 2023, which do not."""
    match = _VERSION.match(_head(path))
    return ".".join(part.decode() for part in match.groups()) if match else ""


def find_nsys(path: Path, wanted: str | None) -> str:
    """The nsys program: `wanted`, else GPUSCOPE_NSYS, else the one on PATH.

    Raises `UsageError` where the one named is not there, `InputError` where there is none.
    """
    import shutil

    named = wanted or os.environ.get("GPUSCOPE_NSYS")
    if named:
        found = shutil.which(named)
        if found is None:
            raise UsageError(f"{named}: no such program", hint="--nsys and GPUSCOPE_NSYS name the nsys executable")
        return found
    found = shutil.which("nsys")
    if found is None:
        version = report_version(path)
        raise InputError(
            f"{path}: reading a report needs NVIDIA's nsys, and none is on PATH",
            hint=f"run this where nsys{f' {version} or later' if version else ''} is installed, and pass "
            f"{path.with_suffix('.sqlite').name} instead:\n  {command_elsewhere(path, version)}\n"
            "or name an nsys with --nsys or GPUSCOPE_NSYS",
        )
    return found


def command_elsewhere(path: Path, version: str) -> str:
    """The command that exports a report, to be run by hand where an nsys of that version is."""
    switches = "".join(f" {switch}=true" for switch in _WANTED) if version >= "2026" else ""
    names = (path.with_suffix(".sqlite").name, path.name)
    return f"nsys export --type sqlite{switches} --output {shlex.quote(names[0])} {shlex.quote(names[1])}"


def export(nsys: str, report: Path, output: Path, status: Callable[[str], None]) -> None:
    """Export `report` to the SQLite file `output`, which must not be there yet.

    Raises `InputError` with nsys's own words where it refuses.
    """
    command = [nsys, "export", "--type", "sqlite"]
    command += [f"{switch}=true" for switch in _WANTED if switch in _help(nsys)]
    command += ["--output", str(output), str(report)]
    status(f"nsys export of {report.name}")
    code, said = _run(command, lambda percent: status(f"nsys export of {report.name}: {percent} %"))
    if code != 0 or not output.exists() or output.stat().st_size == 0:
        raise _refusal(nsys, report, code, said)


def nsys_version(nsys: str) -> str:
    """What `nsys --version` says, e.g. «2022.4.2.1-df9881f»."""
    said = _captured([nsys, "--version"])
    match = re.search(r"\d{4}\.\d+[\w.-]*", said)
    return match[0] if match else said.strip()


def _refusal(nsys: str, report: Path, code: int, said: str) -> InputError:
    words = " ".join(_PROGRESS.sub("", said.replace("\r", "\n")).split()) or f"it ended with status {code}"
    needed, here = _writer(report, words), nsys_version(nsys)
    wanted = f"Nsight Systems {needed} or later" if needed else "a newer Nsight Systems"
    package = f"the package nsight-systems-{needed} of NVIDIA's repositories, or " if needed else ""
    install = (
        f"install {wanted} ({package}https://developer.nvidia.com/nsight-systems), name its nsys by --nsys or "
        "GPUSCOPE_NSYS"
    )
    if needed and _number(needed) <= _number(here):
        install = "the report may be damaged: copy it again"
    wrote = f"; the report was written by Nsight Systems {needed}" if needed else ""
    return InputError(
        f"{report}: nsys can't export it: {words}",
        hint=f"this nsys is {here} ({nsys}){wrote}. {install[0].upper()}{install[1:]}, or run this on a machine that "
        f"has one, and pass {report.with_suffix('.sqlite').name} instead:\n  {command_elsewhere(report, needed)}",
    )


def _writer(report: Path, words: str) -> str:
    """The version that wrote a report, by its first bytes, else by what nsys says of it."""
    found = report_version(report)
    if not found and (told := _NSYS_EXPORT_SAID.search(words)):
        found = ".".join(told.groups())
    return found


def _number(version: str) -> list[int]:
    """A version to be compared: its year, release and update."""
    return [int(part) for part in re.findall(r"\d+", version)[:3]]


def _run(command: list[str], percent: Callable[[int], None]) -> tuple[int, str]:
    """Exit status and output. Whatever interrupts it, no process is left behind."""
    import subprocess

    try:
        # A session of its own: then it and what it starts can be ended together.
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True
        )
    except OSError as error:
        raise InputError(f"{command[0]}: can't be run: {error.strerror or error}") from error
    assert process.stdout is not None
    said = b""
    try:
        while piece := os.read(process.stdout.fileno(), 1 << 16):
            said = (said + piece)[-(1 << 16) :]
            if found := _PERCENT.findall(piece):
                percent(int(found[-1]))
        return process.wait(), said.decode("utf-8", "replace")
    except BaseException:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        raise
    finally:
        process.stdout.close()


def _help(nsys: str) -> str:
    return _captured([nsys, "export", "--help"])


def _captured(command: list[str]) -> str:
    import subprocess

    try:
        done = subprocess.run(command, capture_output=True, timeout=60, stdin=subprocess.DEVNULL, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return (done.stdout + done.stderr).decode("utf-8", "replace")


def _head(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            return file.read(256)
    except OSError:
        return b""


_MARK = "GPUSCOPE_EXPORT"
_DIGESTED = 1 << 20
_ELSEWHERE = "XDG_CACHE_HOME names another cache directory; or export it yourself: nsys export --type sqlite"


def exported(report: Path, options: ReadOptions) -> Path:
    """The SQLite export of a report, made if need be.

    Raises `InputError` where nsys is missing or refuses the report.
    """
    import tempfile

    state = state_of(report)
    if (there := already_exported(report, state)) is not None:
        return there
    nsys = find_nsys(report, options.nsys)
    target = _kept_export(report)
    if target.exists() and _mark_of(target) is None:
        raise InputError(f"{report}: nowhere to keep its export ({target} is not gpuscope's)", hint=_ELSEWHERE)
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        scratch = tempfile.TemporaryDirectory(prefix="export-", dir=target.parent)
    except OSError as error:
        why = f"{target.parent}: {error.strerror or error}"
        raise InputError(f"{report}: nowhere to keep its export ({why})", hint=_ELSEWHERE) from error
    with scratch:
        made = Path(scratch.name) / "export.sqlite"
        export(nsys, report, made, options.status or (lambda _: None))
        take_out_secrets(made)
        _put_mark(made, state, nsys)
        os.replace(made, target)
    return target


def already_exported(report: Path, state: str) -> Path | None:
    """An export of this very report that we made, or else one that someone else made beside it."""
    kept = _kept_export(report)
    if kept.exists() and _mark_of(kept) == state:
        return kept
    beside = report.with_suffix(".sqlite")
    return beside if beside.is_file() and _is_export_of(beside, report) else None


def _kept_export(report: Path) -> Path:
    """Where the export of a report is kept: a folder of its own below the user's cache directory."""
    import hashlib

    from platformdirs import user_cache_path

    whole = os.fspath(report.absolute()).encode()
    private = hashlib.blake2b(whole, digest_size=8).hexdigest()
    return user_cache_path("gpuscope") / "exports" / private / f"{report.name}.sqlite"


def state_of(report: Path) -> str:
    """Changes when the report does; reads no more than its two ends, since reports have gigabytes."""
    import hashlib

    try:
        stat = report.stat()
        with report.open("rb") as file:
            digest = hashlib.blake2b(file.read(_DIGESTED), digest_size=16)
            file.seek(max(0, stat.st_size - _DIGESTED))
            digest.update(file.read(_DIGESTED))
    except OSError as error:
        raise InputError(f"{report}: can't be read: {error.strerror or error}") from error
    return f"{stat.st_size} {stat.st_mtime_ns} {digest.hexdigest()}"


def _put_mark(database: Path, state: str, nsys: str) -> None:
    import sqlite3

    try:
        connection = sqlite3.connect(database)
        with connection:
            connection.execute(f"CREATE TABLE {_MARK} (report TEXT, nsys TEXT)")
            connection.execute(f"INSERT INTO {_MARK} VALUES (?, ?)", (state, nsys_version(nsys)))
        connection.close()
    except sqlite3.Error as error:
        raise InputError(f"{database}: nsys's export is no usable SQLite file: {error}") from error


def _mark_of(database: Path) -> str | None:
    """The state of the report that an export of ours was made of; None for a file that is not ours."""
    try:
        tables = SqliteTables(database)
    except InputError:
        return None
    try:
        marks = list(tables.texts(_MARK, "report"))
    except InputError:
        return None
    finally:
        tables.close()
    return marks[0] if marks else None


def _is_export_of(database: Path, report: Path) -> bool:
    """Whether an export that someone else made is this report's, and not an older one's."""
    if database.stat().st_mtime_ns < report.stat().st_mtime_ns or not looks_like_nsys(database):
        return False
    try:
        tables = SqliteTables(database)
    except InputError:
        return False
    named = [
        value
        for table in ("META_DATA_EXPORT", "EXPORT_META_DATA")
        for name, value in pairs(tables, table, "name", "value")
        if name in ("EXPORT_PARAM_INPUT_FILE", "EXPORT_INPUT_FILE")
    ]
    tables.close()
    return all(Path(name).name == report.name for name in named)

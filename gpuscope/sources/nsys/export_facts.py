"""What an nsys export says of itself: version, clock, what was captured, devices, the profiler's complaints."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from gpuscope import when_used
from gpuscope.problems import completeness
from gpuscope.recorded_environment import redacted
from gpuscope.sources.kineto.wholeness import dropped_in
from gpuscope.sources.nsys.formats.export_tables import Tables, pairs
from gpuscope.trace.builder import TraceBuilder
from gpuscope.trace.schema import NA
from gpuscope.when_used import dataclass

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
            builder.problem(completeness.NSYS_DIAGNOSTIC, 1, said=redacted(line))
    if lines:
        builder.recording(dropped=dropped_in(lines), incomplete=sum(doubts))

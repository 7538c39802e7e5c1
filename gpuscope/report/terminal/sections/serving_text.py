"""The section `serving` in words: an inference server's steps by phase, and how long requests wait for tokens."""

from __future__ import annotations

from collections.abc import Iterator

from gpuscope.catalogue.cause_table import cause_label
from gpuscope.report.terminal.screen import Writer
from gpuscope.schema.document import Report
from gpuscope.schema.serving_section import ServingPhase, ServingSection
from gpuscope.words import units
from gpuscope.words.vocabulary import CLASSES

SERVERS = {"vllm": "vLLM", "sglang": "SGLang", "tensorrt_llm": "TensorRT-LLM"}
HEAD = ("steps", "step", "comp.", "comm.", "mem.", "idle", "CPU", "gap", "tokens/s")
"""Of `row`."""
BATCHES_SHOWN = 8


def section(report: Report, writer: Writer) -> None:
    """Nothing of other programs."""
    if "serving" not in report:
        return
    serving = report["serving"]
    writer.heading("Serving by phase")
    writer.rows((f"<{HEAD[0]}", *(f">{name}" for name in HEAD[1:])), map(row, serving["phases"]))
    for sentence in sentences(serving):
        writer.line(sentence, hang=2)


def row(one: ServingPhase) -> list[str]:
    """The cells of one phase, as `HEAD` names them."""
    parts = one["breakdown_ns"]
    columns = (parts["compute"], parts["exposed_communication"], parts["exposed_memory"], parts["idle"])
    spent = max(sum(columns), 1)
    rate = one["tokens_per_s"]
    return [
        f"{one['steps']} {one['phase'] or 'unknown'}",
        units.duration(one["step_ns"]),
        *(units.share(part / spent) for part in (*columns, one["cpu_ns"])),
        units.duration(one["gap_ns"]),
        units.NONE if rate is None else units.count(round(rate)),
    ]


def sentences(serving: ServingSection, *, waits: bool = True) -> list[str]:
    """What bounds each phase, its batch, its work and roofs; `waits` for tokens; batches that run without graphs."""
    told = [sentence for one in serving["phases"] for sentence in _of_phase(one)]
    told += _waits(serving) if waits else ()
    eager = [one for one in serving["batches"] if one["graphed_frac"] < 0.5]
    replayed = [one for one in serving["batches"] if one["graphed_frac"] >= 0.5]
    for one in eager[:BATCHES_SHOWN] if replayed else ():
        told.append(
            f"decode of {one['requests']} requests runs without graphs: {units.duration(one['step_ns'])}, of which "
            f"{units.duration(one['launch_ns'])} wait for launches"
        )
    if serving["captured"]:
        told.append(f"graphs captured for {', '.join(map(str, serving['captured']))}")
    return told


def _of_phase(one: ServingPhase) -> Iterator[str]:
    name = one["phase"] or "steps of unknown phase"
    bound = one["bound_by"]
    by = "compute" if bound == "compute" else CLASSES[bound]
    cause = f", most of it {cause_label(one['cause'])}" if one["cause"] else ""
    batch = [
        f"{units.count(round(number))} {what}"
        for number, what in (
            (one["prefill_requests"], "prompts"),
            (one["prefill_tokens"], "tokens of prompts"),
            (one["decode_requests"], "requests that decode"),
        )
        if number
    ]
    means = f"; per step {', '.join(batch)}" if batch and one["phase"] != "capture" else ""
    yield f"{name}: bound by {by} ({units.share(one['cause_frac'])}{cause}){means}"
    if one["launches"]:
        graphs = f", {one['graphs']:.0f} of them graphs with {units.share(one['graphed_frac'])} of its kernels"
        host = f"; the host is done in {units.duration(one['host_ns'])}" if one["host_ns"] is not None else ""
        yield (
            f"  {one['launches']:.0f} launches per step{graphs if one['graphs'] else ', none of them a graph'}: "
            f"{units.duration(one['call_ns'])} in the calls{host}"
        )
    spent = sum(part["dur_ns"] for part in one["work"])
    if spent:
        yield "  kernels: " + ", ".join(
            f"{part['kind']} {units.share(part['dur_ns'] / spent)}"
            + (f" ({units.share(part['floor_frac'])} of its roof)" if part["floor_frac"] is not None else "")
            for part in one["work"]
        )


def _waits(serving: ServingSection) -> Iterator[str]:
    interval, first = serving["token_interval"], serving["first_token"]
    if interval is not None:
        alone = serving["decode_alone_ns"]
        than = f"; {units.duration(alone)} where nothing but decode runs" if alone is not None else ""
        spread = (
            f" (90th percentile {units.duration(interval['p90_ns'])}, longest {units.duration(interval['max_ns'])})"
            if interval["count"] > 1
            else ""
        )
        yield f"time per token: {units.duration(interval['median_ns'])}{spread}{than}"
    if first is not None:
        yield (
            f"first token of a prompt that fits one step: {units.duration(first['median_ns'])}, without waiting for "
            "its turn"
        )

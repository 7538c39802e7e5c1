"""A change and what the replay predicts of it, in words: the same ones wherever they are shown."""

from __future__ import annotations

from gpuscope import when_used
from gpuscope.catalogue.suggestion import finding_words, what_it_takes
from gpuscope.schema.document import (
    NothingGainsEntry,
    PlanEntry,
    PlanStep,
    StepBound,
    SuggestionEntry,
    UnpredictedEntry,
)
from gpuscope.schema.provenance import PipelineGain, Prediction
from gpuscope.words import units


def step_change(predicted: Prediction) -> str:
    """`step 117.4 ms → 59.97 ms (58.27 ms to 61.67 ms)`."""
    before, after, low, high = (
        units.duration(predicted[key]) for key in ("step_ns_before", "step_ns_after", "low_ns", "high_ns")
    )
    return f"step {before} → {after} ({low} to {high})"


def gain(one: SuggestionEntry) -> str:
    """`step_change`, that it may gain nothing where that is so, and what `besides` says."""
    return step_change(one["predicted"]) + doubt(one.get("certain", True)) + besides(one)


def doubt(certain: bool) -> str:
    """Of a change whose range reaches past the step as it is."""
    return "" if certain else ", may gain nothing"


def besides(one: SuggestionEntry) -> str:
    """What is said behind a step with its range: the other figure where there are two, and where a gain comes from that
    is larger than what its finding costs."""
    told = ""
    if (unused := one.get("if_unused")) is not None:
        after = f"{units.duration(unused['step_ns_after'])} ({units.duration(unused['low_ns'])} to "
        after += f"{units.duration(unused['high_ns'])})"
        told += f" with the values read at the step's end; {after} where the work behind the calls needs none of them"
    if (beyond := one.get("beyond")) is not None:
        sources = [f"{_PARTS.get(part, part)} ({units.duration(ns)})" for part, ns in beyond["saved_ns"].items()]
        if beyond["causes"]:
            sources.insert(0, f"what counts as {' and '.join(beyond['causes'])} now")
        more, cost = units.duration(beyond["ns"]), units.duration(beyond["cost_ns"])
        told += f"; {more} of it beyond what {finding_words(one['finding'])} costs ({cost}): "
        told += ", ".join(sources) or "steps in which it costs more than on average"
    return told


_PARTS = {
    "compute": "less compute",
    "exposed_communication": "less exposed communication",
    "exposed_memory": "fewer exposed copies",
    "idle": "less idle time",
}


def gain_share(predicted: Prediction) -> str:
    """`-24.9 %`: what the step loses."""
    frac = predicted["step_ns_after"] / predicted["step_ns_before"] - 1
    return units.signed(frac) if abs(frac) >= 0.0005 else "0 %"


def gain_cell(predicted: Prediction, certain: bool) -> str:
    """`24.9 %`: the part of the step that is gained, `-3.1 %` where it gets longer; `24.9 %, unsure` where the range
    reaches past the step as it is."""
    frac = 1 - predicted["step_ns_after"] / predicted["step_ns_before"]
    gain = f"{100 * frac:.1f} %" if abs(frac) >= 0.0005 else "0 %"
    return gain + ("" if certain or frac <= 0 else ", unsure")


def bound_share(bound: StepBound) -> str:
    """`up to 33 %`: what of the step can vanish at most."""
    frac = 1 - bound["step_ns_low"] / bound["step_ns_before"]
    return f"up to {100 * frac:.0f} %" if frac >= 0.01 else f"up to {100 * frac:.1f} %"


def bound_change(bound: StepBound) -> str:
    """`step 100.0 ms → 67.0 ms at best, if all of it vanished and nothing else changed`."""
    before, low = (units.duration(bound[key]) for key in ("step_ns_before", "step_ns_low"))
    return f"step {before} → {low} at best, {bound['basis']}"


def setting_words(one: SuggestionEntry | UnpredictedEntry | PlanStep, *, brief: bool = True, now: bool = False) -> str:
    """A setting as it is typed: `NCCL_ALGO=Ring`, `--num-workers 4`, `DataLoader(num_workers=4)`; in words where it is
    none that could be. `brief` leaves out second choices, remarks and long module names, which the full report has;
    `now` puts the present value before the new one where it is known: `DataLoader(num_workers=0 → 4)`."""
    setting = one["setting"]
    name, value = setting["name"], setting["value"]
    if now and "now" in setting:
        value = f"{setting['now']} → {value}"
    if besides := setting.get("besides"):
        value = f"{value}, {besides}"
    if brief:
        value = value.partition(";")[0].strip()
        value = value if value.startswith("None") else value.partition("  #")[0].strip()
        value = value if len(value) <= VALUE else value.partition(" (")[0] or value
        name, value = _MODULES.sub("", name), _MODULES.sub("", value)
    if setting["kind"] == "env" and value.split(" ")[0] == "unset":
        return f"unset {name}{value.removeprefix('unset')}"
    if name.endswith(".pipelining"):
        return f"{name}.{value}"
    if setting["kind"] == "python" and (call := _call(name, value)):
        return call
    return f"{name}{_between(name, value, setting['kind'])}{value}".rstrip()


def is_copied(setting: str) -> bool:
    """Whether a setting can be pasted: one in words can't."""
    return ": " not in setting.partition("  #")[0]


def _call(name: str, value: str) -> str:
    """`DataLoader(num_workers=4)`, `torch.compile(model)`; empty for what is no call."""
    value, mark, remark = value.partition("  #")
    owner, _, argument = name.rpartition(".")
    if value.startswith("("):
        return f"{name}{value}{mark}{remark}"
    if argument in CALLED:
        return f"{name}({value}){mark}{remark}"
    literal = bool(value) and (" " not in _WRITTEN.sub("", value) or value[0] in "\"'")
    takes = owner.rpartition(".")[2]
    return f"{owner}({argument}={value}){mark}{remark}" if literal and (takes in TAKING or _CLASS.match(takes)) else ""


VALUE = 40
"""A longer value of a setting loses what it says in brackets, where there is little room."""
CALLED = (
    "autocast",
    "compile",
    "init_process_group",
    "scaled_dot_product_attention",
    "schedule",
    "sdpa_kernel",
    "set_float32_matmul_precision",
    "to",
)
"""Functions that are settings by themselves, the value their arguments."""
TAKING = ("checkpoint", "compile", "from_pretrained", "fully_shard", "init_device_mesh", "profile")
"""Functions of which a setting is one argument; of a class its name says so."""
_CLASS = when_used.pattern(r"[A-Z][A-Za-z]+$")
_WRITTEN = when_used.pattern(r" → |, (?=\w+=)")
"""What stands between values and arguments that are literals themselves."""
_MODULES = when_used.pattern(r"\btorch\.(?:distributed\.algorithms\.ddp_comm_hooks|nn\.parallel)\.")
"""Modules that are imported by their last names."""


def _between(name: str, value: str, kind: str) -> str:
    if not value:
        return ""
    if " -" in name or name.startswith("-") or value.startswith("-"):
        return " "
    return ": " if " " in name or (" " in value and kind != "env") else "="


def outcome(gain: PipelineGain) -> str:
    """What a change of the pipeline would bring, or why that is not predicted."""
    predicted = gain["predicted"]
    if predicted is None:
        return f"not predicted: {gain['why_not']}"
    return step_change(predicted) + doubt(predicted["high_ns"] < predicted["step_ns_before"])


def with_basis(gain: PipelineGain) -> str:
    """The same, and what it rests on."""
    predicted = gain["predicted"]
    return outcome(gain) + (f"; {predicted['basis']}" if predicted is not None else "")


def plan(entry: PlanEntry) -> str:
    """`step 117.4 ms → 59.97 ms (58.27 ms to 61.67 ms): remove_syncs → 80.1 ms, then loader_workers → 59.97 ms`."""
    steps = (f"{one['code']} → {units.duration(one['step_ns_after'])}" for one in entry["steps"])
    return f"{step_change(entry['predicted'])}: {', then '.join(steps)}"


def nothing_gains(entry: NothingGainsEntry) -> str:
    """`kernel launch overhead: 12.1 % of the time, and nothing tried gains: cuda_graphs → 117.2 ms; any other
    change gains up to 12 % (step 117.4 ms → 103.3 ms at best, if all of it vanished and nothing else changed)`."""
    tried = ", ".join(f"{one['code']} → {units.duration(one['step_ns_after'])}" for one in entry["tried"])
    told = f"{what_it_takes(entry['finding'], entry['share_frac'])}, and nothing tried gains: {tried}"
    if "bound" not in entry:
        return told
    return f"{told}; any other change gains {bound_share(entry['bound'])} ({bound_change(entry['bound'])})"

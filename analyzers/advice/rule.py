"""What a rule is.

A rule is a module of this package with a `RULE`. It reads a report's findings and facts, never tables, and
proposes exact settings; the replay alone says what each would gain on the user's own trace (`suggesting.py`), alone and
together with others (`combining.py`).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import cache
from typing import Literal

from gpuscope.analyzers.advice.settings import torch_settings
from gpuscope.analyzers.advice.settings.other_settings import OF_LIGHTNING
from gpuscope.analyzers.allocator.allocator_settings import merged, variable
from gpuscope.analyzers.what_if_changes import Change, Predicted, Refused
from gpuscope.catalogue.finding import FUSED_ON_SHARDED
from gpuscope.catalogue.suggestion import UNDIVIDED, Suggestion
from gpuscope.plugins import listed
from gpuscope.report.view.report_rows import per_step_ns
from gpuscope.schema.call_tree_section import HostCallsEntry
from gpuscope.schema.document import Diagnosis, FindingEntry, MemoryBound, RankEntry, Setting, SetupEntry
from gpuscope.schema.provenance import ExpertGain, RoleGain
from gpuscope.trace.frameworks import SERVERS, WRAPPERS, Program
from gpuscope.when_used import dataclass

Predict = Callable[[Sequence[Change]], Predicted | Refused]
"""What a replay of the run says of changes made together."""
Estimate = Callable[[Sequence[Change]], int | Refused]
"""The step that changes made together lead to, ns, without its range: much quicker than a prediction."""


@dataclass(frozen=True)
class Proposal:
    """One exact setting that answers a finding, and the changes of the replay that it amounts to.

    Proposals of one code (and `subject`) are values of one knob, of which one is taken: list the least intrusive first.
    Give `changes` wherever the replay knows them: what has only an `outcome` can't become part of a plan.
    """

    finding: FindingEntry
    record: Suggestion
    setting: Setting
    changes: tuple[Change, ...] = ()
    outcome: Predicted | Refused | None = None
    """Where the rule knows the outcome from elsewhere (a replay of the allocator), not from `changes`."""
    possible_after: tuple[str, ...] = ()
    """Codes of suggestions after which `changes` can be made, though `outcome` refuses them as the run is now."""
    if_unused: tuple[Change, ...] = ()
    """The changes where the host does not need the values that `changes` carefully brings it later."""
    differs: bool = False
    """Whether the rule has seen that the run has another value, where this one is the library's default."""
    gains_time: bool = True
    """False for what saves something else than time (memory): kept though the step takes as long."""
    at_most: int | None = None
    """ns per step that it can save at most, where that is less than its finding costs."""
    saves: MemoryBound | None = None
    """What it saves at most of the peak of memory, where a snapshot shows that."""
    path: str = ""
    """The snapshot that it is for, where there are several of different jobs: then each has its own suggestion."""

    @property
    def code(self) -> str:
        """Of the suggestion."""
        return self.record.code

    @property
    def known(self) -> Predicted | Refused | None:
        """The outcome, where no replay is needed to tell it."""
        return self.outcome or (Refused(self.says("why_not")) if self.record.why_not else None)

    def says(self, text: str) -> str:
        """One of the texts of the record."""
        return self.record.says(text, self.finding)


BUFFERS = "ddp.buffers"
"""How many buffers models have that DistributedDataParallel wraps, as the recorder calls it."""
_NO_SETUP: SetupEntry = {"versions": {}, "variables": {}, "cores_per_rank": None, "stacks": False}


@dataclass(frozen=True)
class Case:
    """What rules see of a run."""

    report: Diagnosis
    predict: Predict
    estimate: Estimate = lambda _: Refused("")

    @property
    def step_ns(self) -> int | None:
        """«The step»; None without steps."""
        step = self.report["step_time"]
        return step["median_ns"] if step else None

    @property
    def program(self) -> Program | None:
        """The kind of program; None where the files hold no events that could tell."""
        return self.report["trace"]["program"]

    @property
    def native(self) -> bool:
        """Whether the program calls CUDA or HIP itself: nothing of PyTorch or JAX can be set in it."""
        return self.program == "native"

    @property
    def host_calls(self) -> list[HostCallsEntry]:
        """What the launching threads of each rank call per step."""
        return self.report.get("host_calls", [])

    @property
    def rocm(self) -> bool:
        """Whether the devices are AMD's."""
        return any(entry["runtime"] == "hip" for entry in self.host_calls)

    @property
    def by_nsys(self) -> bool:
        """Whether nsys recorded any of it."""
        return any(source["format"].startswith("nsys") for source in self.report["trace"]["sources"])

    @property
    def steady_steps(self) -> int:
        """How many step numbers are steady on some rank."""
        return len({step["step"] for step in self.report["steps"] if step["role"] == "steady"})

    def version(self, package: str) -> tuple[int, ...]:
        """Numbers of the recorded version of a package; () where it is not recorded."""
        told = self.report["trace"].get("setup", _NO_SETUP)["versions"].get(package, "")
        if package == "nccl" and not told and "nccl" in self.report:
            told = next(iter(self.report["nccl"]["versions"]), "")
        return tuple(int(part) for part in re.match(r"[\d.]*", told)[0].split(".") if part)  # type: ignore[index]

    @property
    def variables(self) -> Mapping[str, str]:
        """Recorded environment variables that change how fast the job runs."""
        return self.report["trace"].get("setup", _NO_SETUP)["variables"]

    @property
    def settings(self) -> Mapping[str, list[str]]:
        """By setting, as the recorder calls it, the values that it saw in effect."""
        return self.report["trace"].get("setup", _NO_SETUP).get("settings", {})

    @property
    def without_buffers(self) -> bool:
        """Whether no model that DistributedDataParallel wraps has buffers, as the recorder saw."""
        return self.settings.get(BUFFERS, []) == ["0"]

    @property
    def stacks(self) -> bool:
        """Whether Python stacks were recorded."""
        return self.report["trace"].get("setup", _NO_SETUP)["stacks"]

    @property
    def cores_per_rank(self) -> int | None:
        """CPU cores for each rank; None where they are not recorded."""
        return self.report["trace"].get("setup", _NO_SETUP)["cores_per_rank"]

    @property
    def frameworks(self) -> list[str]:
        """Frameworks that left a mark in the trace, the outermost first."""
        return self.report["trace"]["frameworks"]

    def finding(self, code: str) -> FindingEntry | None:
        """The costliest finding of that code."""
        return next((finding for finding in self.report["findings"] if finding["code"] == code), None)


@dataclass(frozen=True)
class Rule:
    """A topic of advice: the records of what it may suggest, and what it proposes for one finding."""

    name: str
    records: tuple[type[Suggestion], ...]
    propose: Callable[[Case, FindingEntry], Iterable[Proposal]]
    programs: tuple[Program, ...] = ("pytorch",)
    """Kinds of programs that have its settings. Where the kind is unknown, every rule applies."""
    place: int = 500
    """Where its settings stand among others that are as good: the lowest first, of one place by name."""

    @property
    def answers(self) -> frozenset[str]:
        """Codes of the findings that it answers."""
        return frozenset(code for record in self.records for code in record.answers)


@cache
def rules() -> tuple[Rule, ...]:
    """The rules of this package, by their place."""
    found: list[Rule] = listed("gpuscope.analyzers.advice.rules", "RULE")
    return _in_order(found)


def rules_for(codes: Collection[str]) -> tuple[Rule, ...]:
    """Those that may answer findings of these codes, which their files name: the others need not be imported."""
    words = [f'"{code}"' for code in codes] + ["UNDIVIDED"] * (UNDIVIDED in codes)
    return _in_order(listed("gpuscope.analyzers.advice.rules", "RULE", words))


def _in_order(found: Iterable[Rule]) -> tuple[Rule, ...]:
    return tuple(sorted(found, key=lambda rule: (rule.place, rule.name)))


def suggestions() -> dict[str, list[type[Suggestion]]]:
    """All that may be suggested, by code: several records where it has other words, or several rules suggest it."""
    found: dict[str, list[type[Suggestion]]] = {}
    for record in (record for rule in rules() for record in rule.records):
        found.setdefault(record.code, []).append(record)
    return dict(sorted(found.items()))


def is_startup(report: Diagnosis) -> bool:
    """Whether the recording was found to be start-up, without steady steps."""
    return any(finding["code"] == "startup" and finding["share_frac"] > 0 for finding in report["findings"])


def as_reported(gain: ExpertGain | RoleGain) -> Predicted | Refused:
    """The outcome that a section of the report holds already."""
    told = gain["predicted"]
    if told is None:
        return Refused(gain["why_not"])
    return Predicted(
        told["step_ns_before"],
        told["step_ns_after"],
        told["low_ns"],
        told["high_ns"],
        told["basis"],
        told["provenance"],
    )


# Settings as reports name them, and which framework's name for a change a trace calls for.


def env(name: str, value: str) -> Setting:
    """An environment variable."""
    return {"kind": "env", "name": name, "value": value}


def python(name: str, value: str) -> Setting:
    """An argument or call in the training script: `name` is where it goes, `value` is Python."""
    return {"kind": "python", "name": name, "value": value}


def config(name: str, value: str) -> Setting:
    """A key of a framework's configuration, or an option of its command line."""
    return {"kind": "config", "name": name, "value": value}


def allocator(case: Case, option: str, value: str) -> Setting:
    """An option of PyTorch's caching allocator, beside those that are recorded as set, by the variable that the job's
    torch reads."""
    name = variable(modern=case.version("torch") >= torch_settings.ALLOC_CONF.since, set_already=case.variables)
    return env(name, merged(case.variables.get(name, ""), option, value))


def in_dialect(case: Case, names: Mapping[str, Setting]) -> Setting | None:
    """The setting as the outermost framework of the trace names it; None where it has no name for it.

    A job of DeepSpeed, Megatron or Horovod is configured there and nowhere else, whatever it uses inside.
    """
    for framework in case.frameworks:
        if framework in names:
            return names[framework]
        if framework in ("deepspeed", "megatron", "horovod"):
            return None
    return None


RANGED = ("ddp", "fsdp", "fsdp2", "deepspeed")
"""Those whose ranges stand among recorded operators wherever they run: without one they are ruled out."""
CALLED = {
    "ddp": "DDP",
    "fsdp": "FSDP1",
    "fsdp2": "FSDP2",
    "deepspeed": "DeepSpeed",
    "megatron": "Megatron",
    "horovod": "Horovod",
}


_HAVE_OWN = WRAPPERS | SERVERS | {"torchtitan"}
"""Those that have a name of their own for such a setting, or none."""


def could_be(case: Case) -> list[str]:
    """Frameworks that may reduce gradients for a program in which none left a mark; empty where one did, and of
    programs that call CUDA themselves."""
    if case.program not in ("pytorch", None) or WRAPPERS & set(case.frameworks):
        return []
    ruled_out = RANGED if case.report.get("operators") else ()
    return [name for name in CALLED if name not in ruled_out]


def of_anyone(case: Case, what: str, names: Mapping[str, Setting], own: str) -> Setting | None:
    """One setting in the words of each framework that could have made these collectives, and of a program's own; None
    where a framework left its mark, in whose words it is to be said."""
    if _HAVE_OWN & set(case.frameworks) or case.program == "jax":
        return None
    told = [f"{CALLED[name]} {_short(names[name])}" for name in could_be(case) if name in names]
    return config(what, ", ".join([*told, f"own code: {own}"]))


def _short(setting: Setting) -> str:
    name = setting["name"].rpartition(".")[2]
    value = setting["value"].partition("  #")[0].strip()
    return f"{name}{' ' if name.startswith('-') else '='}{value}" if value else name


def by_framework(case: Case, otherwise: Setting, **names: Setting) -> Setting:
    """The same, `otherwise` where the framework has no name for it."""
    return in_dialect(case, names) or otherwise


def of_wrapper(case: Case, setting: Setting) -> Setting:
    """An argument of DDP as Lightning's strategy takes it, which wraps the model itself."""
    known = OF_LIGHTNING.get(setting["name"])
    if known is None or "lightning" not in case.frameworks:
        return setting
    value = setting["value"]
    if setting["name"] == torch_settings.COMM_HOOK.name:
        state, _, hook = value.removeprefix("(").removesuffix(")").rpartition(", ")
        value = hook if state == "None" else f"{hook}, ddp_comm_state={state}"
    elif setting["name"] == torch_settings.NO_SYNC.name:
        value = "the micro-batches of a step"
    return {**setting, "kind": known.kind, "name": known.name, "value": value}


def fusable(case: Case, optimizers: Iterable[str]) -> list[str]:
    """Those of these classes whose fused form takes the parameters as the job holds them."""
    return [name for name in optimizers if name in FUSED_ON_SHARDED or "fsdp2" not in case.frameworks]


def spelled(case: Case, text: str) -> str:
    """Calls of CUDA's runtime as the job's own runtime names them."""
    return text.replace("cudaMallocHost", "hipHostMalloc").replace("cuda", "hip") if case.rocm else text


def megabytes(size: int) -> str:
    """Bytes as a whole number of MiB, the unit of DDP's buckets."""
    return str(size >> 20)


def step_now(case: Case) -> int:
    """What predictions start from, ns: «the step», without steps the longest window."""
    step = case.report["step_time"]
    return step["median_ns"] if step else max((rank["window_ns"] for rank in case.report["ranks"]), default=0)


def needed(case: Case, rank: RankEntry, *parts: PartName) -> int:
    """ns per step that these parts of a rank's breakdown take; without steps in its window."""
    spent = sum(rank["breakdown_ns"][part] for part in parts)
    of_step = per_step_ns(spent / max(rank["window_ns"], 1), case.step_ns)
    return spent if of_step is None else of_step


PartName = Literal["compute", "exposed_communication", "exposed_memory"]


def device_waits(case: Case) -> bool:
    """Whether the devices idle longer than they compute: there shorter kernels leave longer gaps."""
    parts = [rank["breakdown_ns"] for rank in case.report["ranks"]]
    return sum(part["idle"] for part in parts) > sum(part["compute"] for part in parts)


def on_cpu(case: Case) -> bool:
    """Whether the training threads are the devices."""
    return all(rank["device"] is None for rank in case.report["ranks"])

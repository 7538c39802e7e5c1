"""Training on a CPU: its threads, and the optimizer's pass over the parameters."""

from __future__ import annotations

from collections.abc import Iterator

from gpuscope.analyzers.advice.framework_settings import by_framework, fusable, on_cpu
from gpuscope.analyzers.advice.rule import Case, Proposal, Rule
from gpuscope.analyzers.advice.rules.compute.kernel_rules import OptimizerFused
from gpuscope.analyzers.advice.settings import other_settings, torch_settings
from gpuscope.catalogue.suggestion import Suggestion
from gpuscope.schema.document import FindingEntry
from gpuscope.schema.profile_sections import RangeEntry
from gpuscope.when_used import dataclass

WORTH = 0.1
"""Share of the steps that the optimizer takes at least."""
FUSED = "aten::_fused_"


@dataclass(frozen=True)
class FewerThreads(Suggestion):
    """No more threads than cores."""

    code = "cpu_threads"
    answers = ("waits_for_core",)
    sets = "`OMP_NUM_THREADS`, where operators take more threads than the rank has cores"
    action = "Compute in {now} threads at most"
    why = (
        "{cost}; operators run in {threads} threads where each rank has {now} of {cores} cores, and each waits for the "
        "slowest of its threads"
    )
    why_not = "how long operators take in fewer threads is not in a trace: try it"
    risk = "a call of torch.set_num_threads in the script goes before the variable"
    verify = "record again: the finding `waits_for_core` is gone or smaller"

    threads: int
    cores: int
    now: int
    """Threads of each process, so that all of them have a core."""


class OptimizerFusedOnCpu(OptimizerFused):
    """The fused implementation where there are no kernels to count."""

    answers = ("host_other",)
    why = "{cost}; the optimizer takes several operators per parameter, a fused one takes a call for all of them"
    why_not = "how long the fused implementation takes here is not in a trace: try it"
    verify = "record again: `aten::_fused_…` in place of the optimizer's many operators"


def propose(case: Case, finding: FindingEntry) -> Iterator[Proposal]:
    """By the finding."""
    if finding["code"] == "waits_for_core":
        facts = finding.get("facts", {})
        threads, cores = facts.get("threads") or 0, facts.get("cores") or 0
        now = (
            case.cores_per_rank or cores
        )  # a host's ranks share its cores, but not every trace says how many there are
        if threads > now > 0 < cores:
            now = case.cores_per_rank or max(1, cores // max(1, len(case.report["trace"]["ranks_present"])))
            yield Proposal(finding, FewerThreads(threads, cores, now), other_settings.OMP_THREADS.to(str(now)))
    elif on_cpu(case) and (names := _by_parameter(case)):
        by_hand = torch_settings.FUSED_ON_CPU[names[0]].to("True")
        adamw = {"transformers": other_settings.TRAINER_OPTIM.to('"adamw_torch_fused"')}
        setting = by_framework(case, by_hand, **(adamw if names == ["AdamW"] else {}))
        most = max(_mean(one) for name in names for one in _steps_of(case, name))
        yield Proposal(finding, OptimizerFusedOnCpu(), setting, at_most=most)


def _by_parameter(case: Case) -> list[str]:
    """The optimizers that could be fused and are not, where they take a good part of the steps."""
    if any(one["name"].startswith(FUSED) for one in case.report.get("operators", ())) or (
        case.version("torch") and case.version("torch") < torch_settings.FUSED_ON_CPU_SINCE
    ):
        return []
    names = fusable(case, torch_settings.FUSED_ON_CPU)
    spent = {name: sum(map(_spent, _steps_of(case, name))) for name in names}
    whole = sum(rank["window_ns"] for rank in case.report["ranks"])
    return [name for name, taken in spent.items() if taken > 0] if sum(spent.values()) >= WORTH * whole > 0 else []


def _spent(steps: RangeEntry) -> int:
    """ns of an optimizer's steps, without the forward and backward of a closure in them."""
    return steps["update_ns"] if "update_ns" in steps else steps["host_ns"]


def _mean(steps: RangeEntry) -> int:
    return steps["update_ns"] // steps["count"] if "update_ns" in steps else steps["host_mean_ns"]


def _steps_of(case: Case, name: str) -> list[RangeEntry]:
    return [one for one in case.report.get("ranges", ()) if one["name"] == f"Optimizer.step#{name}.step"]


RULE = Rule("cpu", (FewerThreads, OptimizerFusedOnCpu), propose, place=115)

"""Which ranks share a host."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from gpuscope.analyzers.advice.framework_settings import by_framework, config, python
from gpuscope.analyzers.advice.rule import Case, Proposal, Rule
from gpuscope.catalogue.suggestion import Suggestion
from gpuscope.schema.document import FindingEntry


@dataclass(frozen=True)
class InsideHost(Suggestion):
    """The group that communicates most on neighbouring ranks."""

    code = "inside_host"
    answers = ("group_across_hosts",)
    sets = "the order of the device mesh: tensor parallel within a host"
    action = "Lay the ranks out so that this group lies within one host, pipeline and data parallel across hosts"
    why = "{message}"
    why_not = (
        "this trace does not show how fast the group is within a host: measure it with `gpuscope bench collectives` on "
        "one host"
    )
    risk = "checkpoints sharded by the old layout must be resharded (DCP does it on loading)"
    verify = "record again: the group's busbw is that of the link inside the host"


def propose(case: Case, finding: FindingEntry) -> Iterator[Proposal]:
    """The dimension that talks most innermost, so that it stays within a host."""
    setting = by_framework(
        case,
        python("init_device_mesh.mesh_dim_names", '("pp", "dp", "tp")  # the last one is innermost'),
        megatron=config("--tensor-model-parallel-size", "at most the GPUs of one host"),
    )
    yield Proposal(finding, InsideHost(), setting)


RULE = Rule("placement", (InsideHost,), propose, place=210)

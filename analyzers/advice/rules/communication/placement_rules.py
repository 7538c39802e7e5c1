"""Which ranks share a host."""

from __future__ import annotations

from collections.abc import Iterator

from gpuscope.analyzers.advice.framework_settings import config, in_dialect, python
from gpuscope.analyzers.advice.rule import Case, Knob, Proposal, Rule
from gpuscope.analyzers.changes import Refused
from gpuscope.schema.document import FindingEntry


def propose(case: Case, finding: FindingEntry) -> Iterator[Proposal]:
    """The dimension that talks most innermost, so that it stays within a host."""
    setting = in_dialect(case, {"megatron": config("--tensor-model-parallel-size", "at most the GPUs of one host")})
    yield Proposal(
        code="inside_host",
        action="Lay the ranks out so that this group lies within one host, pipeline and data parallel across hosts",
        why=finding["message"],
        setting=setting or python("init_device_mesh.mesh_dim_names", '("pp", "dp", "tp")  # the last one is innermost'),
        risk="checkpoints sharded by the old layout must be resharded (DCP does it on loading)",
        verify="record again: the group's busbw is that of the link inside the host",
        outcome=Refused("how fast the group is inside a host is not in this trace: measure it with "
                        "`gpuscope bench collectives` on one host"),
    )  # fmt: skip


RULE = Rule(
    "placement",
    (Knob("inside_host", ("group_across_hosts",), "the order of the device mesh: tensor parallel within a host"),),
    propose,
    place=210,
)

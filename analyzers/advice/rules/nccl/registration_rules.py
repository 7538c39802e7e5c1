"""Fewer copies and fewer SMs for collectives within NVLink: symmetric memory, copy engines, CTA policy.

Names and versions after NVIDIA/nccl docs/userguide/source/usage/bufferreg.rst and env.rst (2.32), PyTorch 2.13
(`FSDPModule.set_symm_mem_for_comm`, since 2.12), Megatron-LM (`--use-nccl-ub`). Measured elsewhere on 8 H100 with NCCL
2.29: all-gather and reduce-scatter of 1 to 16 MiB 1.3 to 2.1 times as fast by symmetric memory, no gain from 256 MiB on
(NVIDIA/Megatron-LM issue 5655). What it gains in a given job only that job can show.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from gpuscope.analyzers.advice.framework_settings import config, cost, env, in_dialect, python
from gpuscope.analyzers.advice.logged_nccl import at_least, costliest, variable
from gpuscope.analyzers.advice.rule import Case, Knob, Proposal, Rule
from gpuscope.analyzers.frame.changes import Change, MeasuredTransfers, Refused
from gpuscope.report.schema.document import FindingEntry, Setting
from gpuscope.report.schema.nccl_sections import BandwidthEntry
from gpuscope.trace.naming.communication_kernels import symmetric
from gpuscope.trace.naming.frameworks import parallelism_of

WINDOWS, COPY_ENGINES, NAMED_POLICIES = (2, 27), (2, 28), (2, 29)
"""NCCL's versions with symmetric windows, with collectives by copy engines, with `NCCL_CTA_POLICY` by name."""
USER_BUFFERS = (2, 19)
"""The version that brought registration of user buffers for NVLS (ncclCommRegister)."""
SWITCHED = ("NVLink 4", "NVLink 5")
"""Generations whose switches reduce (Hopper and later)."""
WORTH = (1 << 10, 64 << 20)
"""Bytes of messages that symmetric memory is faster for."""
SPEEDUPS = {
    "all_gather": {2 << 20: 1.86, 8 << 20: 1.59, 32 << 20: 1.25, 128 << 20: 1.06},
    "reduce_scatter": {2 << 20: 1.72, 8 << 20: 1.63, 32 << 20: 1.12},
}
"""By operation and bytes of the array, ring's time by that of symmetric memory's kernels: the shortest over the ranks,
8 H100, bf16 (NVIDIA/Megatron-LM pull request 5596)."""
MEASURED_ON = "18 × NVLink 4"
OVERLAPPED = 0.3
"""Share of communication beside compute from which the SMs it takes are worth freeing."""
_SYMMETRIC_OPS = ("all_reduce", "all_gather", "reduce_scatter")
_SHARDED = ("all_gather", "reduce_scatter")
_ENGINE_OPS = ("all_gather", "all_to_all")
"""What NCCL carries out by copy engines within NVLink."""
_TRY = Refused("what fewer copies and SMs gain beside this compute is in no trace without them: try it")


def propose(case: Case, finding: FindingEntry) -> Iterator[Proposal]:
    """Only where NVLink joins the costliest group and NCCL's version, which its log gives, has it."""
    row = costliest(case)
    if row is None or "NVLink" not in (row["link"] or "") or any(symmetric(name) for name in _kernels(case)):
        return
    if case.program == "pytorch" and parallelism_of(row["group"] or "") == "tp":
        if "megatron" in case.frameworks:
            yield _tensor_overlap(finding, row)
        elif row["op"] in _SHARDED:
            yield from _async_tensor_parallel(case, finding, row)
    if row["op"] in _SYMMETRIC_OPS and WORTH[0] <= row["bytes"] <= WORTH[1] and at_least(case, WINDOWS):
        yield from _windows(case, finding, row)
    if row["op"] in _SHARDED and (row["op"] != "all_gather" or not at_least(case, WINDOWS)):
        yield from _user_buffers(case, finding, row)
    if _overlapped(case) >= OVERLAPPED and variable(case, "NCCL_CTA_POLICY") is None:
        if row["op"] in _ENGINE_OPS and at_least(case, COPY_ENGINES):
            yield from _copy_engines(case, finding, row)
        elif at_least(case, WINDOWS):
            yield _efficiency(case, finding)


def _tensor_overlap(finding: FindingEntry, row: BandwidthEntry) -> Proposal:
    sequence = " --sequence-parallel" if row["op"] == "all_reduce" else ""
    return Proposal(
        code="tensor_overlap",
        action=f"Run {row['op']} of tensor parallel beside the products that need it",
        why=f"{cost(finding)}; {row['op']} of {row['group']} takes most of it, and the product waits for all of it",
        setting=config(f"--tp-comm-overlap{sequence}", ""),
        risk="needs Transformer Engine and sequence parallelism; its buffers and SMs are taken from compute",
        verify="record again: userbuffers kernels in place of NCCL's in this group, beside products; gpuscope diff",
        outcome=_TRY,
    )


def _async_tensor_parallel(case: Case, finding: FindingEntry, row: BandwidthEntry) -> Iterator[Proposal]:
    """Only where torch.compile is seen: it is what cuts the products."""
    if not any(name.startswith("triton_") for name in _kernels(case)):
        return
    setting = python("torch._inductor.config._micro_pipeline_tp", "True  # and enable_symm_mem_for_group of the group")
    yield Proposal(
        code="async_tensor_parallel",
        action=f"Cut matrix products of tensor parallel so that {row['op']} runs beside them",
        why=f"{cost(finding)}; {row['op']} of {row['group']} takes most of it, and the product waits for all of it",
        setting=config("--parallelism.enable_async_tensor_parallel", "")
        if "torchtitan" in case.frameworks
        else setting,
        risk="experimental in PyTorch; buffers in symmetric memory; small products may take longer in pieces",
        verify="fused_all_gather_matmul or fused_matmul_reduce_scatter in the next trace; gpuscope diff",
        outcome=_TRY,
    )


def _windows(case: Case, finding: FindingEntry, row: BandwidthEntry) -> Iterator[Proposal]:
    setting = config("ncclCommWindowRegister", "NCCL_WIN_COLL_SYMMETRIC, on buffers of ncclMemAlloc")
    if not case.native:
        names = {"megatron": config("--use-nccl-ub", "")}
        if row["op"] == "all_gather":  # the buffers of gathers alone (torch 2.13)
            names["fsdp2"] = python("FSDPModule.set_symm_mem_for_comm", '("NCCL")')
        named: Setting | None = in_dialect(case, names)
        if named is None:
            return
        setting = named
    yield Proposal(
        code="nccl_symmetric",
        action=f"Let NCCL read and write the buffers of {row['op']} directly (symmetric memory)",
        why=f"{cost(finding)}; {row['op']} of this size within NVLink copies through NCCL's own buffers now",
        setting=setting,
        risk="buffers come from a pool of their own: more device memory; setting them up takes seconds once",
        verify="kernels are named ncclSymkDevKernel_…; bandwidth[] shows the gain by size",
        changes=_published(case, row),
        outcome=None if _published(case, row) else _TRY,
    )


def _published(case: Case, row: BandwidthEntry) -> tuple[Change, ...]:
    """Where the machine is like the one that was measured, the published speed-ups, give or take half of their gain."""
    speedups = SPEEDUPS.get(row["op"])
    if speedups is None or (row["link"] or "") != MEASURED_ON:
        return ()
    sizes = {
        one["bytes"] for one in case.report.get("bandwidth", ())
        if (one["tool"], one["op"], one["group_size"]) == ("trace", row["op"], row["group_size"])
    }  # fmt: skip
    known = [float(size) for size in speedups]
    factors = []
    for size in sorted(size for size in sizes if known[0] <= size <= known[-1]):
        gain = float(np.interp(np.log(size), np.log(known), list(speedups.values()))) - 1
        factors.append((size, 1 / (1 + 1.5 * gain), 1 / (1 + 0.5 * gain)))
    if not factors:
        return ()
    published = "8 H100 by symmetric memory (NVIDIA/Megatron-LM pull request 5596), the gain half of that to half more"
    return (MeasuredTransfers(row["op"], row["group_size"], tuple(factors), published),)


def _user_buffers(case: Case, finding: FindingEntry, row: BandwidthEntry) -> Iterator[Proposal]:
    """Registered staging buffers, which switches that reduce (NVLS) read and write without a copy."""
    setting = in_dialect(
        case, {"fsdp2": python("FSDPModule.set_allocate_memory_from_process_group_for_comm", "(True)")}
    )
    if setting is not None and at_least(case, USER_BUFFERS) and (row["link"] or "").endswith(SWITCHED):
        yield Proposal(
            code="nccl_user_buffers",
            action=f"Let NCCL's own allocator hold the staging buffers of {row['op']}",
            why=f"{cost(finding)}; NVLink switches can then read and write them without a copy through NCCL's buffers",
            setting=setting,
            risk="more device memory, out of the caching allocator's reach; not beside set_custom_all_gather or "
            "set_custom_reduce_scatter, which bring buffers of their own",
            verify="NCCL's log names NVLS and registered buffers; bandwidth[] shows the gain by size",
            outcome=_TRY,
        )


def _copy_engines(case: Case, finding: FindingEntry, row: BandwidthEntry) -> Iterator[Proposal]:
    setting = in_dialect(
        case,
        {
            "fsdp2": python(
                "ProcessGroupNCCL.Options.config.cta_policy",
                "ProcessGroupNCCL.NCCL_CTA_POLICY_ZERO  # with FSDPModule.set_symm_mem_for_comm()",
            ),
        },
    )
    if case.native:
        setting = config("ncclConfig_t.CTAPolicy", "NCCL_CTA_POLICY_ZERO, on symmetric windows")
    if setting is not None:
        yield Proposal(
            code="nccl_zero_cta",
            action=f"Let copy engines carry out {row['op']}, without SMs",
            why=f"{cost(finding)}; {_beside(case)}, whose SMs NCCL's kernels take",
            setting=setting,
            risk="a single collective may take longer; needs symmetric buffers and a CUDA driver from 12.5 on, else "
            "NCCL uses its kernels as before",
            verify=f"{row['op']} appears as copies, and compute beside it gets faster: gpuscope diff",
            outcome=_TRY,
        )


def _efficiency(case: Case, finding: FindingEntry) -> Proposal:
    by_name = at_least(case, NAMED_POLICIES)
    return Proposal(
        code="nccl_cta_policy",
        action="Let NCCL use as few SMs as carry its messages well",
        why=f"{cost(finding)}; {_beside(case)}, whose SMs NCCL's kernels take",
        setting=env("NCCL_CTA_POLICY", "EFFICIENCY" if by_name else "1"),
        risk="collectives that nothing overlaps may take longer; per communicator: "
        "ProcessGroupNCCL.Options.config.cta_policy",
        verify="gpuscope diff: the step, and compute beside communication",
        outcome=_TRY,
    )


def _kernels(case: Case) -> Sequence[str]:
    return [kernel["name"] for kernel in case.report.get("kernels", ())]


def _overlapped(case: Case) -> float:
    ranks = case.report["ranks"]
    whole = sum(rank["communication_ns"] for rank in ranks)
    return sum(rank["overlapped_communication_ns"] for rank in ranks) / whole if whole else 0.0


def _beside(case: Case) -> str:
    return f"{_overlapped(case):.0%} of communication runs beside compute"


RULE = Rule(
    "nccl_registration",
    (
        Knob(
            "async_tensor_parallel",
            ("latency", "bandwidth"),
            "`torch._inductor.config._micro_pipeline_tp`, torchtitan `enable_async_tensor_parallel`: tensor parallel "
            "under torch.compile within NVLink",
        ),
        Knob(
            "tensor_overlap",
            ("latency", "bandwidth"),
            "Megatron `--tp-comm-overlap` (with `--sequence-parallel`): tensor parallel within NVLink",
        ),
        Knob(
            "nccl_symmetric",
            ("latency", "bandwidth"),
            "FSDP2 `set_symm_mem_for_comm` (torch 2.12), Megatron "
            "`--use-nccl-ub`, in C `ncclCommWindowRegister`: messages up to 64 MiB within NVLink (NCCL 2.27)",
        ),
        Knob(
            "nccl_user_buffers",
            ("latency", "bandwidth"),
            "FSDP2 `set_allocate_memory_from_process_group_for_comm`: NVLS on Hopper and later, from NCCL 2.19 on, "
            "where symmetric memory is not there",
        ),
        Knob(
            "nccl_zero_cta",
            ("latency", "bandwidth"),
            "`ProcessGroupNCCL.Options.config.cta_policy` = "
            "`NCCL_CTA_POLICY_ZERO`: all-gather and all-to-all by copy engines (NCCL 2.28)",
        ),
        Knob(
            "nccl_cta_policy",
            ("latency", "bandwidth"),
            "`NCCL_CTA_POLICY=EFFICIENCY` (2.29; `1` in 2.27 and 2.28), where much communication runs beside compute",
        ),
    ),
    propose,
    ("pytorch", "native"),
)

"""NCCL's own knobs: algorithm, protocol, channels.

NCCL chooses well where its model of the machine is right, so only its log or a measurement can show that
another choice gains; without them the advice is to record the log.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from gpuscope.analyzers.advice.framework_settings import cost, env, python
from gpuscope.analyzers.advice.logged_nccl import costliest, variable
from gpuscope.analyzers.advice.rule import Case, Knob, Proposal, Rule
from gpuscope.analyzers.changes import Algorithm, Refused
from gpuscope.analyzers.nccl.logged.nccl_grammar import MOST_CTAS, UNSET, algorithm_name, for_operation, wrong
from gpuscope.schema.document import FindingEntry
from gpuscope.schema.nccl_sections import BandwidthEntry

_VERIFY = "record again with NCCL_DEBUG=INFO, NCCL_DEBUG_SUBSYS=INIT,ENV,TUNING: bandwidth[] shows choice and busbw"
_ALTERNATIVES: Mapping[str, Sequence[str]] = {"all_reduce": ("ring", "tree"), "all_gather": (), "reduce_scatter": ()}
"""Not NVLS: where NCCL does not take it unasked it is most likely not there, and forcing it fails."""


def propose(case: Case, finding: FindingEntry) -> Iterator[Proposal]:
    """By the finding: choices for messages, or the channels that a variable keeps some ranks from."""
    if not _nccl(case):
        return
    if finding["code"] in ("latency", "bandwidth"):
        found: Iterator[Proposal] = _choices(case, finding)
    else:
        found = _allowed_channels(case, finding)
    for proposal in found:
        setting = proposal.setting
        if setting["kind"] != "env" or not wrong(setting["name"], setting["value"]):
            yield proposal


def _nccl(case: Case) -> bool:
    """Whether NCCL (or RCCL, which has its variables) communicates here."""
    return "nccl" in case.report or any("nccl" in kernel["name"].lower() for kernel in case.report.get("kernels", ()))


def _choices(case: Case, finding: FindingEntry) -> Iterator[Proposal]:
    row = costliest(case, _ALTERNATIVES)
    if row is None:
        return
    if row["algorithm"] is None or row["protocol"] is None:
        yield Proposal(
            code="nccl_log",
            action=f"Record which algorithm and protocol NCCL chooses for {row['op']}",
            why=f"{cost(finding)}; whether another choice would gain can be estimated only from NCCL's own",
            setting=env("NCCL_DEBUG_SUBSYS", "INIT,ENV,TUNING"),
            risk="with NCCL_DEBUG=INFO a line per operation in the log",
            verify="bandwidth[].algorithm of the next report is not null",
            outcome=Refused("nothing to gain by itself: it lets the next report predict other choices"),
        )
        return
    if variable(case, "NCCL_ALGO") is None:
        yield from _algorithms(finding, row)
    if variable(case, "NCCL_PROTO") is None:
        yield from _protocols(finding, row)
    if finding["code"] == "bandwidth":
        yield from _channels(case, finding, row)


def _algorithms(finding: FindingEntry, row: BandwidthEntry) -> Iterator[Proposal]:
    op, now = row["op"], row["algorithm"]
    for algorithm in _ALTERNATIVES[op]:
        if algorithm == now:
            continue
        yield Proposal(
            code="nccl_algorithm",
            action=f"Let NCCL carry out {op} by {algorithm} instead of {now}",
            why=f"{cost(finding)}; {op} of {row['group'] or 'one group'} takes most of it",
            setting=env("NCCL_ALGO", for_operation(op, algorithm_name(algorithm))),
            risk=f"holds for every {op} of the job, whatever its size; NCCL's later versions may choose better",
            verify=_VERIFY,
            changes=(Algorithm(algorithm=algorithm, op=op),),
        )


def _protocols(finding: FindingEntry, row: BandwidthEntry) -> Iterator[Proposal]:
    op, now = row["op"], row["protocol"]
    protocol = "ll" if finding["code"] == "latency" else "simple"
    if now == protocol:
        return
    yield Proposal(
        code="nccl_protocol",
        action=f"Let NCCL use protocol {protocol} for {op} instead of {now}",
        why=f"{cost(finding)}; {protocol} has the " + ("least fixed cost" if protocol == "ll" else "most bandwidth"),
        setting=env("NCCL_PROTO", for_operation(op, {"ll": "LL", "simple": "Simple"}[protocol])),
        risk=f"holds for every {op} of the job: "
        + ("large ones lose half of their bandwidth" if protocol == "ll" else "small ones take longer"),
        verify=_VERIFY,
        changes=(Algorithm(protocol=protocol, op=op),),
    )


def _channels(case: Case, finding: FindingEntry, row: BandwidthEntry) -> Iterator[Proposal]:
    now = row["channels"]
    if now is None or now >= MOST_CTAS:
        return
    wanted = min(2 * now, MOST_CTAS)
    groups = {one["group"] for one in case.report.get("bandwidth", ()) if one["tool"] == "trace"}
    # A variable holds for every communicator: where there are several, only this one's configuration is changed.
    own = python("ProcessGroupNCCL.Options.config.min_ctas", f"{wanted}  # the group {row['group']} alone")
    yield Proposal(
        code="nccl_channels",
        action=f"Give NCCL at least {wanted} channels instead of {now}",
        why=f"{cost(finding)}; with {now} channels {row['op']} may not fill its links",
        setting=own if len(groups) > 1 and case.program == "pytorch" else env("NCCL_MIN_CTAS", str(wanted)),
        risk=f"{wanted - now} more SMs taken from kernels that run beside communication",
        verify=_VERIFY + "; compute beside communication must not get slower",
        changes=(Algorithm(channels=wanted, op=row["op"]),),
    )


def _allowed_channels(case: Case, finding: FindingEntry) -> Iterator[Proposal]:
    """A limit in one host's environment makes it have fewer channels than the others."""
    most = max((entry["channels"] or 0 for entry in case.report["nccl"]["communicators"]), default=0)
    for name in ("NCCL_MAX_CTAS", "NCCL_MAX_NCHANNELS"):
        set_value = variable(case, name)
        if set_value is not None and set_value.isdecimal() and int(set_value) < most <= MOST_CTAS:
            yield Proposal(
                code="nccl_channels",
                action=f"Take {name} out of the environment: NCCL makes {most} channels elsewhere",
                why=f"{cost(finding)}; NCCL's log says that {name}={set_value} is set",
                setting=env(name, UNSET),
                risk=f"up to {most} SMs go to communication",
                verify="nccl.communicators[] has as many channels everywhere",
                changes=(Algorithm(channels=most),),
            )


RULE = Rule(
    "nccl",
    (
        Knob(
            "nccl_log",
            ("latency", "bandwidth"),
            "`NCCL_DEBUG_SUBSYS=INIT,ENV,TUNING` with `NCCL_DEBUG=INFO`, where NCCL's choices are not recorded",
        ),
        Knob(
            "nccl_algorithm",
            ("latency", "bandwidth"),
            "`NCCL_ALGO=allreduce:Tree`…, for the costliest operation, where NCCL's log has its choice",
        ),
        Knob(
            "nccl_protocol",
            ("latency", "bandwidth"),
            "`NCCL_PROTO=allreduce:LL` or `Simple`",
            risk="holds for every message of the operation: by LL large ones lose half of their bandwidth, by Simple "
            "small ones take longer",
        ),
        Knob(
            "nccl_channels",
            ("bandwidth", "fewer_channels"),
            "`NCCL_MIN_CTAS`; `NCCL_MAX_CTAS` or `NCCL_MAX_NCHANNELS` unset where the log shows such a limit",
        ),
    ),
    propose,
    programs=("pytorch", "jax", "native"),
    place=170,
)

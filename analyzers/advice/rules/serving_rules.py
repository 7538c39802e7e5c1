"""Inference servers: graphs for decode, chunks of prompts, the scheduler beside the device, fused all-reduces."""

from __future__ import annotations

from collections.abc import Iterator

from gpuscope.analyzers.advice.rule import Case, Proposal, Rule, in_dialect
from gpuscope.analyzers.advice.settings import other_settings
from gpuscope.analyzers.advice.settings.known import Known
from gpuscope.analyzers.what_if_changes import CapturedGraphs, Refused
from gpuscope.catalogue.suggestion import Suggestion
from gpuscope.schema.document import FindingEntry, Setting
from gpuscope.when_used import dataclass
from gpuscope.words import units

CHUNK = 2048
"""Tokens per step that vLLM's manual gives for short intervals between tokens (docs/configuration/optimization.md)."""
OTHERS_BETWEEN = "graphs are for decode, and steps of other phases run between, which the replay would change too"


@dataclass(frozen=True)
class DecodeGraphs(Suggestion):
    """Graphs that were turned off."""

    code = "decode_graphs"
    answers = ("eager_decode",)
    sets = "without vLLM's `--enforce-eager`, SGLang's `--disable-cuda-graph`"
    action = "Let the server capture CUDA graphs for decode"
    why = "{cost}; {launches} launches per step become one"
    risk = "graphs take memory and time at start; a model or a kernel that can't be captured stays eager"
    verify = "record again: serving.phases[].graphed_frac of decode near 1"

    launches: int


@dataclass(frozen=True)
class LargerGraphs(Suggestion):
    """Sizes up to the largest batch."""

    code = "graph_sizes"
    answers = ("uncaptured_batch",)
    sets = (
        "vLLM `--max-cudagraph-capture-size` (`--cuda-graph-sizes` up to 0.11.0), SGLang `--cuda-graph-max-bs-decode` "
    )
    sets += "(`--cuda-graph-max-bs` up to 0.5.12)"
    action = "Capture decode graphs up to {largest} requests"
    why = "{cost}; the largest batch that is replayed has {captured} requests, steps with up to {largest} are eager"
    why_not = "a graph would replace the launches of these steps alone, which the replay can't change apart from others"
    risk = "each size takes memory, which the key-value cache then lacks, and time at start"
    verify = "record again: serving.batches[].graphed_frac near 1 for all sizes"

    largest: int
    captured: int


@dataclass(frozen=True)
class SmallerChunks(Suggestion):
    """Fewer tokens of prompts beside decode."""

    code = "smaller_chunks"
    answers = ("prefill_stalls_decode",)
    sets = "vLLM `--max-num-batched-tokens`, SGLang `--chunked-prefill-size`"
    action = "Prefill at most {chunk} tokens per step"
    why = "{message}; with {chunk} tokens it would be about {then}, if a step takes time by its tokens"
    why_not = (
        "the same work in more steps: answers stutter less, no step of it is saved, and prompts take a little longer"
    )
    bounded = False
    risk = "fewer tokens per second, and a longer wait for the first token of long prompts"
    verify = "record again: serving.token_interval.p90_ns; tokens per second of the load"

    chunk: int
    then_ns: int

    @property
    def then(self) -> str:
        return units.duration(self.then_ns)


@dataclass(frozen=True)
class OverlappedScheduling(Suggestion):
    """The next step is scheduled while this one runs."""

    code = "overlapped_scheduling"
    answers = ("scheduler_gap",)
    sets = "vLLM `--async-scheduling`, without SGLang's `--disable-overlap-schedule`"
    action = "Schedule the next step while this one runs"
    why = "{cost}; the device waits {gap} after every step"
    why_not = "how much of the scheduler's work can run beside the device is not in the trace"
    risk = "some features turn it off (the log says so): then it is they that cost the gap; tokens come a step later"
    verify = "record again: serving.phases[].gap_ns"

    gap_ns: int

    @property
    def gap(self) -> str:
        return units.duration(self.gap_ns)


@dataclass(frozen=True)
class ServerCores(Suggestion):
    """The server's processes on the cores beside their GPU."""

    code = "server_cores"
    answers = ("scheduler_gap", "eager_decode")
    sets = "vLLM `--numa-bind` (from 0.22 on), SGLang `--numa-node`"
    action = "Bind the server's processes to the CPU cores beside their GPUs"
    why = "{cost}; scheduling and launching take longer from another socket's cores, and on cores that others use"
    why_not = "on which cores a thread ran is not recorded: compare `nvidia-smi topo -m` with the server's CPU affinity"
    bounded = False
    risk = "leave cores for the tokenizer and the HTTP server"
    verify = "record again: serving.phases[].gap_ns and call_ns"


@dataclass(frozen=True)
class FusedAllReduce(Suggestion):
    """All-reduce and normalisation in one kernel."""

    code = "fused_all_reduce"
    answers = ("small_all_reduces",)
    sets = "vLLM `pass_config.fuse_allreduce_rms` (`enable_fi_allreduce_fusion` up to 0.11), SGLang "
    sets += "`--flashinfer-allreduce-fusion-backend` (`--enable-flashinfer-allreduce-fusion` up to 0.5.12)"
    action = "Fuse all-reduces with the normalisation behind them"
    why = "{cost}; {messages:.0f} messages of {mean} per step, each with a fixed cost"
    why_not = "what a fused kernel of this size takes on this link is not in the trace"
    risk = "NVIDIA GPUs from Hopper on, within one node; sums in another order"
    verify = "record again: serving.phases[].breakdown_ns.exposed_communication of decode"

    messages: float
    mean_ns: int

    @property
    def mean(self) -> str:
        return units.duration(self.mean_ns)


@dataclass(frozen=True)
class FewerTensorRanks(Suggestion):
    """Less tensor parallelism, more replicas."""

    code = "smaller_tensor_parallel"
    answers = ("small_all_reduces",)
    sets = "vLLM and SGLang `--tensor-parallel-size`, with more replicas"
    action = "Split each layer over {after} ranks instead of {now}, and run twice as many replicas"
    why = "{cost}; decode of one replica pays for every message that a layer is split by"
    why_not = "whether the model and its key-value cache fit half as many GPUs is not in the trace"
    risk = "each GPU holds twice the weights, so less cache and fewer requests at once; a step computes longer"
    verify = "tokens per second and time per token of the whole load, on the same GPUs"

    now: int
    after: int


def propose(case: Case, finding: FindingEntry) -> Iterator[Proposal]:
    """What answers a finding by the server's own names; nothing where the server is not known."""
    makers = {
        "eager_decode": _graphs,
        "uncaptured_batch": _sizes,
        "prefill_stalls_decode": _chunks,
        "scheduler_gap": _scheduling,
        "small_all_reduces": _messages,
    }
    if "serving" in case.report:
        yield from makers[finding["code"]](case, finding)


def _named(case: Case, value: str, vllm: Known, sglang: Known, *older: Known) -> Setting | None:
    """The setting as the server's version has it; `older` are the names before."""
    names = {"vllm": vllm, "sglang": sglang}
    for known in older:
        if not names[known.package].exists(case.version(known.package)):
            names[known.package] = known
    return in_dialect(case, {server: known.to(value) for server, known in names.items()})


def _graphs(case: Case, finding: FindingEntry) -> Iterator[Proposal]:
    setting = _named(case, "false", other_settings.ENFORCE_EAGER, other_settings.DISABLE_GRAPHS)
    if setting is not None:
        only_decode = {step.get("phase") for step in case.report["steps"] if step["role"] == "steady"} == {"decode"}
        yield Proposal(
            finding,
            DecodeGraphs(finding["facts"]["launches"]),
            setting,
            (CapturedGraphs(),),
            None if only_decode else Refused(OTHERS_BETWEEN),
        )
    yield from _cores(case, finding)


def _sizes(case: Case, finding: FindingEntry) -> Iterator[Proposal]:
    facts = finding["facts"]
    largest = max(facts["batches"])
    setting = _named(
        case,
        str(largest),
        other_settings.VLLM_SETTINGS_MAX_CAPTURED,
        other_settings.MAX_CAPTURED,
        other_settings.OLDER_SIZES,
        other_settings.OLDER_MAX_CAPTURED,
    )
    if setting is not None:
        yield Proposal(finding, LargerGraphs(largest, facts["captured"]), setting)


def _chunks(case: Case, finding: FindingEntry) -> Iterator[Proposal]:
    facts = finding["facts"]
    tokens, interval = facts["prompt_tokens"], facts["interval_ns"]
    setting = _named(case, str(CHUNK), other_settings.BATCHED_TOKENS, other_settings.CHUNK)
    if setting is None or tokens is None or tokens <= CHUNK:
        return
    alone = facts["alone_ns"] or 0
    then = round(alone + (interval - alone) * CHUNK / tokens)
    yield Proposal(finding, SmallerChunks(CHUNK, then), setting)


def _scheduling(case: Case, finding: FindingEntry) -> Iterator[Proposal]:
    names = {"vllm": other_settings.ASYNC_SCHEDULING.to("true"), "sglang": other_settings.DISABLE_OVERLAP.to("false")}
    setting = in_dialect(case, names)
    if setting is not None:
        yield Proposal(finding, OverlappedScheduling(finding["facts"]["gap_ns"]), setting)
    yield from _cores(case, finding)


def _cores(case: Case, finding: FindingEntry) -> Iterator[Proposal]:
    names = {"vllm": other_settings.NUMA_BIND.to("true"), "sglang": other_settings.NUMA_NODE.to("one per GPU")}
    setting = in_dialect(case, names)
    if setting is not None:
        yield Proposal(finding, ServerCores(), setting)


def _messages(case: Case, finding: FindingEntry) -> Iterator[Proposal]:
    facts = finding["facts"]
    names = {
        "vllm": other_settings.VLLM_SETTINGS_FUSE_ALL_REDUCE.to("true"),
        "sglang": other_settings.FUSE_ALL_REDUCE.to("auto"),
    }
    if not other_settings.VLLM_SETTINGS_FUSE_ALL_REDUCE.exists(case.version("vllm")):
        names["vllm"] = other_settings.VLLM_SETTINGS_OLDER_FUSION.to("true")
    if not other_settings.FUSE_ALL_REDUCE.exists(case.version("sglang")):
        names["sglang"] = other_settings.OLDER_FUSION.to("true")
    if not case.rocm and (setting := in_dialect(case, names)) is not None:
        yield Proposal(finding, FusedAllReduce(facts["per_step"], facts["mean_ns"]), setting)
    degree = case.report["trace"]["parallelism"].get("tp") or case.report["trace"]["world_size"] or 1
    fewer = _named(
        case,
        str(degree // 2),
        other_settings.VLLM_SETTINGS_TENSOR_PARALLEL,
        other_settings.SGLANG_SETTINGS_TENSOR_PARALLEL,
    )
    if degree > 1 and fewer is not None:
        yield Proposal(finding, FewerTensorRanks(degree, degree // 2), fewer)


RULE = Rule(
    "serving",
    (DecodeGraphs, LargerGraphs, SmallerChunks, OverlappedScheduling, ServerCores, FusedAllReduce, FewerTensorRanks),
    propose,
    programs=("server",),
    place=120,
)

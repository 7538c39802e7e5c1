"""What inference servers call their steps: the phase, and how many requests and tokens are in the batch.

Each server names the range around a step after its batch: vLLM (`vllm/v1/worker/gpu_worker.py`, and `capture_…` in
`gpu_model_runner.py`), SGLang from 0.5.12 on (`build_step_span_name`), TensorRT-LLM (`pyexecutor/py_executor.py`, NVTX)
and AMD's ATOM.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Literal

from gpuscope import when_used
from gpuscope.when_used import dataclass

Phase = Literal["prefill", "decode", "mixed", "capture"]


@dataclass(frozen=True)
class Batch:
    """What one step works on; None where its name does not tell."""

    phase: Phase | None
    prefill_requests: int | None = None
    prefill_tokens: int | None = None
    decode_requests: int | None = None
    decode_tokens: int | None = None
    """Of a capture, the size that is captured."""


def _counts(prefills: int, prefill_tokens: int | None, decodes: int, decode_tokens: int | None) -> Batch:
    phase: Phase | None = ("mixed" if decodes else "prefill") if prefills else "decode" if decodes else None
    return Batch(phase, prefills, prefill_tokens if prefills else 0, decodes, decode_tokens if decodes else 0)


def _vllm(found: re.Match[str]) -> Batch:
    return _counts(*(int(text) for text in found.groups()))


def _older_vllm(found: re.Match[str]) -> Batch:
    # A later chunk of a prompt counts as cached too: such a step looks like decode.
    return _counts(int(found[1]), None, int(found[2]), int(found[2]) or None)


def _sglang(found: re.Match[str]) -> Batch | None:
    mode, size, tokens = found[1], int(found[2]), found[3]
    told = {name: int(number) for name, number in re.findall(r"(\w+)=(\d+)", found[4])}
    if mode in ("EXTEND", "SPLIT_PREFILL"):
        return Batch("prefill", size, int(tokens) if tokens else told.get("c_sq"), 0, 0)
    if mode == "DECODE":
        return Batch("decode", 0, 0, size, told.get("g_sq", size))
    if mode in ("VERIFY", "TARGET_VERIFY"):  # how many of the drafted tokens it accepts is not told
        return Batch("decode", 0, 0, size)
    if mode == "MIXED":
        return Batch("mixed", told.get("c"), told.get("c_sq"), told.get("g"), told.get("g_sq"))
    return Batch(None) if mode == "IDLE" else None  # drafts are parts of a step


def _tensorrt_llm(found: re.Match[str]) -> Batch:
    return _counts(int(found[1]), int(found[2]) if found[2] else None, int(found[3]), int(found[3]))


def _atom(found: re.Match[str]) -> Batch:
    told = {name: int(number) for name, number in re.findall(r"\b(p|d|bs|tok)=(\d+)", found[2])}
    size, tokens = told.get("bs", 0), told.get("tok")
    if found[1] == "prefill":
        return Batch("prefill", size, tokens, 0, 0)
    if told.get("p"):
        return Batch("mixed", told["p"], None, told.get("d"), told.get("d"))
    return Batch("decode", 0, 0, size, tokens)


_NAMES: tuple[tuple[str, re.Pattern[str], Callable[[re.Match[str]], Batch | None]], ...] = (
    # execute_context_1(512)_generation_32(32); with detailed_trace_annotation
    # execute_8192_context_9(sq8155sk8430sqsq…sqsk…)_generation_37(sq37sk34489…)
    (
        "vLLM",
        when_used.pattern(
            r"execute_(?:\d+_)?context_(\d+)\((?:sq)?(\d+)[^)]*\)_generation_(\d+)\((?:sq)?(\d+)[^)]*\)$"
        ),
        _vllm,
    ),
    ("vLLM", when_used.pattern(r"execute_new_(\d+)_cached_(\d+)$"), _older_vllm),  # 0.11.1 to 0.13
    (
        "vLLM",
        when_used.pattern(r"capture_(\d+)_(?:FULL|PIECEWISE|\w*(?:decode|prefill))$"),
        lambda found: Batch("capture", decode_tokens=int(found[1])),
    ),
    ("SGLang", when_used.pattern(r"step\[([A-Z]+(?:_[A-Z0-9]+)*) bs=(\d+)(?: toks=(\d+))?([^\]]*)\]$"), _sglang),
    (
        "TensorRT-LLM",
        when_used.pattern(
            r"\[Executor\] _forward_step(?: \d+)?: (\d+) ctx reqs, (?:(\d+) ctx tokens, )?(\d+) gen reqs"
        ),
        _tensorrt_llm,
    ),
    ("ATOM", when_used.pattern(r"(prefill|decode)\[(bs=\d+.*)\]$"), _atom),
)


_BEGIN = ("execute_", "capture_", "step[", "[Executor] ", "prefill[", "decode[")
"""How each of these names begins, which few others do."""
_DIGITS = 18
"""Of an integer that fits a column."""


def batch_of(name: str) -> Batch | None:
    """The batch of the step that a range of this name is; None where it is no server's step.

    >>> batch_of("execute_context_1(512)_generation_32(32)")
    Batch(phase='mixed', prefill_requests=1, prefill_tokens=512, decode_requests=32, decode_tokens=32)
    """
    for _, pattern, read in _NAMES if name.startswith(_BEGIN) else ():
        if found := pattern.match(name):
            fits = all(len(digits) <= _DIGITS for digits in re.findall(r"\d+", name))
            return read(found) if fits else None
    return None


def server_of(name: str) -> str:
    """The server that names its steps so; empty for other names."""
    return next((server for server, pattern, _ in _NAMES if pattern.match(name)), "")


def is_server_step(name: str) -> bool:
    """Whether a range is a step of a server."""
    return batch_of(name) is not None


# Attention over a cache in pages, which training has none of, and the kernels that write it.
_CACHED = when_used.pattern(
    r"paged|kv_?cache|reshape_and_cache|batch_?(decode|prefill)|unified_attention|mla_decode"
    r"|masked_multihead|flash_?mla|decode_attention|extend_attention",
    re.IGNORECASE,
)
_DECODES = when_used.pattern(r"decode|paged_attention|masked_multihead|splitkv_combine|attention_3d", re.IGNORECASE)
_PREFILLS = when_used.pattern(r"prefill|extend_attention|context", re.IGNORECASE)


def works_on_a_cache(kernel: str) -> bool:
    """Whether a kernel reads or writes the key-value cache of a server.

    >>> works_on_a_cache("kernel_unified_attention_2d")
    True
    """
    return _CACHED.search(kernel) is not None


def attention_phase(kernel: str) -> Phase | None:
    """The phase that a kernel of attention is made for, where its name says so. FlashInfer's prefill kernels run
    decode too where the batch is captured: ask for graphs first."""
    if _DECODES.search(kernel):
        return "decode"
    return "prefill" if _PREFILLS.search(kernel) else None

"""Inference servers in a page of numbers: a scheduler, steps of prompts and answers, graphs for decode, and one fault
each. What a step is stands in its `Batch`, so the truth does not come from the code that it checks."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from simulator.instructions import (
    Allocate,
    Begin,
    Collective,
    End,
    Graph,
    Host,
    Instruction,
    Kind,
    Launch,
    Record,
    Synchronize,
    Work,
)
from simulator.job import Job
from simulator.kineto_rows import Profiler, write_kineto
from simulator.machine import MAIN, execute

PREFILL = "void flashinfer::BatchPrefillWithPagedKVCacheKernel<flashinfer::KernelTraits<(MaskMode)1, 128u> >"
DECODE = "void flashinfer::BatchDecodeWithPagedKVCacheKernel<(flashinfer::PosEncodingMode)0, 2u, 4u, 8u>"
CACHE = "void flashinfer::AppendPagedKVCacheKernel<128u, 8u, (flashinfer::QKVLayout)0, __nv_bfloat16, int>"
VLLMS_CACHE = "void vllm::reshape_and_cache_flash_kernel<__nv_bfloat16, __nv_bfloat16, (vllm::Fp8KVCacheDataType)0>"
GEMM = "nvjet_tst_128x64_64x9_1x2_h_bz_TNT"
NORM = "void flashinfer::norm::FusedAddRMSNormKernel<8u, __nv_bfloat16>"
EMBED = "void at::native::(anonymous namespace)::indexSelectLargeIndex<c10::BFloat16, long, unsigned int, 2>"
SAMPLE = "void flashinfer::sampling::TopKTopPSamplingFromProbKernel<1024u, (cub::BlockScanAlgorithm)2, float>"
NCCL = "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
STREAM, HIDDEN = 7, 4_096


@dataclass(frozen=True)
class Batch:
    """What one step works on. A `capture` of so many requests runs once and captures a graph."""

    prompts: int = 0
    prompt_tokens: int = 0
    answers: int = 0
    capture: bool = False

    @property
    def phase(self) -> str:
        if self.capture:
            return "capture"
        return ("mixed" if self.answers else "prefill") if self.prompts else "decode"


@dataclass(frozen=True)
class Server:
    """Times are ns."""

    name: str
    batches: tuple[Batch, ...]
    cause: str | None = None
    """Code of the finding that the fault must lead to; None of a healthy server."""
    marks: str = "vllm"
    """Whose ranges stand around the steps: `vllm`, `vllm_detailed`, `vllm_older`, `sglang`, `tensorrt_llm`, or none."""
    ranks: int = 1
    layers: int = 12
    captured: int = 64
    """The largest batch of answers that is launched as a graph; 0: none is."""
    overlapped: bool = True
    """The next step is launched before the tokens of this one are read."""
    scheduling_ns: int = 60_000
    message_ns: int = 6_000
    """What an all-reduce costs beside its bytes."""

    @property
    def labels(self) -> list[str]:
        """Phases of the steps; captures that other servers than vLLM leave without a range are set-up."""
        named = self.marks in ("sglang", "tensorrt_llm")
        return [batch.phase for batch in self.batches if not (named and batch.capture)]

    def write(self, folder: Path, profiler: Profiler | None = None) -> Path:
        """The recording, a folder of its own."""
        parallel = "tensor" if self.ranks > 1 else "single"
        job = Job(self.name, ranks=self.ranks, parallel=parallel, alpha_ns=self.message_ns, rate=400.0)
        run = execute({rank: {MAIN: list(self._program())} for rank in range(self.ranks)}, job.hardware())
        write_kineto(folder / self.name, job, run, profiler)
        return folder / self.name

    def _program(self) -> Iterator[Instruction]:
        for number, batch in enumerate(self.batches):
            yield Host(self.scheduling_ns)
            if name := self._name(number, batch):
                yield Begin(name, "user_annotation")
            yield from self._step(number, batch)
            if name:
                yield End()
            yield from self._read(number)
        yield Synchronize(None)

    def _name(self, number: int, batch: Batch) -> str:
        prompts, tokens, answers = batch.prompts, batch.prompt_tokens, batch.answers
        if batch.capture:
            return f"capture_{answers}_FULL" if self.marks.startswith("vllm") else ""
        mode = {"prefill": f"EXTEND bs={prompts} toks={tokens}", "decode": f"DECODE bs={answers}"}
        return {
            "vllm": f"execute_context_{prompts}({tokens})_generation_{answers}({answers})",
            "vllm_detailed": f"execute_{tokens + answers}_context_{prompts}(sq{tokens}sk{tokens}sqsq1sqsk1)_generation_"
            f"{answers}(sq{answers}sk{900 * answers}sqsq{answers}sqsk{900 * answers})",
            "vllm_older": f"execute_new_{prompts}_cached_{answers}",
            "sglang": f"step[{mode.get(batch.phase, f'MIXED bs={prompts + answers}')}]",
            "tensorrt_llm": f"[Executor] _forward_step {number}: {prompts} ctx reqs, {answers} gen reqs",
        }.get(self.marks, "")

    def _step(self, number: int, batch: Batch) -> Iterator[Instruction]:
        yield from self._eager([Work(EMBED, 4_000)])
        graphed = batch.phase == "decode" and batch.answers <= self.captured
        if self.ranks > 1:
            for layer in range(self.layers):
                works = self._layer(batch)
                yield from [Graph(works)] if graphed else self._eager(works, batch.prompt_tokens + batch.answers)
                yield self._all_reduce(number * self.layers + layer)
        else:
            works = [work for _ in range(self.layers) for work in self._layer(batch)]
            yield from (
                [Graph(works, dur=10_000 + 40 * len(works))]
                if graphed
                else self._eager(works, batch.prompt_tokens + batch.answers)
            )
        if batch.capture:
            yield Allocate("cudaStreamBeginCapture", 2_000)
            yield Host(400_000)
            yield Allocate("cudaStreamEndCapture", 30_000)
        yield from self._eager([Work(GEMM, 40_000), Work(SAMPLE, 20_000)])

    def _layer(self, batch: Batch) -> list[Work]:
        tokens = batch.prompt_tokens + batch.answers
        attention = []
        if batch.prompts:
            attention.append(Work(PREFILL, 5_000 + 12 * batch.prompt_tokens))
        if batch.answers:
            attention.append(Work(DECODE, 4_000 + 40 * batch.answers))
        product = Work(GEMM, 6_000 + 40 * tokens)
        cache = CACHE if self.marks in ("sglang", "tensorrt_llm") else VLLMS_CACHE
        return [
            Work(NORM, 2_500),
            product,
            Work(cache, 2_000),
            *attention,
            product,
            Work(NORM, 2_500),
            product,
            product,
        ]

    def _eager(self, works: list[Work], tokens: int = 0) -> Iterator[Instruction]:
        for work in works:
            shapes = {"Input Dims": [[tokens, HIDDEN], [HIDDEN, HIDDEN]], "Input type": ["c10::BFloat16"] * 2}
            product = work.name == GEMM
            yield Begin("aten::mm" if product else "aten::op", args=shapes if product and tokens else {})
            yield Host(9_000)
            yield Launch(replace(work, args={"grid": [264, 1, 1], "block": [256, 1, 1]}))
            yield Host(3_000)
            yield End()

    def _all_reduce(self, seq: int) -> Instruction:
        told = {
            "Collective name": "allreduce",
            "dtype": "BFloat16",
            "In msg nelems": 131_072,
            "Out msg nelems": 131_072,
            "Group size": self.ranks,
            "Process Group Name": "0",
            "Process Group Ranks": str(list(range(self.ranks))),
            "kernel": NCCL,
        }
        return Collective("all_reduce", 262_144, "0", tuple(range(self.ranks)), seq, STREAM, args=told)

    def _read(self, number: int) -> Iterator[Instruction]:
        """The tokens come to the host: of this step, or of the one before it."""
        copy = Work("Memcpy DtoH (Device -> Pinned)", 1_500, STREAM, Kind.MEMORY, "gpu_memcpy", {"bytes": 256})
        yield Launch(copy, "cudaMemcpyAsync", 4_000)
        yield Record(f"tokens {number}", STREAM)
        if not self.overlapped:
            yield Synchronize(f"tokens {number}")
        elif number:
            yield Synchronize(f"tokens {number - 1}")


ANSWERS = Batch(answers=32)
PROMPTS = Batch(prompts=2, prompt_tokens=2_000)
BOTH = Batch(prompts=1, prompt_tokens=1_000, answers=32)
DECODES = (ANSWERS,) * 8
ALL_PHASES = (
    Batch(answers=64, capture=True),
    Batch(answers=32, capture=True),
    PROMPTS,
    *DECODES[:4],
    BOTH,
    *DECODES[:4],
)
_FLOOD = (*DECODES[:3], Batch(prompts=8, prompt_tokens=8_160, answers=32)) * 3
_FLOOD_APART = (*DECODES[:3], Batch(prompts=8, prompt_tokens=8_160)) * 3

SERVERS = (
    *(
        Server(f"{marks or 'unmarked'}_healthy", (PROMPTS, *DECODES, *DECODES), marks=marks)
        for marks in ("vllm", "vllm_detailed", "vllm_older", "sglang", "tensorrt_llm", "")
    ),
    *(
        Server(f"{marks or 'unmarked'}_phases", ALL_PHASES, marks=marks, scheduling_ns=20_000)
        for marks in ("vllm", "vllm_detailed", "sglang", "")
    ),
    *(
        Server(f"{marks or 'unmarked'}_{name}", batches, cause, marks, **numbers)  # type: ignore[arg-type]
        for marks in ("vllm", "sglang", "")
        for name, batches, cause, numbers in (
            ("eager", DECODES * 2, "eager_decode", {"captured": 0}),
            ("scheduler", DECODES * 2, "scheduler_gap", {"overlapped": False, "scheduling_ns": 900_000}),
            ("messages", DECODES * 2, "small_all_reduces", {"ranks": 2, "message_ns": 60_000}),
        )
    ),
    *(
        Server(f"{marks}_uncaptured", (ANSWERS, Batch(answers=48)) * 6, "uncaptured_batch", marks, captured=32)
        for marks in ("vllm", "sglang")
    ),
    *(
        Server(f"{marks}_flood", _FLOOD_APART if marks == "sglang" else _FLOOD, "prefill_stalls_decode", marks)
        for marks in ("vllm", "vllm_detailed", "sglang", "tensorrt_llm")
    ),
)

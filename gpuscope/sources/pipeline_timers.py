"""Times of a pipeline stage's computations, as Primus writes them (`dump_pp_data`): `pp_rank_N.json` per stage.

Each iteration has the times of forwards and backwards since its begin, in ms, and `config.json` beside them the sizes
of the job. Read by Primus' own reader, `tools/visualization/pp_vis/vis.py` (AMD-AGI/Primus, 2025).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import accumulate
from pathlib import Path
from typing import TypeVar

import msgspec

from gpuscope import when_used
from gpuscope.errors import InputError
from gpuscope.problems import reading
from gpuscope.sources.source import Files, ReadOptions, Role, rank_in_name
from gpuscope.trace.builder import TraceBuilder

_MS = 1_000_000
_NAMED = when_used.pattern(r"pp_rank_\d+\.json$")
_OPERATIONS = {"fwd": "forward-compute", "bwd": "backward-compute", "wgrad": "weight-compute"}
_DAY_MS = 86_400_000.0
_LARGEST = 256 << 20
T = TypeVar("T")


class _Iteration(msgspec.Struct):
    total: float = 0.0
    fwd_start: list[float] = []
    fwd_end: list[float] = []
    bwd_start: list[float] = []
    bwd_end: list[float] = []
    wgrad_start: list[float] = []
    wgrad_end: list[float] = []
    fwd_minibatch: list[int] = []
    bwd_minibatch: list[int] = []
    wgrad_minibatch: list[int] = []
    fwd_chunk: list[int] = []
    bwd_chunk: list[int] = []
    wgrad_chunk: list[int] = []


class _Length(msgspec.Struct):
    total: float = 0.0


class _Config(msgspec.Struct):
    pp_size: int | None = None
    vp_size: int | None = None
    vpp_size: int | None = None
    """How older versions call `vp_size`."""

    @property
    def chunks(self) -> int:
        """Model chunks per stage."""
        return max(self.vp_size or self.vpp_size or 1, 1)


class PipelineTimersSource:
    """Reads the times of one stage; those beside it only to lay the iterations of all on one clock."""

    name = "pipeline-timers"
    files = Files(Role.TIMELINE, (".json",))

    def sniff(self, path: Path, head: bytes) -> bool:
        return _NAMED.search(path.name) is not None and b'"fwd_start"' in head

    def peek_rank(self, path: Path, head: bytes) -> int | None:  # noqa: ARG002
        return rank_in_name(path)

    def read(self, path: Path, builder: TraceBuilder, options: ReadOptions) -> None:
        iterations = _decoded(path, dict[int, _Iteration])
        stage, config = rank_in_name(path) or 0, _config(path.with_name("config.json"))
        stages = config.pp_size or len(list(_beside(path)))
        offsets = _offsets(path, sorted(iterations))
        source = builder.source(path, self.name, "", len(iterations), {"workers": stages})
        rows = _Rows(builder, stage, stages, config.chunks)
        for number in sorted(iterations):
            rows.add(number, offsets[number], iterations[number])
        if not rows.columns["start"]:
            raise InputError(f"{path}: holds no computations", hint="was the job stopped before it wrote any?")
        builder.problem(reading.BAD_TIME_OF_OPERATION, rows.unusable, file=path.name)
        count = len(rows.columns["start"])
        builder.add("ranks", 1, {"rank": [stage], "source": source})
        builder.add("operations", count, {**rows.columns, "rank": stage, "stage": stage, "dp_rank": 0})
        numbers = sorted(set(rows.columns["step"]))
        ends = [offsets[number] + round(iterations[number].total * _MS) for number in numbers]
        builder.add(
            "steps",
            len(numbers),
            {
                "rank": stage,
                "step": numbers,
                "start": [offsets[number] for number in numbers],
                "end": ends,
                "basis": builder.names.code("iterations of the pipeline's timers"),
            },
        )
        builder.problem(reading.STEPS_FROM_ZERO, len(numbers), file=path.name)
        builder.problem(reading.OPERATIONS_ONLY, 1, file=path.name)
        if options.advance:
            options.advance(path.stat().st_size)


class _Rows:
    """Rows of `operations`."""

    def __init__(self, builder: TraceBuilder, stage: int, stages: int, chunks: int) -> None:
        self.columns: dict[str, list[int]] = {name: [] for name in _COLUMNS}
        self.unusable = 0
        self._stage, self._stages, self._chunks = stage, stages, chunks
        self._codes = {kind: int(builder.names.code(op)) for kind, op in _OPERATIONS.items()}

    def add(self, number: int, offset: int, iteration: _Iteration) -> None:
        """The computations of an iteration; those without a time are counted."""
        for kind, code in self._codes.items():
            starts, ends = (getattr(iteration, f"{kind}_{side}") for side in ("start", "end"))
            batches, chunk_of = getattr(iteration, f"{kind}_minibatch"), getattr(iteration, f"{kind}_chunk")
            self.unusable += abs(len(starts) - len(ends))
            seen: Counter[int] = Counter()  # micro-batches go through each chunk in their order
            for at, (start, end) in enumerate(zip(starts, ends, strict=False)):
                if not 0 <= start <= end < _DAY_MS:
                    self.unusable += 1
                    continue
                known, backward = at < len(chunk_of), kind != "fwd"
                chunk = chunk_of[at] if known else _chunk(at, self._stages, self._chunks, backward=backward)
                batch = batches[at] if at < len(batches) else seen[chunk]
                seen[chunk] += 1
                values = (
                    number,
                    code,
                    offset + round(start * _MS),
                    offset + round(end * _MS),
                    at,
                    batch,
                    chunk,
                    self._stage + chunk * self._stages,
                )
                for name, value in zip(_COLUMNS, values, strict=True):
                    self.columns[name].append(value)


_COLUMNS = ("step", "op", "start", "end", "seq", "micro_batch", "chunk", "global_chunk")


def _chunk(at: int, stages: int, chunks: int, *, backward: bool) -> int:
    """The model chunk of a stage's nth forward or backward where none is recorded: Megatron's order, a group of as many
    micro-batches as stages through each chunk in turn (`get_model_chunk_id` of its interleaved schedule)."""
    chunk = at // stages % chunks
    return chunks - 1 - chunk if backward else chunk


def _offsets(path: Path, numbers: Sequence[int]) -> Mapping[int, int]:
    """Where each iteration begins, ns: each is as long as it takes the slowest stage."""
    length = dict.fromkeys(numbers, 0.0)
    for beside in _beside(path):
        for number, one in _decoded(beside, dict[int, _Length]).items():
            length[number] = max(length.get(number, 0.0), one.total if 0 <= one.total < _DAY_MS else 0.0)
    ordered = sorted(length)
    begins = accumulate((round(length[number] * _MS) for number in ordered), initial=0)
    return dict(zip(ordered, begins, strict=False))


def _beside(path: Path) -> list[Path]:
    """The files of all stages."""
    return sorted({path, *path.parent.glob("pp_rank_*.json")})


def _config(path: Path) -> _Config:
    return _decoded(path, _Config) if path.is_file() else _Config()


def _decoded(path: Path, kind: type[T]) -> T:
    if path.stat().st_size > _LARGEST:
        raise InputError(f"{path}: {path.stat().st_size >> 20} MiB are no timers of a pipeline stage")
    try:
        return msgspec.json.decode(path.read_bytes(), type=kind, strict=False)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        why = f"timers of a pipeline stage that can't be read: {error}"
        raise InputError(f"{path}: {why}", hint="copy it again") from error


SOURCE = PipelineTimersSource()

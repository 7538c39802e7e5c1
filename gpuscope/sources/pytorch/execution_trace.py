"""PyTorch's execution traces: operators with their tensors, as `torch.profiler.ExecutionTraceObserver` writes them.

A trace has no times. Each node has an `rf_id`, the id of its record function, which Kineto writes as `Record function
id` where both recorded together: so sizes get into a Kineto trace that has none. The format:
`torch/csrc/profiler/standalone/execution_trace_observer.cpp` (schemas 1.0 to 1.1.1), later taken up by MLCommons
Chakra.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from gpuscope import when_used
from gpuscope.errors import InputError
from gpuscope.sources import stream
from gpuscope.sources.source import Files, ReadOptions, Role, rank_in_name
from gpuscope.trace.builder import TraceBuilder
from gpuscope.when_used import dataclass

_HEAD = when_used.pattern(rb'^\s*\{\s*"schema"\s*:\s*"[\w.-]+"\s*,\s*"pid"\s*:\s*(\d+)')
_TENSOR_FIELDS = ("id", "storage", "offset", "elements", "bytes of an element", "device")
_TENSOR = when_used.pattern(r"Tensor\((.*)\)")


class _Values(msgspec.Struct, gc=False):
    values: list[Any] = []
    shapes: list[Any] = []
    types: list[Any] = []


class _Attribute(msgspec.Struct, gc=False):
    name: str
    value: Any = None


class _Node(msgspec.Struct, gc=False):
    name: str = ""
    inputs: Any = None
    """From schema 1.0.2 on an object; before it a list of values, with the shapes and types beside it."""
    outputs: Any = None
    input_shapes: list[Any] = []
    input_types: list[Any] = []
    attrs: list[_Attribute] = []
    rf_id: int = 0
    """Up to schema 1.0.1 a field of its own."""


class _File(msgspec.Struct, gc=False):
    schema: str
    pid: int
    nodes: list[_Node]


@dataclass(frozen=True)
class Inputs:
    """The inputs of an operator as Kineto writes them where shapes are recorded."""

    dims: list[Any]
    types: list[str]
    concrete: list[str]


@dataclass(frozen=True)
class Call:
    """A call of an operator that an execution trace records."""

    name: str
    inputs: Inputs
    attributes: dict[str, Any]
    reads: frozenset[int]
    """Storages of the tensors that it is given."""
    touches: frozenset[int]
    """The same, and those of the tensors that it returns."""


def is_execution_trace(head: bytes) -> bool:
    """Whether a text that begins so is an execution trace."""
    return bool(_HEAD.match(head))


def process_of(head: bytes) -> int | None:
    """The process that an execution trace with this beginning is of."""
    found = _HEAD.match(head)
    return int(found[1]) if found else None


def calls(path: Path, options: ReadOptions | None = None) -> dict[int, Call]:
    """The calls of an execution trace by the id of their record function. Raises `InputError` where it is not whole."""
    text = b"".join(stream.blocks(path, options.advance if options else None))
    try:
        file = msgspec.json.decode(text, type=_File)
    except (msgspec.DecodeError, RecursionError) as error:
        raise InputError(
            f"{path}: the execution trace can't be read: {error}",
            hint="unregister the observer (unregister_callback) before the program ends: it then closes the file",
        ) from error
    return dict(_calls(file.nodes))


def _calls(nodes: list[_Node]) -> Iterator[tuple[int, Call]]:
    for node in nodes:
        attributes = {one.name: one.value for one in node.attrs}
        number = attributes.get("rf_id", node.rf_id)
        if isinstance(number, int) and number > 0:
            told = _values(node.inputs) or _Values(node.inputs or [], node.input_shapes, node.input_types)
            returned = _values(node.outputs)
            reads = frozenset(_storages(told.values))
            touches = reads | frozenset(_storages(returned.values if returned else node.outputs or []))
            yield number, Call(node.name, _inputs(told), attributes, reads, touches)


def _values(told: Any) -> _Values | None:
    """What stands on one side of a node, from schema 1.0.2 on."""
    if not isinstance(told, dict):
        return None
    try:
        return msgspec.convert(told, _Values)
    except msgspec.ValidationError:
        return _Values()


def _storages(values: Any) -> Iterator[int]:
    """Of tensors [id, storage, offset, elements, bytes each, device], and of lists of them."""
    for value in values if isinstance(values, list) else ():
        if isinstance(value, list) and len(value) == len(_TENSOR_FIELDS) and isinstance(value[-1], str):
            yield value[1]
        else:
            yield from _storages(value)


def _inputs(told: _Values) -> Inputs:
    if not len(told.values) == len(told.shapes) == len(told.types):
        return Inputs([], [], [])
    kinds = [str(kind) for kind in told.types]
    types = [_type(kind) for kind in kinds]
    return Inputs(
        [[] if kind == "ScalarList" else shape for shape, kind in zip(told.shapes, types, strict=True)],
        types,
        [_concrete(kind, value) for kind, value in zip(kinds, told.values, strict=True)],
    )


def _type(kind: str) -> str:
    """A type as Kineto names it."""
    if tensor := _TENSOR.fullmatch(kind):
        return "" if tensor[1].startswith("nullptr") else tensor[1]
    if kind.startswith("GenericList["):
        return "TensorList" if "Tensor(" in kind else "ScalarList"
    return "Scalar" if kind in ("Int", "Double", "Bool") else ""


def _concrete(kind: str, value: Any) -> str:
    """The value of a scalar or of a list of scalars as Kineto writes it."""
    if kind == "Bool":
        return str(bool(value))
    if kind in ("Int", "Double"):
        return str(value)
    if kind.startswith("GenericList[") and isinstance(value, list) and "Tensor(" not in kind:
        return f"[{', '.join(map(str, value))}]"
    return ""


class ExecutionTraceSource:
    """Counts what an execution trace holds; the Kineto trace of its process takes the sizes out of it."""

    name = "execution-trace"
    files = Files(
        Role.RECORD,
        (".json", ".json.gz"),
        alone="an execution trace has no times: name it together with the torch.profiler trace of the same run",
    )

    def sniff(self, path: Path, head: bytes) -> bool:
        """A file that begins with schema and process."""
        return path.is_file() and is_execution_trace(head)

    def peek_rank(self, path: Path, head: bytes) -> int | None:  # noqa: ARG002 - a protocol's signature
        """The rank in its name."""
        return rank_in_name(path)

    def read(self, path: Path, builder: TraceBuilder, options: ReadOptions) -> None:
        """Read a trace. Raises `InputError` where it is not whole."""
        builder.source(path, self.name, "", len(calls(path, options)), {})


SOURCE = ExecutionTraceSource()

"""What was in use at a moment, by the user's own line and by what kind of work allocated it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import field

from gpuscope.analyzers.allocator.history import History, State
from gpuscope.schema.memory_section import HeldEntry, HeldLeft, KindEntry
from gpuscope.trace.naming.stack_frames import StackKind, kind_of, own_line, within_attention
from gpuscope.trace.schema import AllocatorAction
from gpuscope.when_used import dataclass

LINES_KEPT = 12
CAST = (1, 2, 4)
"""Halves of what a softmax within attention allocated that other matrices of its elements take: products before it,
casts and dropout behind it. Where a sequence is longer than twice a head's size nothing else in there is as large."""
_OF_TRAINING = (
    StackKind.BACKWARD,
    StackKind.GRADIENTS,
    StackKind.OPTIMIZER,
    StackKind.OPTIMIZER_TEMPORARIES,
    StackKind.CHECKPOINTED,
)


@dataclass
class _Line:
    """What one line of the user's allocated."""

    bytes: int = 0
    blocks: int = 0
    stacks: dict[int, int] = field(default_factory=lambda: defaultdict(int))
    """Bytes by stack."""
    kinds: dict[StackKind, int] = field(default_factory=lambda: defaultdict(int))
    """The same by kind."""


@dataclass(frozen=True)
class Contents:
    """Memory in use at one moment."""

    lines: list[HeldEntry]
    left: HeldLeft
    kinds: list[KindEntry]


NOTHING = Contents([], {"lines": 0, "blocks": 0, "bytes": 0}, [])


def contents(history: History, state: State, frames: Mapping[int, str]) -> Contents:
    """What was in use in `state`, by line and by kind, the most bytes first; what both leave out is told."""
    began = {address for address, held in history.before.held.items() if state.held.get(address) == held}
    lines: dict[tuple[str, bool], _Line] = defaultdict(_Line)
    kinds: dict[StackKind, list[int]] = defaultdict(lambda: [0, 0])
    stacks = {held.frames: frames.get(held.frames, "").splitlines() for held in state.held.values()}
    read = {code: (own_line(stack), kind_of(stack)) for code, stack in stacks.items()}
    attending = {
        code for code, stack in stacks.items() if read[code][1] is StackKind.FORWARD and within_attention(stack)
    }
    softmax = (held.size for held in state.held.values() if read[held.frames][1] is StackKind.ATTENTION_SCORES)
    as_scores = {size * part // 2 for size in softmax for part in CAST}
    for address, held in state.held.items():
        if held.awaiting:
            continue
        line, kind = read[held.frames]
        if held.frames in attending and held.size in as_scores:
            kind = StackKind.ATTENTION_SCORES
        early = address in began
        own = lines[line, early]
        own.bytes += held.size
        own.blocks += 1
        own.stacks[held.frames] += held.size
        kind = StackKind.BEFORE if early and kind is StackKind.NO_STACK else kind
        own.kinds[kind] += held.size
        of_kind = kinds[kind]
        of_kind[0] += held.size
        of_kind[1] += 1
    ordered = sorted(lines.items(), key=lambda item: -item[1].bytes)
    left = [own for _, own in ordered[LINES_KEPT:]]
    return Contents(
        [_entry(line, early, own, frames) for (line, early), own in ordered[:LINES_KEPT]],
        {"lines": len(left), "blocks": sum(own.blocks for own in left), "bytes": sum(own.bytes for own in left)},
        [
            {"kind": kind.value, "bytes": size, "blocks": blocks}
            for kind, (size, blocks) in sorted(kinds.items(), key=lambda item: -item[1][0])
        ],
    )


def _entry(line: str, early: bool, own: _Line, frames: Mapping[int, str]) -> HeldEntry:
    largest = max(own.stacks, key=lambda code: own.stacks[code])
    stack = frames.get(largest, "").splitlines()
    return {
        "bytes": own.bytes,
        "blocks": own.blocks,
        "line": line,
        "stacks": len(own.stacks),
        "kind": max(own.kinds, key=lambda kind: own.kinds[kind]).value,
        "frames": stack,
        "before_recording": early,
    }


def trains(history: History, frames: Mapping[int, str]) -> bool:
    """Whether the recording shows training: an allocation of the backward pass or of an optimizer, or one without a
    stack, as the thread of the backward pass has none where C++ frames are not recorded."""
    codes = {event.frames for event in history.events if event.action == AllocatorAction.ALLOC}
    stacks = [frames.get(code, "").splitlines() for code in codes]
    some = any(stacks)
    return any(kind_of(stack) in _OF_TRAINING or (some and not stack) for stack in stacks)

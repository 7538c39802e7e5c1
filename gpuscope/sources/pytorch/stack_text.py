"""Stacks in text: what faulthandler and py-spy print, alone or within a log.

faulthandler prints threads from the newest to the oldest, which is the main one; py-spy names it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import field

from gpuscope import when_used
from gpuscope.when_used import dataclass

FRAMES = 64
_FAULT = when_used.pattern(
    r"(?:Current thread|Thread) (?P<id>0x[0-9a-f]+)(?: \[(?P<name>[^]]*)\])? \(most recent call first\):\s*$"
)
_FAULT_FRAME = when_used.pattern(r'\s+File "(?P<file>.+)", line (?P<line>\d+|\?\?\?) in (?P<name>.+?)\s*$')
_CODE = when_used.pattern(r"\s{4,}(?P<code>\S.*?)\s*$")
_SPY = when_used.pattern(
    r'Thread (?P<tid>\d+|0x[0-9A-Fa-f]+) \((?:idle|active)(?P<gil>\+gil)?\)(?:: "(?P<name>.*)")?\s*$'
)
_SPY_FRAME = when_used.pattern(r"\s{4}(?P<name>\S.*?) \((?P<place>[^()\s]+)\)\s*$")
_PROCESS = when_used.pattern(r"Process (\d+): ")
MARKS = ("(most recent call first):", '): "MainThread"')


@dataclass
class Stack:
    """One thread's frames, innermost first."""

    thread: str
    main: bool = False
    gil: bool | None = None
    pid: int | None = None
    rank: int | None = None
    frames: list[str] = field(default_factory=list)


def frame(name: str, file: str, line: object = "") -> str:
    """A frame as the table `host_stacks` has it."""
    return f"{name} ({file}:{line})" if line != "" else f"{name} ({file})"


class StackReader:
    """Takes the lines of a text one by one; `finished` then gives its stacks."""

    def __init__(self) -> None:
        self._stacks: list[Stack] = []
        self._current: Stack | None = None
        self._block: list[Stack] = []
        """faulthandler's threads of one dump."""
        self._pid: int | None = None

    def feed(self, line: str, rank: int | None) -> bool:
        """Whether the line belongs to a stack."""
        if (match := _PROCESS.match(line)) is not None:
            self._pid = int(match[1])
            return True
        if (match := _FAULT.match(line)) is not None:
            self._begin(Stack(match["name"] or match["id"], rank=rank))
            self._block.append(self._stacks[-1])
            return True
        if (match := _SPY.match(line)) is not None:
            self._end_block()
            name = match["name"] or match["tid"]
            self._begin(Stack(name, name == "MainThread", match["gil"] is not None, self._pid, rank))
            return True
        return self._frame(line)

    def _begin(self, stack: Stack) -> None:
        self._current = stack
        self._stacks.append(stack)

    def _frame(self, line: str) -> bool:
        own = self._current
        if own is None:
            return False
        for pattern in (_FAULT_FRAME, _SPY_FRAME):
            if (match := pattern.match(line)) is not None:
                place = match["place"] if pattern is _SPY_FRAME else f"{match['file']}:{match['line']}"
                if len(own.frames) < FRAMES:
                    own.frames.append(frame(match["name"], place))
                return True
        if own.frames and self._block and "\t" not in own.frames[-1] and (match := _CODE.match(line)) is not None:
            own.frames[-1] += f"\t{match['code']}"
            return True
        if line.strip():
            self._current = None
            self._end_block()
        return False

    def _end_block(self) -> None:
        if self._block:
            self._block[-1].main = True
        self._block = []

    def finished(self) -> Iterator[Stack]:
        """The stacks that have frames."""
        self._end_block()
        return (stack for stack in self._stacks if stack.frames)

"""Names are stored once and referred to by code: a trace holds millions of events and thousands of names."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import repeat
from threading import Lock
from types import CodeType, FunctionType
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

Codes = npt.NDArray[np.int32]

NO_NAME = -1
"""The code of an absent name; pandas' own convention for a missing category."""


_NONE = np.empty(0, np.bool_)
_INTERNING = Lock()


class _Interned(dict[str, int]):
    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __missing__(self, name: str) -> int:
        with _INTERNING:
            code = self.get(name)  # another thread may have been quicker
            if code is None:
                self.names.append(name)
                code = self[name] = len(self)
            return code


class NamePool:
    """Interns strings: `code(name)` gives the same int32 for equal names, `pool[code]` the name back."""

    _latest: ClassVar[NamePool | None] = None
    """The one that was asked what matches last."""

    def __init__(self) -> None:
        self._codes = _Interned()
        self._before: NamePool | None = None
        self._matches: dict[CodeType, npt.NDArray[np.bool_]] = {}

    def __getstate__(self) -> dict[str, Any]:
        return {"_codes": self._codes}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__()  # type: ignore[misc]
        self.__dict__.update(state)

    def __len__(self) -> int:
        return len(self._codes)

    def __getitem__(self, code: int) -> str:
        return "" if code == NO_NAME else self.names[code]

    @property
    def names(self) -> list[str]:
        """Every name, at the index that is its code."""
        return self._codes.names

    def code(self, name: str) -> int:
        """The code of one name, newly given if it was not seen before."""
        return self._codes[name]

    def codes(self, names: Iterable[str], count: int = -1) -> Codes:
        """The codes of many names, shape (n,)."""
        return np.fromiter(map(self._codes.__getitem__, names), np.int32, count)

    def find(self, name: str) -> int:
        """The code of a name, or `NO_NAME` where it does not occur."""
        return self._codes.get(name, NO_NAME)

    def matching(self, predicate: object) -> npt.NDArray[np.bool_]:
        """Per code, whether `predicate(name)` holds: asked once per name, not once per event. Read-only."""
        assert callable(predicate)
        # A lambda is a new function each time but one code, which answers alike unless it looks at variables around it.
        if not isinstance(predicate, FunctionType) or predicate.__closure__ or predicate.__defaults__:
            return np.fromiter((bool(predicate(name)) for name in self.names), np.bool_, len(self))
        known = self._matches.get(predicate.__code__, _NONE)
        if len(known) < len(self):
            known = np.concatenate((known, self._told(predicate, self.names[len(known) :])))
            known.flags.writeable = False
            self._matches[predicate.__code__] = known
        return known

    def _told(self, predicate: FunctionType, names: list[str]) -> npt.NDArray[np.bool_]:
        """What a predicate says of names: ranks of a run share most of them, so what the pool asked before this one
        knows is taken from it."""
        latest = NamePool._latest
        if latest is not self:
            if latest is not None:
                latest._before = None
            self._before, NamePool._latest = latest, self
        answers = np.zeros(len(names), np.bool_)
        told = answers.copy()
        if (before := self._before) is not None:
            known = before._matches.get(predicate.__code__, _NONE)
            codes = np.fromiter(map(before._codes.get, names, repeat(NO_NAME)), np.int32, len(names))
            told = (codes >= 0) & (codes < len(known))
            answers[told] = known[codes[told]]
        for place in np.flatnonzero(~told).tolist():
            answers[place] = bool(predicate(names[place]))
        return answers


class PerName:
    """What `ask(name)` says of names, as an integer: asked once per name that occurs, not once per event."""

    def __init__(self, pool: NamePool, ask: Callable[[str], int]) -> None:
        self._pool, self._ask = pool, ask
        self._answers = np.empty(0, np.int32)
        self._asked = np.empty(0, np.bool_)

    def __call__(self, codes: Codes) -> npt.NDArray[np.int32]:
        """The answer for each code, shape (n,)."""
        room = len(self._pool) - len(self._asked)
        if room > 0:
            self._answers = np.concatenate((self._answers, np.zeros(room, np.int32)))
            self._asked = np.concatenate((self._asked, np.zeros(room, np.bool_)))
        occurs = np.zeros(len(self._asked), np.bool_)
        occurs[codes] = True
        for code in np.flatnonzero(occurs & ~self._asked).tolist():
            self._answers[code] = self._ask(self._pool[code])
            self._asked[code] = True
        return np.asarray(self._answers[codes])

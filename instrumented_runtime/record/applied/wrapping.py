"""Constructors that take changed arguments: `__init__` is wrapped in place, so that classes, pickles and signatures
stay as they are. No error of ours stops the user's job: it is told in the ledger, and the script's arguments are kept.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from gpuscope.instrumented_runtime.record.applied.ledger import Ledger, caller

_being_made: set[int] = set()
"""Objects within their outermost constructor: a subclass calls its base's, which is wrapped too."""


Edit = Callable[[dict[str, Any], str], Iterable[str]]
"""Changes the arguments of one call, given by name without defaults, and is told where the script makes it; returns the
names of the changes made."""

Look = Callable[[Any, str], None]
"""Sees the finished object, or what a function returned, and where the script made it."""


@dataclass(frozen=True)
class Wrapping:
    """What is done around each call."""

    ledger: Ledger
    edit: Edit
    look: Look
    retry: bool = False
    """A call that fails with the changed arguments is made again with the script's own."""
    prepare: Callable[[dict[str, Any]], None] | None = None
    """Makes the script's own arguments readable twice."""

    def around_init(self, owner: Any) -> None:
        """Wrap the constructor of a class, and so of its subclasses."""
        make = owner.__init__
        signature = inspect.signature(make)

        @functools.wraps(make)
        def init(made: Any, *args: Any, **kwargs: Any) -> None:
            if id(made) in _being_made:
                make(made, *args, **kwargs)
                return
            _being_made.add(id(made))
            try:
                self._call(make, signature, (made, *args), kwargs)
            finally:
                _being_made.discard(id(made))
            self._attempt(lambda: self.look(made, caller()))

        owner.__init__ = init

    def around(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """The function, wrapped."""
        signature = inspect.signature(function)

        @functools.wraps(function)
        def wrapped(*args: Any, **kwargs: Any) -> Any:
            result = self._call(function, signature, args, kwargs)
            self._attempt(lambda: self.look(result, caller()))
            return result

        return wrapped

    def _call(
        self, make: Callable[..., Any], signature: inspect.Signature, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        own = _by_name(signature, args, kwargs)
        if own is None:
            return make(*args, **kwargs)  # which tells what is wrong with them
        if self.prepare is not None:
            prepare = self.prepare
            self._attempt(lambda: prepare(own))
        changed, where = dict(own), caller()
        made: list[str] = []
        if not self._attempt(lambda: made.extend(self.edit(changed, where))):
            changed, made = own, []
        try:
            result = make(**changed)
        except (TypeError, ValueError, RuntimeError) as error:
            if not self.retry or not made:
                raise
            for name in made:
                self.ledger.refused(name, f"{type(error).__name__}: {error}", where)
            return make(**own)
        for name in made:
            self.ledger.applied(name)
        return result

    def _attempt(self, what: Callable[[], object]) -> bool:
        try:
            what()
        except Exception as error:
            self.ledger.problem(repr(error))
            return False
        return True


def _by_name(signature: inspect.Signature, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any] | None:
    """All arguments by name; None where they do not fit, or some can't be given by name."""
    try:
        bound = signature.bind(*args, **kwargs).arguments
    except TypeError:
        return None
    kinds = {name: one.kind for name, one in signature.parameters.items()}
    if any(kinds[name] in (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.POSITIONAL_ONLY) for name in bound):
        return None
    collected = next((name for name, kind in kinds.items() if kind is inspect.Parameter.VAR_KEYWORD), "")
    further = bound.pop(collected, {})
    return {**bound, **further}

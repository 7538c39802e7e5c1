"""Calling back once a module has been imported, without importing it."""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import os
import sys
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any


class AfterImport(importlib.abc.MetaPathFinder):
    """Calls `then` once module `name` has been imported; looking it up (`importlib.util.find_spec`) changes nothing."""

    def __init__(self, name: str, then: Callable[[], None], failed: str = "does not record") -> None:
        self._name, self._then, self._failed = name, then, failed
        self._asking = False

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """The spec that the other finders have, with a loader that calls `then` after it."""
        if name != self._name or self._asking:
            return None
        self._asking = True
        try:
            found = (finder.find_spec(name, path, target) for finder in list(sys.meta_path) if finder is not self)
            spec = next(filter(None, found), None)
        finally:
            self._asking = False
        if spec is not None and spec.loader is not None:
            self._wrap(spec.loader)
        return spec

    def _wrap(self, loader: Any) -> None:
        execute = loader.exec_module

        def execute_then(module: ModuleType) -> None:
            execute(module)
            if self not in sys.meta_path:  # imported before, under another spec
                return
            sys.meta_path.remove(self)
            try:
                self._then()
            except Exception as error:  # no error of ours may stop the user's job
                print(f"gpuscope: pid {os.getpid()} {self._failed}: {error!r}", file=sys.stderr)

        loader.exec_module = execute_then


def after_import(name: str, then: Callable[[], None], failed: str) -> None:
    """Call `then` now if the module is there, else once it is; `failed` says what it means if that raises."""
    if name in sys.modules:
        then()
    else:
        sys.meta_path.insert(0, AfterImport(name, then, failed))

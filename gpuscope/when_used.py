"""`dataclass` and `pattern`: what is declared now and made when first used. A start-up declares hundreds and uses few.

Both behave as the standard library's; making a dataclass takes half a millisecond, most of it to compile its methods.
"""

from __future__ import annotations

import dataclasses
import re
from threading import RLock
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dataclasses import dataclass as dataclass

    pattern = re.compile
else:
    _MAKING = RLock()

    class _Fields:
        """Stands for the fields of a class until someone asks for them: a subclass, `fields()`, an encoder."""

        def __init__(self, cls, make):
            self.cls, self.make = cls, make

        def __get__(self, _instance, _owner):
            self.make()
            return vars(self.cls)["__dataclass_fields__"]

    def _new(cls, *_args, **_named):
        return object.__new__(cls)

    def dataclass(cls=None, /, **options):
        """`dataclasses.dataclass`, applied when the first object is made, also by a pickle, or the fields are read."""
        if cls is None:
            return lambda named: dataclass(named, **options)

        def make():
            with _MAKING:  # another thread's first object waits in `first` until `__init__` is there
                if cls.__new__ is first:
                    dataclasses.dataclass(cls, **options)
                    cls.__new__ = _new  # once set, the one of `object` can't be had back

        def first(owner, *_args, **_named):
            make()
            return object.__new__(owner)

        cls.__new__ = first
        cls.__dataclass_fields__ = _Fields(cls, make)
        return cls

    class pattern:  # noqa: N801
        """`re.compile`, called when a method is."""

        def __init__(self, *given):
            self.given = given

        def __getattr__(self, name):
            found = getattr(re.compile(*self.given), name)
            setattr(self, name, found)
            return found

"""`dataclass`, `pattern` and `TypedDict`: declared now, made when used. A start-up declares hundreds and uses few.

All behave as the standard library's, whose dataclass takes half a millisecond to make, most of it to compile methods
one by one; here `__init__` alone is compiled, the others are the same for all. Its TypedDict compiles every annotation;
here they stay texts, which `get_type_hints` and msgspec read as well.
"""

from __future__ import annotations

import dataclasses
import inspect
import re
import typing
from dataclasses import MISSING
from functools import cache
from operator import attrgetter
from reprlib import recursive_repr
from threading import RLock
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dataclasses import dataclass as dataclass
    from typing import TypedDict as TypedDict

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
                    (dataclasses.dataclass if options.keys() - _SHARED else _make)(cls, **options)
                    cls.__new__ = _new  # once set, the one of `object` can't be had back

        def first(owner, *_args, **_named):
            make()
            return object.__new__(owner)

        cls.__new__ = first
        cls.__dataclass_fields__ = _Fields(cls, make)
        return cls

    _SHARED = {"eq", "frozen", "kw_only", "repr"}
    """Options that `_make` knows. It knows no `InitVar`."""

    def _make(cls, frozen=False, repr=True, eq=True, kw_only=False):
        fields = _fields(cls, kw_only)
        cls.__dataclass_params__ = _params(frozen)  # what a subclass by the standard library looks at
        made = {"__init__": _init(cls, fields, frozen)}
        made["__match_args__"] = tuple(one.name for one in fields if one.init and not one.kw_only)
        if repr:
            made["__repr__"] = _repr([one.name for one in fields if one.repr])
        if eq:
            made["__eq__"] = _eq(_values([one.name for one in fields if one.compare]))
            hashed = _values([one.name for one in fields if (one.compare if one.hash is None else one.hash)])
            made["__hash__"] = (lambda self: hash(hashed(self))) if frozen else None
            if "__eq__" in vars(cls) and cls.__hash__ is None:
                del cls.__hash__  # set by Python
        if frozen:
            made["__setattr__"], made["__delattr__"] = _refusing(cls, {one.name for one in fields})
        for name, value in made.items():
            if name not in vars(cls):
                setattr(cls, name, value)

    @cache
    def _params(frozen):
        return dataclasses.dataclass(frozen=frozen)(type("Bare", (), {"__doc__": "-"})).__dataclass_params__

    def _fields(cls, kw_only):
        """Of the class and its bases, as the standard library reads them; defaults are left as its attributes."""
        found = {}
        for base in cls.__mro__[:0:-1]:
            found |= getattr(base, "__dataclass_fields__", {})
        for name, kind in inspect.get_annotations(cls).items():
            given = vars(cls).get(name, MISSING)
            found[name] = one = given if isinstance(given, dataclasses.Field) else dataclasses.field(default=given)
            of_class = str(kind).startswith("ClassVar[")
            one.name, one.type = name, kind
            one._field_type = dataclasses._FIELD_CLASSVAR if of_class else dataclasses._FIELD
            one.kw_only = kw_only if one.kw_only is MISSING else one.kw_only
            if one is given and one.default is not MISSING:
                setattr(cls, name, one.default)
            elif one is given:
                delattr(cls, name)
        cls.__dataclass_fields__ = found
        return dataclasses.fields(cls)

    def _init(cls, fields, frozen):
        known = {"_absent": object()}
        by_place, by_name, body = ["self"], ["*"], []
        for one in fields:
            name = value = parameter = one.name
            if one.default_factory is not MISSING:
                known[f"_new_{name}"] = one.default_factory
                parameter = f"{name}=_absent"
                value = f"_new_{name}() if {name} is _absent else {name}" if one.init else f"_new_{name}()"
            elif not one.init:
                continue
            elif one.default is not MISSING:
                known[f"_default_{name}"] = one.default
                parameter = f"{name}=_default_{name}"
            if one.init:
                (by_name if one.kw_only else by_place).append(parameter)
            body.append(f"{name}={value}" if frozen else f"self.{name} = {value}")
        if frozen:  # half the time to compile, and to run, of one `object.__setattr__` each
            body = [f"self.__dict__.update({', '.join(body)})"]
        if hasattr(cls, "__post_init__"):
            body.append("self.__post_init__()")
        parameters = ", ".join(by_place + by_name[len(by_name) == 1 :])
        exec(f"def __init__({parameters}): {'; '.join(body) or 'pass'}", known)
        known["__init__"].__qualname__ = f"{cls.__qualname__}.__init__"
        return known["__init__"]

    def _values(names):
        """What gives these attributes of an object as a tuple."""
        if len(names) > 1:
            return attrgetter(*names)
        return lambda self: tuple(getattr(self, name) for name in names)

    def _eq(compared):
        def equal(self, other):
            return compared(self) == compared(other) if other.__class__ is self.__class__ else NotImplemented

        return equal

    def _repr(names):
        @recursive_repr()
        def shown(self):
            return f"{self.__class__.__qualname__}({', '.join(f'{name}={getattr(self, name)!r}' for name in names)})"

        return shown

    def _refusing(cls, names):
        def set_one(self, name, value):
            if type(self) is cls or name in names:
                raise dataclasses.FrozenInstanceError(f"cannot assign to field {name!r}")
            super(cls, self).__setattr__(name, value)

        def delete_one(self, name):
            if type(self) is cls or name in names:
                raise dataclasses.FrozenInstanceError(f"cannot delete field {name!r}")
            super(cls, self).__delattr__(name)

        return set_one, delete_one

    class pattern:  # noqa: N801
        """`re.compile`, called when a method is."""

        def __init__(self, *given):
            self.given = given

        def __reduce__(self):
            return pattern, self.given

        def __getattr__(self, name):
            found = getattr(re.compile(*self.given), name)
            setattr(self, name, found)
            return found

    class _Keys(type):
        def __new__(cls, name, _bases, body, total=True):
            made = typing.TypedDict(name, {}, total=total)  # noqa: UP013
            for known, value in ({"__annotations__": {}} | body).items():
                setattr(made, known, value)
            setattr(made, "__required_keys__" if total else "__optional_keys__", frozenset(made.__annotations__))
            return made

    TypedDict = type.__new__(_Keys, "TypedDict", (), {})

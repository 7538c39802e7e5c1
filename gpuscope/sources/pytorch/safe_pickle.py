"""Pickles that may come from anywhere, read without running what is in them.

A pickle is a program; one that names a class or function can do anything when it is loaded. Here none may be
named: what can come out are dicts, lists, tuples, sets, strings, bytes, numbers, booleans and None.
"""

from __future__ import annotations

import io
import pickle
from typing import Any

from gpuscope.errors import InputError


class _PlainUnpickler(pickle._Unpickler):
    """Refuses every name and every persistent id, before anything is imported.

    The one written in Python: the one in C sets aside as much memory as the pickle's memo indices ask for.
    """

    def find_class(self, module: str, name: str) -> Any:
        raise InputError(
            f"names {module}.{name}, and a pickle that names classes or functions can run any program",
            hint="a dump holds only plain data; take this one for damaged or hostile",
        )

    def persistent_load(self, pid: Any) -> Any:  # noqa: ARG002 - the signature is pickle's
        raise InputError("refers to objects outside of itself")


def loads(data: bytes) -> Any:
    """The plain data of a pickle. Raises `InputError` for one that names anything, is cut off, or is none."""
    try:
        return _PlainUnpickler(io.BytesIO(data)).load()
    except InputError:
        raise
    except EOFError as error:
        raise InputError("is cut off", hint="was the job killed while it wrote?") from error
    except Exception as error:  # a damaged pickle fails in any way there is, also with MemoryError
        if not data.endswith(pickle.STOP):
            raise InputError("is cut off", hint="was the job killed while it wrote?") from error
        raise InputError(f"is not a pickle of plain data ({error})") from error

"""One columnar table: numpy arrays under a declared schema, a DataFrame on request."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from gpuscope.trace.columns.name_pool import NO_NAME, NamePool
from gpuscope.trace.schema import NA, Column, TableSchema

if TYPE_CHECKING:
    import pandas as pd

Array = npt.NDArray[Any]
Times = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]

_DTYPES: dict[str, type] = {"time": np.int64, "int": np.int64, "name": np.int32, "enum": np.int8}


def constant(value: Any, length: int, dtype: type) -> Array:
    """A column of one value, which takes the room of one; shape (length,), read-only."""
    column: Array = np.ndarray((length,), dtype, np.array([value], dtype), strides=(0,))
    column.flags.writeable = False  # as `numpy.broadcast_to`, in a tenth of the time
    return column


def is_constant(array: Array) -> bool:
    """Whether a column was made by `constant`."""
    return array.strides == (0,) and len(array) > 0


def compact(array: Array) -> Array:
    """The column itself, or as `constant` where all its values are one."""
    if len(array) < 2 or is_constant(array) or array[0] != array[-1] or array.min() != array.max():
        return array
    return constant(array[0], len(array), array.dtype.type)


def concatenated(parts: Sequence[Array]) -> Array:
    """Columns one after another; those of one and the same value as such a column."""
    if len(parts) == 1:
        return parts[0]
    some = [part for part in parts if len(part)] or parts[:1]
    if all(map(is_constant, some)) and len({part[0].item() for part in some}) == 1:
        return constant(some[0][0], sum(map(len, some)), some[0].dtype.type)
    return np.concatenate(parts)


def picked(array: Array, rows: Array) -> Array:
    """`array[rows]`, rows of a mask or row numbers."""
    if is_constant(array):
        count = int(np.count_nonzero(rows)) if rows.dtype == np.bool_ else len(rows)
        return constant(array[0], count, array.dtype.type)
    return np.asarray(array[rows])


def absent(column: Column) -> int:
    """The stored value that means «absent» in a column."""
    return NO_NAME if column.dtype == "name" else NA


class Table:
    """Equal-length arrays, one per column of `schema`; treat them as read-only.

    A column of one value (the rank, what no row has) is stored once, as `constant`.
    """

    def __init__(self, schema: TableSchema, columns: Mapping[str, Array]) -> None:
        self.schema = schema
        self.columns = dict(columns)
        self._length = len(next(iter(self.columns.values())))

    @classmethod
    def empty(cls, schema: TableSchema) -> Table:
        """A table without rows."""
        return cls(schema, {c.name: np.empty(0, _DTYPES[c.dtype]) for c in schema.columns})

    @classmethod
    def build(cls, schema: TableSchema, length: int, values: Mapping[str, Any]) -> Table:
        """A table of `length` rows; a scalar fills its column, a missing optional column is absent.

        Raises `KeyError` for a column that is not declared, `ValueError` for one that is needed.
        """
        for name in values:
            schema.column(name)
        columns: dict[str, Array] = {}
        for column in schema.columns:
            dtype = _DTYPES[column.dtype]
            value = values.get(column.name)
            if value is None:
                if not column.optional:
                    raise ValueError(f"table {schema.name!r} needs column {column.name!r}")
                value = absent(column)
            array: Array = np.asarray(value, dtype)
            columns[column.name] = constant(array, length, dtype) if array.ndim == 0 else array
        return cls(schema, columns)

    def __len__(self) -> int:
        return self._length

    def check(self) -> None:
        """Raise `ValueError` where a column is not of its declared type, or not as long as the others."""
        for column in self.schema.columns:
            found = self.columns[column.name]
            if found.dtype != _DTYPES[column.dtype] or found.shape != (self._length,):
                raise ValueError(f"{self.schema.name}.{column.name}: {found.dtype} of shape {found.shape}")

    def __getitem__(self, name: str) -> Array:
        return self.columns[name]

    def known(self, name: str) -> Mask:
        """Per row, whether the column has a value there, shape (n,)."""
        return np.asarray(self.columns[name] != absent(self.schema.column(name)))

    def take(self, rows: Array) -> Table:
        """The rows of a mask or of row numbers, in that order."""
        return Table(self.schema, {name: picked(array, rows) for name, array in self.columns.items()})

    def taking(self, rows: Array) -> Table:
        """As `take`, but this table is used up column by column, so that only one is ever held twice."""
        return Table(self.schema, {name: picked(self.columns.pop(name), rows) for name in list(self.columns)})

    def __getstate__(self) -> dict[str, Any]:
        """Columns of one value are pickled as that value."""
        columns = {
            name: (array[0].item(), array.dtype.type) if is_constant(array) else array
            for name, array in self.columns.items()
        }
        return {"schema": self.schema, "columns": columns, "length": self._length}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.schema, self._length = state["schema"], state["length"]
        self.columns = {
            name: constant(array[0], self._length, array[1]) if isinstance(array, tuple) else array
            for name, array in state["columns"].items()
        }

    def to_frame(self, names: NamePool) -> pd.DataFrame:
        """A plain DataFrame: integers as Int64 where they can be absent, names and enums as categories."""
        import pandas as pd

        frame: dict[str, Any] = {}
        for column in self.schema.columns:
            array = self.columns[column.name]
            if column.dtype == "name":
                # Only the names that occur, in order of code, so that frames of one trace stay comparable.
                used, codes = np.unique(array, return_inverse=True)
                first = int(len(used) > 0 and used[0] == NO_NAME)
                categories = pd.Index([names[code] for code in used[first:]], dtype="str")
                frame[column.name] = pd.Categorical.from_codes(codes - first, categories=categories)
            elif column.enum is not None:
                labels = [member.name.lower() for member in column.enum]
                frame[column.name] = pd.Categorical.from_codes(array.astype(np.int8), categories=pd.Index(labels))
            elif column.optional:
                missing = array == NA
                frame[column.name] = pd.arrays.IntegerArray(np.where(missing, 0, array), missing)
            else:
                frame[column.name] = array
        return pd.DataFrame(frame)

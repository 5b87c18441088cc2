"""Columns of any table as NumPy arrays: mappings of arrays, pandas, polars, Arrow.

No dataframe library is imported. A table has columns with names, and a column has the method
``__array__``: that is all that is used.
"""

import importlib
import importlib.util
import math
import numbers
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Int

from rookery import check


@dataclass(frozen=True)
class Column:
    """Values of one column, and which of them are missing.

    Attributes:
        name: of the column.
        values: one row per sample; a missing one has any value.
        missing: whether a row is None, NaN, null or NaT.
    """

    name: str
    values: np.ndarray
    missing: Bool[np.ndarray, " rows"]

    @property
    def is_number(self) -> bool:
        """Whether the values are numbers or truth values."""
        return self.values.dtype.kind in "biuf"

    def take(self, rows: Int[np.ndarray, " _kept"]) -> "Column":
        """Only these rows."""
        return Column(self.name, self.values[rows], self.missing[rows])

    def filled(self, value: object) -> "Column":
        """The same column with a value where it was missing."""
        if not self.missing.any():
            return self
        values = self.values.astype(object)
        values[self.missing] = value
        return as_column(self.name, values)


def read_columns(table: object) -> dict[str, Column]:
    """The columns of a table, by name, in the table's order.

    >>> read_columns({"age": [31, 55], "sex": ["f", None]})["sex"].missing.tolist()
    [False, True]
    """
    if isinstance(table, Mapping):
        check.distinct("column names", map(str, table))
        found = {str(name): table[name] for name in table}
        if found and all(hasattr(value, "column_names") for value in found.values()):
            raise TypeError(
                f"got a mapping of whole tables, {list(found)}. Use Population.from_huggingface "
                "for a DatasetDict, or join the tables to one with a column that names the split."
            )
    elif (names := _names(table)) is not None:
        check.distinct("column names", map(str, names))
        found = {str(name): table[name] for name in names}  # pyright: ignore[reportIndexIssue]
    elif hasattr(table, "__arrow_c_stream__"):
        return read_columns(_through_arrow(table))
    else:
        raise TypeError(
            "a table must be a mapping of arrays or have named columns, as pandas, polars and "
            f"Arrow tables do; got {type(table).__name__}. A lazy table must be collected first."
        )
    if not found:
        raise ValueError("the table has no columns.")
    columns = {name: as_column(name, values) for name, values in found.items()}
    lengths = {name: len(column.values) for name, column in columns.items()}
    if len(set(lengths.values())) > 1:
        raise ValueError(f"all columns need the same number of rows, got {lengths}.")
    if not next(iter(lengths.values())):
        raise ValueError("the table has no rows.")
    return columns


def _names(table: object) -> list[object] | None:
    """The names of the columns, of an object that gives a column by its name."""
    if not hasattr(table, "__getitem__") or not hasattr(table, "__len__"):
        return None  # a lazy table does not know its length
    names = getattr(
        table, "column_names", None
    )  # Arrow, where `columns` are the columns themselves
    return list(getattr(table, "columns", [])) or None if names is None else list(names)


def _through_arrow(table: object) -> object:
    if importlib.util.find_spec("pyarrow") is None:
        raise TypeError(
            f"{type(table).__name__} is read through the package pyarrow, which is not installed. "
            "Install it, or pass a dictionary of arrays."
        )
    return importlib.import_module("pyarrow").table(table)


def as_column(name: str, values: object) -> Column:
    """A column from anything that NumPy can make an array of.

    >>> as_column("age", [31, None, 55]).values.dtype
    dtype('float64')
    """
    try:
        array = np.asarray(values)
    except ValueError:  # lists of unequal length
        array = np.empty(len(values), object)  # pyright: ignore[reportArgumentType]
        array[:] = list(values)  # pyright: ignore[reportArgumentType, reportCallIssue]
    if array.ndim == 0:
        raise ValueError(f"column {name!r} must have one value per row, got the single {values!r}.")
    if array.dtype.kind == "T" or (array.dtype.kind == "U" and isinstance(values, list | tuple)):
        # strings of variable length; or a list in which NumPy made strings of numbers too
        array = np.asarray(values, object)
    if array.dtype.kind == "O":
        return _from_objects(name, array)
    if array.dtype.kind == "f":
        missing = _in_row(np.isnan(array))
    elif array.dtype.kind in "mM":
        missing = _in_row(np.isnat(array))
    else:
        missing = np.zeros(len(array), bool)
    return Column(name, array, missing)


def _from_objects(name: str, array: np.ndarray) -> Column:
    """Python objects as numbers, rows of numbers or text, whichever they are."""
    missing = np.array([_is_missing(value) for value in array.ravel()], bool)
    missing = _in_row(missing.reshape(array.shape))
    present = array[~missing]
    if all(isinstance(value, numbers.Real | np.bool_) for value in present.ravel()):
        numeric = np.asarray(present.tolist()) if present.size else np.zeros(present.shape)
        if numeric.dtype.kind == "O":
            raise TypeError(f"column {name!r} has whole numbers that need more than 64 bits.")
        kind = np.result_type(numeric, np.float64) if missing.any() else numeric.dtype
        values = np.full(array.shape, np.nan if missing.any() else 0, kind)
        values[~missing] = numeric
        return Column(name, values, missing)
    if present.ndim == 1 and all(isinstance(v, np.ndarray | list | tuple) for v in present):
        shapes = {np.shape(value) for value in map(np.asarray, present)}
        if len(shapes) > 1:
            raise ValueError(
                f"column {name!r} has rows of unequal shapes: {sorted(shapes)[:3]}. Pad them to "
                "one shape, and add a column that masks the padding."
            )
        rows = np.asarray([np.asarray(value) for value in present])
        values = np.zeros((len(array), *rows.shape[1:]), rows.dtype)
        values[~missing] = rows
        inner = as_column(name, values)
        return Column(name, inner.values, inner.missing | missing)
    return Column(name, array, missing)


def _in_row(entries: np.ndarray) -> np.ndarray:
    """Whether any entry of a row is true."""
    return np.any(entries.reshape(len(entries), math.prod(entries.shape[1:])), axis=1)


def _is_missing(value: object) -> bool:
    if value is None or type(value).__name__ in {"NAType", "NaTType"}:  # of pandas
        return True
    return isinstance(value, float | np.floating) and bool(np.isnan(value))

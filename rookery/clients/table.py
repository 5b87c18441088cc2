"""From the columns of a table to fields of numbers and the rows of every client."""

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypedDict, TypeVar, cast

import jax
import numpy as np
from jaxtyping import Int

from rookery import check
from rookery.clients import partition
from rookery.clients.columns import Column
from rookery.clients.pieces import cut, lengths

Value = TypeVar("Value")
Fields = Mapping[str, str | int | Sequence[str | int]]
"""Per field, the column that it is, or the columns that are its entries."""
Splits = str | int | Mapping[str, float]
"""The column that names the split of a row, or the fraction of every split."""
Encode = Sequence[str | int] | Mapping[str, Sequence[object]] | Mapping[int, Sequence[object]]
"""Columns that become class numbers, perhaps with the values of the classes in order."""
NamedWeights = str | Mapping[str, float] | None
"""Weights of clients with names: "rows" for the numbers of training rows, or a number each."""
Missing = str | Mapping[str, object] | Mapping[int, object]
"""What to do with missing values: "error", "drop", or a value to fill in for each column."""


@dataclass(frozen=True)
class Dealt:
    """The arguments of ``Population.from_parts``.

    Attributes:
        data: one array per field.
        parts: per split, the row numbers of each client.
        names: of the clients.
        classes: per encoded field, the values of its classes in order; a column among several of a
            field is called "field.column".
    """

    data: dict[str, np.ndarray]
    parts: dict[str, list[np.ndarray]]
    names: list[str]
    classes: dict[str, tuple[object, ...]]

    def weights(self, given: NamedWeights) -> Sequence[float] | np.ndarray | None:
        """The weights in the order of the clients; None if they are equal."""
        if isinstance(given, str):
            check.one_of("kind of weights", given, ("rows",))
            train = self.parts.get("train")
            counted = self.parts.values() if train is None else [train]
            return np.sum([lengths(lists) for lists in counted], axis=0).astype(float)
        if isinstance(given, Mapping):
            if set(given) != set(self.names):
                raise ValueError(
                    f"weights needs one number per client of {self.names}, got {dict(given)}."
                )
            return [given[name] for name in self.names]
        return None


class DealSettings(TypedDict, total=False):
    """The settings of :func:`deal`, as keywords of a function that reads a table."""

    splits: Splits | None
    fields: Fields | None
    encode: Encode
    missing: Missing
    seed: int


def deal(
    columns: Mapping[str, Column],
    client: str | int,
    row_numbers: Int[np.ndarray, " rows"] | None = None,
    *,
    splits: Splits | None = None,
    fields: Fields | None = None,
    encode: Encode = (),
    missing: Missing = "error",
    seed: int = 0,
) -> Dealt:
    """Check, encode and group the rows of a table; see ``Population.from_table``.

    Args:
        columns: of the table.
        client: the column that names the clients.
        row_numbers: how errors call the rows; their positions if not given.
        splits: the column that names the splits, or fractions.
        fields: which columns become which field.
        encode: columns that become class numbers.
        missing: what to do with missing values.
        seed: of random splits.
    """
    if row_numbers is None:
        row_numbers = np.arange(len(next(iter(columns.values())).values))
    client = check.one_of("column (client)", _text(client), columns)
    splits = _text(splits) if isinstance(splits, str | int) else splits
    to_fill = _texts(missing) if isinstance(missing, Mapping) else missing
    keys = [client]
    if isinstance(splits, str):
        keys.append(check.one_of("column (splits)", splits, columns))
    wanted = _wanted(columns, fields, keys)
    contents = list(dict.fromkeys(itertools.chain(*wanted.values())))
    used = {name: columns[name] for name in dict.fromkeys([*keys, *contents])}
    used, row_numbers = _without_missing(used, client, to_fill, row_numbers)
    names, owner = _groups(used[client])
    where = _Where(row_numbers, names, owner)
    encoded = {
        name: _encoded(used[name], given, where)
        for name, given in _classes(encode, columns, contents).items()
    }
    numbers = {
        name: encoded[name][0] if name in encoded else _numbers(used[name], where)
        for name in contents
    }
    data = {
        field: numbers[own[0]]
        if fields is None or isinstance(fields[field], str | int)
        else _together(field, [numbers[name] for name in own], own)
        for field, own in wanted.items()
    }
    for field, own in wanted.items():
        for name in own:
            _check_fits(name, numbers[name], data[field].dtype, where)
    parts = cut(np.argsort(owner, kind="stable"), np.bincount(owner, minlength=len(names)))
    classes = {
        field if data[field].ndim == 1 else f"{field}.{name}": encoded[name][1]
        for field, own in wanted.items()
        for name in own
        if name in encoded
    }
    return Dealt(data, _split(parts, splits, used, names, seed), names, classes)


def _text(name: str | int) -> str:
    """The name of a column as text, as the table's columns are called."""
    is_number = isinstance(name, int | np.integer) and not isinstance(name, bool)
    return str(name) if is_number else cast(str, name)


def _texts(names: Mapping[str, Value] | Mapping[int, Value]) -> dict[str, Value]:
    return {_text(name): value for name, value in names.items()}


@dataclass(frozen=True)
class _Where:
    """How an error says where a value is."""

    row_numbers: Int[np.ndarray, " rows"]
    names: Sequence[str]
    owner: Int[np.ndarray, " rows"]

    def __call__(self, column: str, row: int) -> str:
        client = self.names[self.owner[row]]
        return f"column {column!r}, row {self.row_numbers[row]} (client {client!r})"


def _wanted(
    columns: Mapping[str, Column], fields: Fields | None, keys: Sequence[str]
) -> dict[str, list[str]]:
    """The columns of every field."""
    if fields is None:
        wanted = {name: [name] for name in columns if name not in keys}
    else:
        if not isinstance(fields, Mapping):
            raise TypeError(
                "fields must map the name of each field to a column or a list of columns, got "
                f"{fields!r}."
            )
        wanted = {
            field: [_text(own)] if isinstance(own, str | int) else [_text(name) for name in own]
            for field, own in fields.items()
        }
    if not wanted or not all(wanted.values()):
        raise ValueError(
            f"no columns are left to be fields, beside {list(keys)}: {wanted}. Name at least one."
        )
    for field, own in wanted.items():
        for name in own:
            check.one_of(f"column (field {field!r})", name, columns)
    return wanted


def _without_missing(
    columns: dict[str, Column],
    client: str,
    missing: str | Mapping[str, object],
    row_numbers: Int[np.ndarray, " rows"],
) -> tuple[dict[str, Column], np.ndarray]:
    """The columns with rows dropped or values filled in, or an error at the first missing value."""
    if isinstance(missing, Mapping):
        for name in missing:
            check.one_of("column (missing)", name, columns)
        columns = {n: c.filled(missing[n]) if n in missing else c for n, c in columns.items()}
    else:
        check.one_of("way to treat missing values", missing, ("error", "drop"))
    if missing == "drop":
        lost = np.any([column.missing for column in columns.values()], axis=0)
        kept = np.flatnonzero(~lost)
        left = {name: column.take(kept) for name, column in columns.items()}
        owners = columns[client].values[~columns[client].missing]
        if gone := sorted({*map(str, owners)} - {*map(str, left[client].values)}):
            raise ValueError(
                f"missing='drop' would leave no row of client {gone[0]!r}. Fill its values in, or "
                "remove the client from the table."
            )
        return left, row_numbers[kept]
    for name, column in columns.items():
        if column.missing.any():
            row = int(np.argmax(column.missing))
            owner = columns[client]
            of = "" if owner.missing[row] else f" (client {str(owner.values[row])!r})"
            raise ValueError(
                f"column {name!r}, row {row_numbers[row]}{of}: the value is missing "
                f"(number of such rows: {column.missing.sum()}). Correct the table, or pass "
                f"missing='drop' to leave such rows out, or missing={{{name!r}: value}} to fill "
                "them."
            )
    return columns, row_numbers


def _groups(column: Column) -> tuple[list[str], Int[np.ndarray, " rows"]]:
    """The distinct values in ascending order, as text, and which of them each row has."""
    if column.values.ndim != 1:
        raise ValueError(f"column {column.name!r} names the clients; it needs one value per row.")
    distinct, owner = np.unique(_as_text(column), return_inverse=True)
    return [str(value) for value in distinct], owner


def _as_text(column: Column) -> np.ndarray:
    """The values; Python objects as text, which must not make two of them the same."""
    if column.values.dtype.kind != "O":
        return column.values
    texts: dict[str, object] = {}
    for value in column.values:
        other = texts.setdefault(str(value), value)
        if other != value:
            raise ValueError(
                f"column {column.name!r} has the values {other!r} and {value!r}, which are one "
                "text. Give the column one type."
            )
    return column.values.astype(str)


def _classes(
    encode: Encode, columns: Mapping[str, Column], contents: Sequence[str]
) -> dict[str, Sequence[object] | None]:
    """Per column to encode, the classes that were given for it."""
    if isinstance(encode, str):
        raise TypeError(f"encode must be a list of columns, got {encode!r}. Write [{encode!r}].")
    given = _texts(encode) if isinstance(encode, Mapping) else dict.fromkeys(map(_text, encode))
    for name in given:
        check.one_of("column (encode)", name, columns)
        if name not in contents:
            raise ValueError(
                f"encode has the column {name!r}, which is in no field; the fields have "
                f"{list(contents)}. Leave it out of encode, or add it by fields=."
            )
    return given


def _encoded(
    column: Column, classes: Sequence[object] | None, where: _Where
) -> tuple[np.ndarray, tuple[object, ...]]:
    """Class numbers from 0 and the values, in the order of ``classes`` or of the sorted values."""
    if column.values.ndim != 1:
        raise ValueError(
            f"column {column.name!r} has a row of values per sample; encode needs one."
        )
    if classes is None:
        distinct, found = np.unique(_as_text(column), return_inverse=True)
        kinds = distinct.astype(str) if distinct.dtype.kind in "mM" else distinct
        return found.astype(np.int32), tuple(kinds.tolist())
    number = {value: i for i, value in enumerate(classes)}
    if len(number) < len(classes):
        raise ValueError(f"encode gives column {column.name!r} a class twice: {list(classes)}.")
    for row, value in enumerate(column.values.tolist()):
        if value not in number:
            raise ValueError(
                f"{where(column.name, row)}: {value!r} is not among the classes {list(classes)} "
                "that encode gives for this column."
            )
    return np.array([number[v] for v in column.values.tolist()], np.int32), tuple(classes)


def _numbers(column: Column, where: _Where) -> np.ndarray:
    if column.is_number:
        return column.values
    name, value = column.name, column.values.ravel()[0]
    if column.values.dtype.kind in "mM":
        raise TypeError(
            f"{where(name, 0)}: {value} is a date or a duration. Turn the column into numbers, "
            "days since a date for example, or leave it out by fields=."
        )
    if column.values.dtype.kind not in "USO":
        raise TypeError(f"{where(name, 0)}: {column.values.dtype} is no type of a real number.")
    row = next((i for i, v in enumerate(column.values) if not _reads_as_number(v)), 0)
    distinct = sorted({str(v) for v in column.values})
    some = f"{distinct[:3]}{' and more' if len(distinct) > 3 else ''}"
    raise TypeError(
        f"{where(name, row)}: {str(column.values[row])!r} is not a number. "
        f"Pass encode=[{name!r}] to make class numbers of the {len(distinct)} sorted values "
        f"{some}, or encode={{{name!r}: [...]}} with the values in your order, or leave the "
        "column out by fields=."
    )


def _check_fits(name: str, values: np.ndarray, kind: np.dtype, where: _Where) -> None:
    """Raise if JAX would wrap a whole number of a field, because it has 32 bits for it."""
    held = jax.dtypes.canonicalize_dtype(kind)
    if held == kind or held.kind not in "iu":
        return
    limits = np.iinfo(held)
    rows = values.reshape(len(values), -1)
    too_large = ((rows < limits.min) | (rows > limits.max)).any(axis=1)
    if too_large.any():
        row = int(np.argmax(too_large))
        raise ValueError(
            f"{where(name, row)}: {values[row]} does not fit {held} ({too_large.sum()} such rows "
            "in all), which JAX uses for whole numbers. Make the column floating-point numbers, "
            f"pass encode=[{name!r}] if its values are classes, leave it out by fields=, or set "
            "jax.config.update('jax_enable_x64', True) first."
        )


def _reads_as_number(value: object) -> bool:
    try:
        float(str(value))
    except ValueError:
        return False
    return True


def _together(field: str, columns: list[np.ndarray], names: Sequence[str]) -> np.ndarray:
    """Several columns as the entries of one field."""
    if wide := [name for name, column in zip(names, columns, strict=True) if column.ndim > 1]:
        raise ValueError(
            f"field {field!r}: column {wide[0]!r} has a row of values per sample and cannot be one "
            "entry among others. Make it a field of its own."
        )
    return np.stack(columns, axis=1)


def _split(
    parts: list[np.ndarray],
    splits: str | Mapping[str, float] | None,
    columns: Mapping[str, Column],
    names: Sequence[str],
    seed: int,
) -> dict[str, list[np.ndarray]]:
    if splits is None:
        return {"train": parts}
    if isinstance(splits, str):
        values = columns[splits].values.astype(str)
        rows, sizes = np.concatenate(parts), lengths(parts)
        owner = np.repeat(np.arange(len(parts)), sizes)
        of_row = values[rows]
        dealt = {}
        for split in dict.fromkeys(values.tolist()):
            mine = of_row == split
            dealt[split] = cut(rows[mine], np.bincount(owner[mine], minlength=len(parts)))
        return dealt
    if not isinstance(splits, Mapping):
        raise TypeError(
            "splits must be the name of a column or map split names to fractions, as "
            f"{{'train': 0.8, 'test': 0.2}}, got {splits!r}."
        )
    if np.any(few := lengths(parts) < len(splits)):
        client = int(np.argmax(few))
        raise ValueError(
            f"client {names[client]!r} has {len(parts[client])} rows for the splits "
            f"{list(splits)}. Give it at least one per split, or leave it out."
        )
    return partition.split(parts, fractions=splits, seed=seed)

"""Loaded Hugging Face data sets as columns. The package ``datasets`` is not imported."""

import itertools
from collections.abc import Mapping, Sequence
from typing import Protocol, runtime_checkable

import numpy as np
from jaxtyping import Int

from rookery import check
from rookery.clients.columns import Column, as_column, read_columns

SPLIT = "split"


@runtime_checkable
class HuggingFaceDataset(Protocol):
    """What is used of ``datasets.Dataset``."""

    @property
    def column_names(self) -> Sequence[str]:
        """Names of the columns."""
        ...

    def with_format(self, type: str, columns: Sequence[str]) -> "HuggingFaceDataset":
        """The data set whose rows come as arrays of one library, with these columns alone."""
        ...

    def __len__(self) -> int: ...  # a streamed data set has no length

    def __getitem__(self, rows: slice) -> Mapping[str, np.ndarray]: ...


def needed_columns(
    client: str, splits: object, fields: Mapping[str, str | int | Sequence[str | int]] | None
) -> list[str] | None:
    """The columns that the arguments of ``Population.from_huggingface`` name; None for all.

    >>> needed_columns("writer", "fold", {"input": "image", "label": ["character"]})
    ['writer', 'fold', 'image', 'character']
    """
    if fields is None:
        return None
    own = [
        [str(field)] if isinstance(field, str | int) else map(str, field)
        for field in fields.values()
    ]
    keys = [client, splits] if isinstance(splits, str) else [client]
    return list(dict.fromkeys(itertools.chain(keys, *own)))


def read_huggingface(
    dataset: object, columns: Sequence[str] | None
) -> tuple[dict[str, Column], Int[np.ndarray, " rows"] | None]:
    """The columns of a data set, or of all splits of a ``DatasetDict``, joined.

    Args:
        dataset: a loaded ``Dataset``, or a mapping from splits to them.
        columns: those to read; all if None. The others, images perhaps, are not decoded.

    Returns:
        The columns. Of a mapping also a column ``split``, and the row numbers within the splits.
    """
    if not isinstance(dataset, Mapping):
        return _read(dataset, columns), None
    if not dataset:
        raise ValueError("the DatasetDict has no splits.")
    tables = {str(split): _read(one, columns) for split, one in dataset.items()}
    first = next(iter(tables))
    for split, table in tables.items():
        if set(table) != set(tables[first]):
            raise ValueError(
                f"split {split!r} has the columns {list(table)}, but {first!r} has "
                f"{list(tables[first])}. All splits need the same columns."
            )
    if SPLIT in tables[first]:
        raise ValueError(
            f"the data set has a column {SPLIT!r} beside its splits {list(tables)}. Rename it with "
            f"dataset.rename_column({SPLIT!r}, ...)."
        )
    joined = {}
    for name in tables[first]:
        own = [table[name] for table in tables.values()]
        forms = {split: (table[name].is_number, table[name].values.shape[1:])
                 for split, table in tables.items()}  # fmt: skip
        for split, form in forms.items():
            if form != forms[first]:
                kinds = [tables[s][name].values for s in (first, split)]
                raise ValueError(
                    f"column {name!r} differs: rows are {kinds[0].dtype}{[*kinds[0].shape[1:]]} in "
                    f"split {first!r}, {kinds[1].dtype}{[*kinds[1].shape[1:]]} in {split!r}. Give "
                    "all splits the same type and shape, or leave the column out by fields=."
                )
        values = np.concatenate([column.values for column in own])
        joined[name] = Column(name, values, np.concatenate([column.missing for column in own]))
    lengths = [len(next(iter(table.values())).values) for table in tables.values()]
    joined[SPLIT] = as_column(SPLIT, np.repeat(list(tables), lengths))
    return joined, np.concatenate([np.arange(length) for length in lengths])


def _read(dataset: object, columns: Sequence[str] | None) -> dict[str, Column]:
    if not isinstance(dataset, HuggingFaceDataset):
        raise TypeError(
            f"from_huggingface takes a loaded datasets.Dataset or DatasetDict, got "
            f"{type(dataset).__name__}. Load a streamed data set whole; other tables go to "
            "Population.from_table."
        )
    known = list(dataset.column_names)
    names = known if columns is None else [check.one_of("column", c, known) for c in columns]
    return read_columns(dict(dataset.with_format("numpy", columns=names)[:]))

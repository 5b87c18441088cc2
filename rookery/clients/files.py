"""Tables in files: NumPy archives and CSV, and a folder with one file per client."""

import csv
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
from jaxtyping import Int

from rookery import check
from rookery.clients.columns import Column, as_column, read_columns

CLIENT = "client"
"""The column that :func:`read_folder` adds: the name of the file without its suffix."""


def read_npz(path: Path) -> dict[str, np.ndarray]:
    """The arrays of a ``.npz`` file, one column each; pickled objects are refused."""
    with np.load(path, allow_pickle=False) as archive:
        return {name: archive[name] for name in archive.files}


def read_csv(path: Path) -> dict[str, np.ndarray]:
    """The columns of a ``.csv`` file whose first line has their names.

    A column of whole numbers, of numbers or of text; an empty cell is missing. Blanks around names
    and cells do not count.
    """
    with path.open(newline="", encoding="utf-8-sig") as stream:
        rows = [row for row in csv.reader(stream) if row]
    if len(rows) < 2:
        raise ValueError(f"{path} needs a line of column names and at least one row.")
    header, body = [name.strip() for name in rows[0]], rows[1:]
    check.distinct("column names", header)
    for number, row in enumerate(body):
        if len(row) != len(header):
            raise ValueError(
                f"{path}, row {number} has {len(row)} cells, but there are {len(header)} columns."
            )
    return {name: _cells([row[i] for row in body]) for i, name in enumerate(header)}


def _cells(cells: list[str]) -> np.ndarray:
    """The cells of a column in the narrowest type that holds all."""
    texts = [cell.strip() for cell in cells]
    for kind in (int, float):
        try:
            present = [kind(text) if text else None for text in texts]
        except ValueError:
            continue
        return np.array(present, object if None in present else None)
    return np.array([text or None for text in texts], object)


READERS: dict[str, Callable[[Path], Mapping[str, np.ndarray]]] = {
    ".npz": read_npz,
    ".csv": read_csv,
}
"""How a file is read, by the suffix of its name."""


def read_folder(
    path: Path, *, pattern: str, read: Callable[[Path], object] | None
) -> tuple[dict[str, Column], Int[np.ndarray, " rows"]]:
    """All tables of a folder as one, with a column ``client``, and the row numbers in the files.

    Args:
        path: the folder. Files whose names begin with a dot are left out.
        pattern: which files, as ``*.csv``.
        read: makes a table of a file; by default by its suffix.
    """
    if not path.is_dir():
        raise NotADirectoryError(f"{path} is not a folder.")
    files = sorted(f for f in path.glob(pattern) if f.is_file() and not f.name.startswith("."))
    if not files:
        raise FileNotFoundError(f"{path} has no files that match {pattern!r}.")
    tables = {file: _read(file, read) for file in files}
    first, *others = files
    for file in others:
        if set(tables[file]) != set(tables[first]):
            raise ValueError(
                f"{file.name} has the columns {list(tables[file])}, but {first.name} has "
                f"{list(tables[first])}. All files need the same columns."
            )
    if CLIENT in tables[first]:
        raise ValueError(
            f"{first.name} has a column {CLIENT!r}, but here the file's name is the client. Rename "
            "the column, or join the files and use Population.from_table."
        )
    lengths = [len(next(iter(table.values())).values) for table in tables.values()]
    owners = np.repeat([file.stem for file in files], lengths)
    joined = {name: _joined(name, tables) for name in tables[first]}
    numbers = np.concatenate([np.arange(length) for length in lengths])
    return {CLIENT: as_column(CLIENT, owners), **joined}, numbers


def _read(file: Path, read: Callable[[Path], object] | None) -> dict[str, Column]:
    if read is None and file.suffix not in READERS:
        raise ValueError(
            f"{file.name} is none of {', '.join(READERS)}. Pass read=, a function from a path to a "
            "table, or pattern='*.csv' to leave other files out."
        )
    try:
        return read_columns((read or READERS[file.suffix])(file))
    except (TypeError, ValueError) as error:
        raise type(error)(f"{file.name}: {error}") from error


def _joined(name: str, tables: Mapping[Path, Mapping[str, Column]]) -> Column:
    """One column of all files."""
    own = {file: table[name] for file, table in tables.items()}
    known = {f: c for f, c in own.items() if not c.missing.all()}  # nothing has any type
    first = next(iter(known), next(iter(own)))
    for file, column in known.items():
        form, wanted = ((c.is_number, c.values.shape[1:]) for c in (column, own[first]))
        if form != wanted:
            raise ValueError(
                f"column {name!r} differs: {own[first].values.dtype}{list(wanted[1])} in "
                f"{first.name}, {column.values.dtype}{list(form[1])} in {file.name}."
            )
    values = [
        column.values
        if file in known
        else np.full((len(column.values), *own[first].values.shape[1:]), np.nan)
        for file, column in own.items()
    ]
    if not own[first].is_number:
        values = [value.astype(object) for value in values]
    missing = np.concatenate([column.missing for column in own.values()])
    return Column(name, np.concatenate(values), missing)

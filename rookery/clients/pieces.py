"""Arrays cut into one piece per client, and back, without a Python statement per client."""

from collections.abc import Sequence, Sized

import numpy as np
from jaxtyping import Int

Indices = Int[np.ndarray, " _rows"]
"""Row numbers."""

Parts = list[Indices]
"""The rows of each client."""

Sizes = Sequence[int] | Int[np.ndarray, " _pieces"]


def cut(rows: Indices, sizes: Sizes) -> Parts:
    """Consecutive pieces of the given sizes, from the front; views, not copies.

    >>> [piece.tolist() for piece in cut(np.arange(5), [2, 1])]
    [[0, 1], [2]]
    """
    ends = np.cumsum(sizes).tolist()
    return [rows[begin:end] for begin, end in zip([0, *ends[:-1]], ends, strict=True)]


def lengths(pieces: Sequence[Sized]) -> Int[np.ndarray, " pieces"]:
    """The length of every piece.

    >>> lengths([np.arange(5), [1]]).tolist()
    [5, 1]
    """
    return np.fromiter(map(len, pieces), np.int64, len(pieces))


def ranges(begins: np.ndarray, sizes: np.ndarray) -> Indices:
    """The numbers begin, begin + 1, ... of every piece, one piece after another.

    >>> ranges(np.array([10, 0]), np.array([2, 3])).tolist()
    [10, 11, 0, 1, 2]
    """
    before = np.cumsum(sizes) - sizes
    return np.repeat(begins - before, sizes) + np.arange(int(sizes.sum()))


def interleaved(
    columns: Sequence[Indices], sizes: Int[np.ndarray, "clients columns"]
) -> tuple[Indices, Int[np.ndarray, "clients columns"]]:
    """Pieces that lie column by column, sorted client by client; and where each begins then.

    Args:
        columns: arrays that hold one piece after another, a piece per client. What follows the
            last piece is left out.
        sizes: of the piece of each client in each column.

    >>> sizes = np.array([[1, 1], [2, 1]])
    >>> rows, begins = interleaved([np.array([1, 2, 3]), np.array([8, 9])], sizes)
    >>> rows.tolist(), begins.tolist()
    ([1, 8, 2, 3, 9], [[0, 1], [2, 4]])
    """
    begins = (np.cumsum(sizes.ravel()) - sizes.ravel()).reshape(sizes.shape)
    if len(columns) == 1:
        return columns[0][: int(sizes.sum())], begins
    rows = np.empty(int(sizes.sum()), np.result_type(*columns))
    for c, column in enumerate(columns):
        own = sizes[:, c]
        rows[ranges(begins[:, c], own)] = column[: int(own.sum())]
    return rows, begins

"""Checks of what a population is made of; errors name the client, the split and the field."""

from collections import Counter
from collections.abc import Sequence

import jax
import numpy as np
from jaxtyping import Array, Float

from rookery.types import Tree

AnyArray = np.ndarray | Array
# a name with an underscore is not compared with others of its name
Weights = Sequence[float] | Float[AnyArray, " _clients"]
Classes = tuple[tuple[str, tuple[object, ...]], ...]
"""Fields that were values of any kind, each with its values in the order of their numbers."""


def one_row(one: jax.ShapeDtypeStruct | np.typing.ArrayLike) -> np.ndarray:
    """A row of zeros that belongs to no client; steps are traced with its shape."""
    one = one if isinstance(one, jax.ShapeDtypeStruct) else np.asarray(one)
    return np.zeros((1, *one.shape), one.dtype)


def form(rows: AnyArray) -> str:
    """Type and shape of a row."""
    return f"{rows.dtype}{list(rows.shape[1:])}"


def as_names(names: Sequence[str] | None) -> tuple[str, ...] | None:
    """Names as a tuple; a single string is refused."""
    if isinstance(names, str):
        raise TypeError(f"names must be a list with one name per client, got {names!r}.")
    return None if names is None else tuple(names)


def check_names(names: tuple[str, ...], n_clients: int) -> None:
    """Raise unless there is one name per client and no name twice."""
    if len(names) != n_clients:
        raise ValueError(f"names needs one name per client: {n_clients}, got {len(names)}.")
    for name in names:
        if not isinstance(name, str):
            raise TypeError(f"names must be strings, got {name!r}.")
    if twice := sorted(name for name, times in Counter(names).items() if times > 1):
        raise ValueError(f"names must differ from client to client, got {twice} more than once.")


def common_length(data: Tree) -> int:
    """The number of rows of all fields, or an error."""
    for path, field in jax.tree_util.tree_leaves_with_path(data):
        if (kind := np.asarray(field).dtype).kind in "OSUMm":
            raise TypeError(
                f"the data must be arrays of numbers, got {kind} in field "
                f"{jax.tree_util.keystr(path) or 'data'}. Encode it, as class numbers for example."
            )
        if not np.ndim(field):
            raise TypeError(
                f"the data must be arrays with one row per sample, got the number {field!r} in "
                f"field {jax.tree_util.keystr(path) or 'data'}. A list counts as a field for each "
                "entry; make it an array with np.array(data)."
            )
    lengths = {np.shape(a)[0] for a in jax.tree.leaves(data)}
    if len(lengths) != 1:
        raise ValueError(f"all fields need the same number of rows, got {lengths or 'no fields'}.")
    return lengths.pop()


def no_rows(client: str, split: str) -> str:
    """The message for a client without rows in a split."""
    return f"{client} has no rows in split {split!r}. Give it some, or leave it out."


def check_like(client: str, like: AnyArray, own: np.typing.ArrayLike) -> None:
    """Raise unless a client's rows have the type and shape of the others'."""
    wanted, got = form(like), form(np.asarray(own))
    if wanted != got:
        raise ValueError(f"{client} has rows of {got}, wanted {wanted}.")


def joined_row_numbers(
    lists: Sequence[np.typing.ArrayLike], split: str, names: Sequence[str] | None, n_rows: int
) -> np.ndarray:
    """The row numbers of all clients, one client after another.

    Raises unless every client lists existing rows, at least one; the error names the first client
    that does not.
    """
    arrays = [np.asarray(own) for own in lists]
    if {(own.dtype.kind, own.ndim) for own in arrays} <= {("i", 1)} and all(map(len, arrays)):
        rows = np.concatenate(arrays)
        if rows.min() >= 0 and rows.max() < n_rows:
            return rows
    for client, own in enumerate(arrays):
        name = f"client {client}" if names is None else names[client]
        _check_row_numbers(own, name, split, n_rows)
    return np.concatenate([own.astype(np.int64) for own in arrays])


def row_positions(positions: np.ndarray) -> np.ndarray:
    """Offsets or counts of rows with 32 bits, which is what JAX indexes with."""
    if positions.max() > (most := np.iinfo(np.int32).max):
        raise ValueError(
            f"a population holds at most {most} rows, got more than {positions.max()}. Use fewer "
            "clients, or fewer rows of each."
        )
    return positions.astype(np.int32)


def _check_row_numbers(rows: np.ndarray, client: str, split: str, n_rows: int) -> None:
    """Raise unless these are numbers of existing rows, at least one."""
    if rows.size == 0:
        raise ValueError(no_rows(client, split))
    if rows.ndim != 1 or not np.issubdtype(rows.dtype, np.integer):
        raise TypeError(
            f"{client}, split {split!r}: row numbers must be a flat array of integers, "
            f"got {rows.dtype}{list(rows.shape)}."
        )
    if rows.min() < 0 or rows.max() >= n_rows:
        raise ValueError(
            f"{client}, split {split!r}: row numbers run from {rows.min()} to {rows.max()}, "
            f"but the data has rows 0 to {n_rows - 1}."
        )


def normalised(weights: Weights | None, n_clients: int) -> np.ndarray:
    """Weights that sum to one; equal ones for None."""
    if weights is None:
        return np.full(n_clients, 1 / n_clients)
    weights = np.asarray(weights, float)
    if weights.shape != (n_clients,):
        raise ValueError(f"weights must have shape ({n_clients},), got {weights.shape}.")
    if not np.all(np.isfinite(weights)) or weights.min() <= 0:
        raise ValueError(
            f"weights must be finite and above zero, got {weights}. Leave out a client that must "
            "not count."
        )
    return weights / weights.sum()


def not_finite(
    data: Tree, offsets: np.ndarray, counts: np.ndarray
) -> tuple[int, int, str, int, int] | None:
    """The first row of a client with a NaN or an infinity, or None.

    Returns:
        The split, the client, the field, the row among the client's, and how many rows of the field
        have such a value.
    """
    for path, leaf in jax.tree_util.tree_leaves_with_path(data):
        if not jax.numpy.issubdtype(leaf.dtype, np.inexact):
            continue
        finite = np.isfinite(np.asarray(leaf)).reshape(leaf.shape[0], -1).all(axis=1)
        for row in np.flatnonzero(~finite):
            mine = np.argwhere((offsets <= row) & (row < offsets + counts))
            if not mine.size:
                continue  # it belongs to no client, so no step reads it
            split, client = (int(i) for i in mine[0])
            field = f"field {jax.tree_util.keystr(path)}, " if path else ""
            return split, client, field, int(row - offsets[split, client]), int((~finite).sum())
    return None


def joined_classes(parts: Sequence[Classes]) -> Classes:
    """The classes that the parts know; the same number must not mean two things."""
    known = [part for part in parts if part]
    for part in known[1:]:
        if dict(part) != dict(known[0]):
            raise ValueError(
                f"the populations have different classes: {dict(known[0])} and {dict(part)}. "
                "Build them with the same encode={column: [...]}."
            )
    return known[0] if known else ()


def joined_names(parts: Sequence[tuple[tuple[str, ...] | None, int]]) -> tuple[str, ...] | None:
    """The names of all parts, from the names and the number of clients of each.

    Clients of a part without names are called by their new number.
    """
    if all(own is None for own, _ in parts):
        return None
    names: list[str] = []
    for own, n_clients in parts:
        names += own or [f"client {len(names) + i}" for i in range(n_clients)]
    return tuple(names)

"""Sequences of unequal length as one array with a mask."""

from collections.abc import Sequence

import numpy as np

from rookery import check


def pad_sequences(
    sequences: Sequence[np.typing.ArrayLike], *, length: int | None = None, value: float = 0
) -> dict[str, np.ndarray]:
    """Sequences padded to a common length, and a mask that is true where they have values.

    Both are fields of the data of a population. Losses use
    :func:`rookery.problem.masks.masked_mean`, so that padding changes nothing.

    >>> padded = pad_sequences([[1.0, 2.0, 3.0], [4.0]])
    >>> padded["values"].tolist(), padded["mask"].tolist()
    ([[1.0, 2.0, 3.0], [4.0, 0.0, 0.0]], [[True, True, True], [True, False, False]])

    Args:
        sequences: one per row, with places along the first axis; other axes must agree.
        length: to pad to; that of the longest sequence if not given.
        value: what padding holds: a finite number at which the model is finite and differentiable.
    """
    if not np.isfinite(value):
        raise ValueError(
            f"value must be finite, got {value}: gradients would be NaN in spite of the mask. "
            "Keep 0, or choose a number at which the model is differentiable."
        )
    arrays = [np.asarray(sequence) for sequence in sequences]
    if not arrays:
        raise ValueError("sequences is empty; pass at least one.")
    forms = {(array.dtype.str, array.shape[1:]) for array in arrays}
    if any(array.ndim == 0 for array in arrays) or len(forms) > 1:
        got = sorted({f"{a.dtype}{list(a.shape)}" for a in arrays})
        raise ValueError(
            "sequences must be arrays that differ in their first axis alone, got "
            f"{', '.join(got[:5])}. Convert them to one type, by np.asarray(a, float) for example."
        )
    if arrays[0].dtype.kind in "OSUMm":
        raise TypeError(
            f"sequences must hold numbers, got {arrays[0].dtype}. Encode them, as token numbers "
            "for example."
        )
    longest = max(len(array) for array in arrays)
    length = longest if length is None else check.count("length", length)
    if longest > length:
        where = next(i for i, array in enumerate(arrays) if len(array) > length)
        raise ValueError(
            f"sequence {where} has {len(arrays[where])} places, more than length={length}. Cut it "
            "first, or choose a larger length."
        )
    values = np.full((len(arrays), length, *arrays[0].shape[1:]), value, arrays[0].dtype)
    mask = np.zeros((len(arrays), length), bool)
    for i, array in enumerate(arrays):
        values[i, : len(array)], mask[i, : len(array)] = array, True
    return {"values": values, "mask": mask}

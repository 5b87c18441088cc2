"""Ways to divide one data set among clients: arrays of row numbers, one per client.

``labels`` is the class of every row; the classes are its distinct values in ascending order. Equal
arguments and ``seed`` give equal parts. No client gets a row twice and, unless a docstring says
otherwise, no row goes to two clients. :meth:`Population.from_parts` takes the result.
"""

import bisect
import math
from collections.abc import Mapping, Sequence

import numpy as np
from jaxtyping import Int
from numpy.typing import ArrayLike

from rookery import check
from rookery.clients.pieces import Indices, Parts, Sizes, cut, interleaved, lengths, ranges

OWNED = ("femnist", "shakespeare", "heart_disease", "penguins", "villages")
"""Data sets whose rows have natural owners."""


def iid(n_samples: int, n_clients: int, *, per_client: int | None = None, seed: int = 0) -> Parts:
    """Random rows in equal numbers (McMahan et al. 2017, the iid case of FedAvg).

    With ``per_client``, every client gets that many rows and the rest is dropped. Without it every
    row is used, and sizes differ by at most one.

    >>> [rows.size for rows in iid(10, 3)], [rows.size for rows in iid(10, 3, per_client=2)]
    ([4, 3, 3], [2, 2, 2])
    """
    return given_sizes(n_samples, _sizes(n_samples, n_clients, per_client), seed=seed)


def natural(
    owners: ArrayLike | None, n_clients: int | None = None, *, least: int = 1, seed: int = 0
) -> Parts:
    """One client per owner of rows in the world: a writer, a hospital (LEAF, arXiv:1812.01097).

    Args:
        owners: of every row the number of its owner, as ``Dataset.owners`` has it.
        n_clients: draw this many of the owners at random; all of them if not given.
        least: leave out owners with fewer rows.
        seed: of the choice.

    >>> [rows.tolist() for rows in natural([1, 0, 1, 1])]
    [[1], [0, 2, 3]]
    >>> [rows.tolist() for rows in natural([1, 0, 1, 1], least=2)]
    [[0, 2, 3]]
    """
    if owners is None:
        raise ValueError(
            "the rows of this data set have no natural owners. Use another partition, or a data "
            f"set that has them: {', '.join(OWNED)}."
        )
    parts = [rows for rows in _rows_by_class(owners) if rows.size >= check.count("least", least)]
    n = len(parts) if n_clients is None else check.count("n_clients", n_clients)
    if not 0 < n <= len(parts):
        raise ValueError(
            f"{len(parts)} owners have at least {least} rows, got n_clients={n_clients}. Use fewer "
            "clients, or a smaller least."
        )
    chosen = np.sort(_generator(seed).permutation(len(parts))[:n])
    return [parts[i] for i in chosen]


def given_sizes(n_samples: int, sizes: Sizes, *, seed: int = 0) -> Parts:
    """Random rows, ``sizes[i]`` of them for client i; the rest is dropped.

    ComFedL (arXiv:2106.11264) has one client with 5000 images and nine with 20.

    >>> [rows.size for rows in given_sizes(60, (50, 2, 2))]
    [50, 2, 2]
    """
    n_samples = check.count("n_samples", n_samples)
    whole = np.asarray(sizes)
    if whole.ndim != 1 or whole.dtype.kind not in "iu" or np.any(whole < 1):
        for i, size in enumerate(sizes):
            check.count(f"sizes[{i}]", size)
    if not 0 < whole.sum() <= n_samples:
        raise ValueError(f"sizes sum to {int(whole.sum())}; the sum must be 1 to {n_samples} rows.")
    return cut(_generator(seed).permutation(n_samples), whole)


def shards(
    labels: ArrayLike, n_clients: int, *, shards_per_client: int = 2, seed: int = 0
) -> Parts:
    """Rows sorted by label, cut into equal shards; each client gets some shards at random.

    The non-iid case of FedAvg (McMahan et al. 2017): 100 clients with 2 of 200 shards. Every row
    is used; shards differ by at most one row.

    >>> labels = np.array([0, 1, 0, 1])
    >>> sorted(labels[rows].tolist() for rows in shards(labels, 2, shards_per_client=1))
    [[0, 0], [1, 1]]
    """
    by_class = np.concatenate(_rows_by_class(labels))
    _sizes(by_class.size, n_clients, check.count("shards_per_client", shards_per_client))
    pieces = np.array(_even(by_class.size, n_clients * shards_per_client))
    order = _generator(seed).permutation(pieces.size)
    begins, sizes = (np.cumsum(pieces) - pieces)[order], pieces[order]
    rows = by_class[ranges(begins, sizes)]
    return cut(rows, sizes.reshape(n_clients, shards_per_client).sum(1))


def k_classes(
    labels: ArrayLike, n_clients: int, *, classes_per_client: int, per_client: int, seed: int = 0
) -> Parts:
    """Each client draws some classes at random, and equally many rows of each of them.

    As in FedMBO (arXiv:2302.05412). Clients draw independently: two of them **may hold the same
    row**, so set test rows aside beforehand. Rows that no client draws are dropped.

    >>> labels = np.repeat([0, 1, 2], 10)
    >>> parts = k_classes(labels, 4, classes_per_client=2, per_client=6)
    >>> [np.unique(labels[rows]).size for rows in parts]
    [2, 2, 2, 2]
    """
    classes = _rows_by_class(labels)
    k = check.count("classes_per_client", classes_per_client)
    per_client = check.count("per_client", per_client, least=k)
    if k > len(classes):
        raise ValueError(
            f"classes_per_client={k}, but there are {len(classes)} classes. Use fewer."
        )
    smallest = min(rows.size for rows in classes)
    # any client may draw the smallest class; whether the call works must not depend on the seed
    if smallest * k < per_client:
        raise ValueError(
            f"per_client={per_client} takes {-(-per_client // k)} rows of one class, but the "
            f"smallest class has {smallest}. Use per_client={smallest * k} or less."
        )
    rng, parts = _generator(seed), []
    for _ in range(check.count("n_clients", n_clients)):
        quotas = np.zeros((1, len(classes)), int)
        quotas[0, rng.choice(len(classes), k, replace=False)] = _even(per_client, k)
        parts += _deal(classes, quotas, rng)
    return parts


def heterogeneity(
    labels: ArrayLike, n_clients: int, *, q: float, per_client: int | None = None, seed: int = 0
) -> Parts:
    """A fraction ``q`` of each client's rows is of its own class, the rest of any class.

    As in FedMSA (arXiv:2306.01648). Client i's own class is number i modulo the number of classes.
    A class too small for that is divided evenly among the clients that own it. The remaining rows
    of all clients are drawn uniformly from what is left, whatever its class, so ``q=0`` is iid.
    Sizes are as in :func:`iid`.

    >>> labels = np.repeat([0, 1], 10)
    >>> [np.unique(labels[rows]).tolist() for rows in heterogeneity(labels, 4, q=1)]
    [[0], [1], [0], [1]]
    """
    classes = _rows_by_class(labels)
    _check_fraction("q", q)
    available = np.array([rows.size for rows in classes])
    sizes = np.array(_sizes(int(available.sum()), n_clients, per_client))
    mine = np.arange(n_clients) % available.size
    at_most = available[mine] // np.bincount(mine)[mine]
    own = np.zeros((n_clients, available.size), int)
    own[np.arange(n_clients), mine] = np.minimum(np.rint(q * sizes), at_most)
    rng = _generator(seed)
    parts = _deal(classes, own, rng)
    dealt = np.concatenate(parts)
    left = np.setdiff1d(np.concatenate(classes), dealt)
    both = np.stack([own.sum(1), sizes - own.sum(1)], axis=1)
    return cut(interleaved([dealt, rng.permutation(left)], both)[0], sizes)


def dominant_class(
    labels: ArrayLike, n_clients: int, *, share: float, per_client: int | None = None, seed: int = 0
) -> Parts:
    """A fraction ``share`` of each client's rows is of one class, the rest even over the others.

    As in ComFedL (arXiv:2106.11264), where ``share`` is rho: each other class has a fraction
    (1 - share) / (classes - 1). Client i's own class is number i modulo the number of classes.
    Without ``per_client`` clients are as large as the classes permit. Unused rows are dropped.

    >>> labels = np.repeat([0, 1, 2], 10)
    >>> [np.bincount(labels[r]).tolist() for r in dominant_class(labels, 3, share=0.6)]
    [[6, 2, 2], [2, 6, 2], [2, 2, 6]]
    """
    classes = _rows_by_class(labels)
    n_clients = check.count("n_clients", n_clients)
    _check_fraction("share", share)
    available = np.array([rows.size for rows in classes])
    if available.size < 2:
        raise ValueError("all labels are equal; a dominant class needs at least 2 classes.")

    def table(size: int) -> np.ndarray:
        own = round(share * size)
        # counted from the client's own class on, so that odd rows are spread over all classes
        first = [own, *_even(size - own, available.size - 1)]
        return np.array(first)[(np.arange(len(first)) - np.arange(n_clients)[:, None]) % len(first)]

    def lacking(size: int) -> int:
        return int((table(size).sum(0) - available).max())

    # the lack grows with the size, so bisection finds the largest size without one
    largest = bisect.bisect_right(range(1, available.sum() // n_clients + 1), 0, key=lacking)
    size = check.count("per_client", max(largest, 1) if per_client is None else per_client)
    if lacking(size) > 0:
        raise ValueError(
            f"{n_clients} clients of {size} rows with share={share} need {lacking(size)} rows more "
            f"than a class has. Use fewer clients{f' or per_client={largest}' if largest else ''}."
        )
    return _deal(classes, table(size), _generator(seed))


def dirichlet(
    labels: ArrayLike,
    n_clients: int,
    *,
    alpha: float,
    min_per_client: int = 1,
    max_tries: int = 100,
    seed: int = 0,
) -> Parts:
    """Divide each class among the clients in Dirichlet(alpha) proportions.

    As in Yurochkin et al. 2019 (arXiv:1905.12022). With a small ``alpha`` a class goes to few
    clients, with a large one all clients look alike. Every row is used. Proportions are drawn until
    every client has ``min_per_client`` rows, at most ``max_tries`` times.

    >>> parts = dirichlet(np.repeat([0, 1], 10), 3, alpha=1.0)
    >>> len(parts), sum(rows.size for rows in parts)
    (3, 20)
    """
    classes = _rows_by_class(labels)
    sizes = np.array([[rows.size] for rows in classes])
    check.positive("alpha", alpha)
    _sizes(int(sizes.sum()), n_clients, check.count("min_per_client", min_per_client))

    def draw(alpha: float) -> tuple[Parts, int]:
        rng, reached = _generator(seed), 0
        for _ in range(check.count("max_tries", max_tries)):
            ends = rng.dirichlet(np.full(n_clients, alpha), len(classes)).cumsum(1)
            ends[:, -1] = 1  # rounding must not lose the last row
            table = np.diff((ends * sizes).astype(int), prepend=0).T
            reached = max(reached, int(table.sum(1).min()))
            if reached >= min_per_client:
                return _deal(classes, table, rng), reached
        return [], reached

    parts, reached = draw(alpha)
    if not parts:
        works = [f"min_per_client={reached}"] if reached else []
        works += [f"alpha={alpha * 2**k}" for k in range(1, 11) if draw(alpha * 2**k)[0]][:1]
        raise ValueError(
            f"none of {max_tries} draws with alpha={alpha} gave each of {n_clients} clients "
            f"min_per_client={min_per_client} rows. Use {' or '.join([*works, 'fewer clients'])}."
        )
    return parts


def long_tail(labels: ArrayLike, *, ratio: float = 0.01, largest: int | None = None) -> Indices:
    """Row numbers to keep so that class sizes fall geometrically, as in FedNest and FedMSA.

    Class number c of C keeps its first ``ceil(largest * ratio**(c / (C - 1)))`` rows, or all it
    has. ``largest`` is the mean class size if not given (6000 in MNIST). No randomness.

    >>> long_tail(np.array([0, 0, 0, 0, 1, 1, 1, 1]), ratio=0.25).tolist()
    [0, 1, 2, 3, 4]
    """
    classes = _rows_by_class(labels)
    _check_fraction("ratio", check.positive("ratio", ratio))
    first = np.size(labels) / len(classes) if largest is None else check.count("largest", largest)
    # powers of a step, as in the papers' code; by their rounding the last MNIST class has 61 rows
    step = ratio ** (1 / max(len(classes) - 1, 1))
    kept = [rows[: math.ceil(first * step**c)] for c, rows in enumerate(classes)]
    return np.sort(np.concatenate(kept))


def split(
    parts: Sequence[Indices], *, fractions: Mapping[str, float], seed: int = 0
) -> dict[str, Parts]:
    """Cut each client's rows at random into named splits, ready for ``Population.from_parts``.

    Every row is used, and every client has at least one row in every split. If a client lists a
    row twice, the copies may fall into different splits.

    >>> cut = split([np.arange(10), np.arange(10, 13)], fractions={"train": 0.8, "test": 0.2})
    >>> {name: [rows.size for rows in lists] for name, lists in cut.items()}
    {'train': [8, 2], 'test': [2, 1]}
    """
    for name, fraction in fractions.items():
        check.positive(f"fractions[{name!r}]", fraction)
    if not math.isclose(sum(fractions.values()), 1, abs_tol=1e-6):
        raise ValueError(f"fractions must sum to 1, got {dict(fractions)}.")
    sizes = lengths(parts)
    if np.any(few := sizes < len(fractions)):
        client = int(np.argmax(few))
        raise ValueError(
            f"client {client} has {sizes[client]} rows for the splits {list(fractions)}. Give it "
            "at least one per split, or leave it out."
        )
    position = np.arange(len(fractions))
    ends = np.rint(np.cumsum(list(fractions.values())) * sizes[:, None]).astype(int)
    # ends differ by at least one, so that no split is empty
    ends = np.maximum.accumulate(ends - position, axis=1)
    ends = np.clip(ends, 1, sizes[:, None] - len(fractions) + 1) + position
    ends[:, -1] = sizes
    shuffled = _shuffled(parts, sizes, _generator(seed))
    begins = (np.cumsum(sizes) - sizes)[:, None]
    cuts = np.concatenate([begins, begins + ends], axis=1).T.tolist()
    return {
        name: [shuffled[begin:end] for begin, end in zip(cuts[s], cuts[s + 1], strict=True)]
        for s, name in enumerate(fractions)
    }


def _shuffled(parts: Sequence[Indices], sizes: np.ndarray, rng: np.random.Generator) -> Indices:
    """All rows, those of each client in random order; the draws of one permutation per client."""
    rows = np.concatenate(parts)
    if np.all(sizes == sizes[0]):
        return rng.permuted(rows.reshape(len(parts), -1), axis=1).ravel()
    for piece in cut(rows, sizes):
        rng.shuffle(piece)
    return rows


def _sizes(n_samples: int, n_clients: int, per_client: int | None) -> list[int]:
    least = 1 if per_client is None else check.count("per_client", per_client)
    if check.count("n_clients", n_clients) * least > check.count("n_samples", n_samples):
        raise ValueError(
            f"{n_samples} rows are too few for {n_clients} clients with {least} or more each. "
            "Use fewer clients or rows per client."
        )
    return _even(n_samples, n_clients) if per_client is None else [least] * n_clients


def _even(total: int, n: int) -> list[int]:
    """Whole numbers that sum to the total and differ by at most one, the larger ones first."""
    return [total // n + (i < total % n) for i in range(n)]


def _deal(
    classes: Parts, table: Int[np.ndarray, "clients classes"], rng: np.random.Generator
) -> Parts:
    """Random rows of each class, ``table[client, class]`` of them, none twice."""
    rows, _ = interleaved([rng.permutation(rows) for rows in classes], table)
    return cut(rows, table.sum(1))


def _rows_by_class(labels: ArrayLike) -> Parts:
    labels = np.asarray(labels)
    if labels.ndim != 1 or not labels.size or not np.issubdtype(labels.dtype, np.integer):
        raise TypeError(
            "labels must be a non-empty flat array of whole numbers (classes 0, 1, 2, ...), "
            f"got {labels.dtype}{list(labels.shape)}."
        )
    return [np.flatnonzero(labels == c) for c in np.unique(labels)]


def _check_fraction(name: str, value: float) -> None:
    if check.not_negative(name, value) > 1:
        raise ValueError(f"{name} must be a number between 0 and 1, got {value}.")


def _generator(seed: int) -> np.random.Generator:
    return np.random.default_rng(check.count("seed", seed, least=0))

"""Partitions: what every one of them promises, and what they do with bad input."""

import re

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rookery.clients import partition, pieces
from rookery.clients.population import Population

BALANCED = np.tile(np.arange(10), 60)  # 600 rows, 60 of each class
SKEWED = np.repeat(np.arange(5), [100, 50, 20, 10, 3])
MNIST_CLASSES = [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949]

LONG_TAIL = [5923, 3597, 2157, 1293, 775, 465, 279, 167, 101, 61]

label_lists = st.lists(st.integers(0, 4), min_size=1, max_size=80).map(np.array)
seeds = st.integers(0, 2**32 - 1)
quick = settings(max_examples=60, deadline=None)


def disjoint(parts, n_samples):
    rows = np.concatenate(parts)
    assert rows.size == np.unique(rows).size
    assert rows.size == 0 or (rows.min() >= 0 and rows.max() < n_samples)
    return rows.size


def sizes(parts):
    return [rows.size for rows in parts]


def counts(labels, rows):
    return np.bincount(labels[rows], minlength=labels.max() + 1)


# iid and given sizes


@quick
@given(st.data(), seeds)
def test_iid_uses_every_row_once_in_equal_numbers(data, seed):
    n = data.draw(st.integers(1, 200))
    n_clients = data.draw(st.integers(1, n))
    parts = partition.iid(n, n_clients, seed=seed)
    assert disjoint(parts, n) == n
    assert sizes(parts) == [a.size for a in np.array_split(np.arange(n), n_clients)]


def test_iid_with_a_quota_drops_the_rest():
    parts = partition.iid(100, 7, per_client=11)
    assert sizes(parts) == [11] * 7
    assert disjoint(parts, 100) == 77


@quick
@given(st.lists(st.integers(1, 30), min_size=1, max_size=10), st.integers(0, 20), seeds)
def test_given_sizes_are_exact(wanted, spare, seed):
    n = sum(wanted) + spare
    parts = partition.given_sizes(n, wanted, seed=seed)
    assert sizes(parts) == wanted
    assert disjoint(parts, n) == sum(wanted)


def test_the_sizes_of_comfedl():
    parts = partition.given_sizes(60000, (5000, *[20] * 9))
    assert sizes(parts) == [5000] + [20] * 9


# shards


@quick
@given(st.data(), label_lists, seeds)
def test_shards_use_every_row_and_few_classes(data, labels, seed):
    per_client = data.draw(st.integers(1, min(3, labels.size)))
    n_clients = data.draw(st.integers(1, labels.size // per_client))
    parts = partition.shards(labels, n_clients, shards_per_client=per_client, seed=seed)
    assert disjoint(parts, labels.size) == labels.size
    assert max(sizes(parts)) - min(sizes(parts)) <= per_client


def test_two_shards_of_fedavg_hold_at_most_two_classes_here():
    parts = partition.shards(BALANCED, 30)  # a shard is 10 rows of one class
    assert sizes(parts) == [20] * 30
    assert all(np.unique(BALANCED[rows]).size <= 2 for rows in parts)
    shards = np.concatenate([BALANCED[rows].reshape(2, 10) for rows in parts])
    assert np.all(shards == shards[:, :1])


# k classes


@quick
@given(st.integers(1, 10), st.integers(1, 20), st.integers(0, 50), seeds)
def test_k_classes_are_exact_and_even(k, n_clients, spare, seed):
    per_client = k + spare
    parts = partition.k_classes(
        BALANCED, n_clients, classes_per_client=k, per_client=per_client, seed=seed
    )
    assert sizes(parts) == [per_client] * n_clients
    for rows in parts:
        disjoint([rows], BALANCED.size)
        held = counts(BALANCED, rows)
        assert (held > 0).sum() == k
        assert np.ptp(held[held > 0]) <= 1


def test_k_classes_takes_whole_classes_but_no_more():
    parts = partition.k_classes(SKEWED, 6, classes_per_client=5, per_client=15)
    assert all(counts(SKEWED, rows).tolist() == [3] * 5 for rows in parts)


# heterogeneity


@quick
@given(st.data(), label_lists, st.floats(0, 1), seeds)
def test_heterogeneity_uses_every_row_once_in_equal_numbers(data, labels, q, seed):
    n_clients = data.draw(st.integers(1, labels.size))
    parts = partition.heterogeneity(labels, n_clients, q=q, seed=seed)
    assert disjoint(parts, labels.size) == labels.size
    assert max(sizes(parts)) - min(sizes(parts)) <= 1


@pytest.mark.parametrize("q", [0.1, 0.3, 0.5, 1.0])
def test_heterogeneity_gives_at_least_the_own_share(q):
    parts = partition.heterogeneity(BALANCED, 20, q=q)
    for i, rows in enumerate(parts):
        assert counts(BALANCED, rows)[i % 10] >= round(q * 30)
    if q == 1:
        assert all(np.unique(BALANCED[rows]).tolist() == [i % 10] for i, rows in enumerate(parts))


def test_a_class_too_small_is_divided_among_its_owners():
    parts = partition.heterogeneity(SKEWED, 10, q=1, per_client=18)
    own = np.array([counts(SKEWED, rows)[i % 5] for i, rows in enumerate(parts)])
    assert sizes(parts) == [18] * 10
    # two owners each: classes of 20, 10 and 3 rows cannot give both of them 18
    assert np.all(own >= [18, 18, 10, 5, 1] * 2)
    assert disjoint(parts, SKEWED.size) == 180


def test_no_heterogeneity_is_nearly_uniform():
    labels = np.tile(np.arange(10), 2000)
    shares = [counts(labels, rows) / 1000 for rows in partition.heterogeneity(labels, 20, q=0)]
    # five standard deviations of a share of 0.1 in 1000 rows
    assert np.abs(np.array(shares) - 0.1).max() < 0.048


# dominant class


@pytest.mark.parametrize("share", [0.0, 0.1, 0.28, 0.37, 1.0])
def test_the_dominant_class_has_its_share(share):
    parts = partition.dominant_class(BALANCED, 10, share=share)
    assert sizes(parts) == [60] * 10  # balanced: nothing is left over
    assert disjoint(parts, 600) == 600
    for i, rows in enumerate(parts):
        held = counts(BALANCED, rows)
        assert held[i] == round(share * 60)
        assert np.ptp(np.delete(held, i)) <= 1


@quick
@given(label_lists, st.integers(1, 12), st.floats(0, 1), seeds)
def test_dominant_class_finds_a_size_or_says_that_there_is_none(labels, n_clients, share, seed):
    try:
        parts = partition.dominant_class(labels, n_clients, share=share, seed=seed)
    except ValueError as error:
        assert re.search("fewer clients|at least 2 classes", str(error))
        return
    disjoint(parts, labels.size)
    assert len(set(sizes(parts))) == 1
    classes = np.unique(labels)
    for i, rows in enumerate(parts):
        own = classes[i % classes.size]
        assert np.sum(labels[rows] == own) == round(share * rows.size)


def test_dominant_class_names_the_size_that_works():
    with pytest.raises(ValueError, match="Use fewer clients or per_client=") as error:
        partition.dominant_class(SKEWED, 5, share=0.5, per_client=40)
    largest = int(re.findall(r"per_client=(\d+)", str(error.value))[0])
    assert (
        sizes(partition.dominant_class(SKEWED, 5, share=0.5, per_client=largest)) == [largest] * 5
    )
    assert sizes(partition.dominant_class(SKEWED, 5, share=0.5)) == [largest] * 5
    with pytest.raises(ValueError, match="rows more than a class has"):
        partition.dominant_class(SKEWED, 5, share=0.5, per_client=largest + 1)


# Dirichlet


@quick
@given(st.floats(0.05, 100), st.integers(1, 8), st.integers(1, 4), seeds)
def test_dirichlet_uses_every_row_once_and_keeps_the_minimum(alpha, n_clients, least, seed):
    try:
        parts = partition.dirichlet(
            BALANCED, n_clients, alpha=alpha, min_per_client=least, seed=seed
        )
    except ValueError as error:
        assert "fewer clients" in str(error)
        return
    assert disjoint(parts, 600) == 600
    assert len(parts) == n_clients
    assert min(sizes(parts)) >= least


@pytest.mark.parametrize("alpha", [0.1, 1.0, 10.0])
def test_shares_vary_as_dirichlet_says(alpha):
    labels = np.repeat(np.arange(500), 100)
    parts = partition.dirichlet(labels, 5, alpha=alpha)
    shares = np.array([counts(labels, rows) / 100 for rows in parts])
    assert shares.var() == pytest.approx(0.2 * 0.8 / (5 * alpha + 1), rel=0.1)


def test_dirichlet_names_settings_that_work():
    setting = {"alpha": 0.1, "min_per_client": 55, "max_tries": 20, "seed": 3}
    with pytest.raises(
        ValueError, match=r"none of 20 draws with alpha=0\.1 gave each of 10"
    ) as error:
        partition.dirichlet(BALANCED, 10, **setting)
    message = str(error.value)
    found = {
        "min_per_client": int(re.findall(r"Use min_per_client=(\d+)", message)[0]),
        "alpha": float(re.findall(r"or alpha=([\d.]+)", message)[0]),
    }
    for name, value in found.items():
        better = {**setting, name: value}
        parts = partition.dirichlet(BALANCED, 10, **better)
        assert min(sizes(parts)) >= better["min_per_client"]


# long tail


def test_long_tail_of_mnist_has_the_papers_sizes():
    labels = np.random.default_rng(0).permutation(np.repeat(np.arange(10), MNIST_CLASSES))
    for rows in (partition.long_tail(labels, largest=6000), partition.long_tail(labels)):
        assert counts(labels, rows).tolist() == LONG_TAIL
        assert rows.size == 14818
        assert np.array_equal(rows[labels[rows] == 3], np.flatnonzero(labels == 3)[:1293])
    assert np.all(np.diff(rows) > 0)


def test_long_tail_with_ratio_one_or_one_class_keeps_all():
    assert partition.long_tail(BALANCED, ratio=1).size == 600
    assert partition.long_tail(np.zeros(7, int)).size == 7


# splits


@quick
@given(st.lists(st.integers(3, 40), min_size=1, max_size=6), st.floats(0.01, 0.9), seeds)
def test_split_keeps_all_rows_and_no_split_is_empty(client_sizes, first, seed):
    parts = partition.given_sizes(sum(client_sizes), client_sizes, seed=seed)
    fractions = {"train": first, "validation": (1 - first) / 2, "test": (1 - first) / 2}
    cut = partition.split(parts, fractions=fractions, seed=seed)
    assert list(cut) == ["train", "validation", "test"]
    for client, rows in enumerate(parts):
        pieces = [cut[name][client] for name in cut]
        assert np.array_equal(np.sort(np.concatenate(pieces)), np.sort(rows))
        assert min(sizes(pieces)) >= 1
        if min(fractions.values()) * rows.size >= 2:
            exact = np.array(list(fractions.values())) * rows.size
            assert np.abs(exact - sizes(pieces)).max() <= 1


def test_split_goes_straight_into_a_population():
    parts = partition.heterogeneity(BALANCED, 10, q=0.5)
    cut = partition.split(parts, fractions={"train": 0.8, "validation": 0.2})
    population = Population.from_parts({"labels": BALANCED}, cut)
    assert population.counts.tolist() == [[48] * 10, [12] * 10]
    assert np.array_equal(
        population.rows(3, "validation")["labels"], BALANCED[cut["validation"][3]]
    )


def test_split_names_the_client_that_is_too_small():
    parts = [np.arange(5), np.array([7]), np.arange(9)]
    with pytest.raises(ValueError, match=r"client 1 has 1 rows for the splits \['train', 'test'\]"):
        partition.split(parts, fractions={"train": 0.5, "test": 0.5})


# what all have in common

EVERY = {
    "iid": lambda seed: partition.iid(600, 7, seed=seed),
    "given_sizes": lambda seed: partition.given_sizes(600, (50, 3), seed=seed),
    "shards": lambda seed: partition.shards(BALANCED, 7, seed=seed),
    "k_classes": lambda seed: partition.k_classes(
        BALANCED, 7, classes_per_client=3, per_client=30, seed=seed
    ),
    "heterogeneity": lambda seed: partition.heterogeneity(BALANCED, 7, q=0.4, seed=seed),
    "dominant_class": lambda seed: partition.dominant_class(BALANCED, 7, share=0.4, seed=seed),
    "dirichlet": lambda seed: partition.dirichlet(BALANCED, 7, alpha=0.5, seed=seed),
    "split": lambda seed: partition.split(
        [np.arange(600)], fractions={"train": 0.5, "test": 0.5}, seed=seed
    )["train"],
}


@pytest.mark.parametrize("make", EVERY.values(), ids=EVERY)
def test_the_seed_decides(make):
    first, again, other = make(5), make(5), make(6)
    assert all(np.array_equal(a, b) for a, b in zip(first, again, strict=True))
    assert any(not np.array_equal(a, b) for a, b in zip(first, other, strict=True))
    assert all(np.issubdtype(rows.dtype, np.integer) for rows in first)


@pytest.mark.parametrize("make", EVERY.values(), ids=EVERY)
def test_a_bad_seed_is_refused(make):
    with pytest.raises(ValueError, match="seed must be at least 0, got -1"):
        make(-1)


BAD = [
    (
        lambda: partition.iid(3, 5),
        "3 rows are too few for 5 clients with 1 or more each. Use fewer",
    ),
    (lambda: partition.iid(20, 4, per_client=6), "20 rows are too few for 4 clients with 6"),
    (lambda: partition.iid(20, 0), "n_clients must be at least 1, got 0"),
    (lambda: partition.iid(20, 4, per_client=-1), "per_client must be at least 1, got -1"),
    (lambda: partition.iid(0, 1), "n_samples must be at least 1, got 0"),
    (lambda: partition.given_sizes(60, (50, 20)), "sizes sum to 70; the sum must be 1 to 60"),
    (lambda: partition.given_sizes(60, ()), "sizes sum to 0"),
    (lambda: partition.given_sizes(60, (5, 0)), "sizes[1] must be at least 1, got 0"),
    (lambda: partition.shards([0, 1, 1], 2), "3 rows are too few for 2 clients with 2"),
    (
        lambda: partition.shards([0, 1], 1, shards_per_client=0),
        "shards_per_client must be at least",
    ),
    (
        lambda: partition.k_classes(SKEWED, 2, classes_per_client=6, per_client=6),
        "classes_per_client=6, but there are 5 classes. Use fewer.",
    ),
    (
        lambda: partition.k_classes(SKEWED, 2, classes_per_client=2, per_client=7),
        "takes 4 rows of one class, but the smallest class has 3. Use per_client=6 or less.",
    ),
    (
        lambda: partition.k_classes(SKEWED, 2, classes_per_client=3, per_client=2),
        "per_client must be at least 3, got 2",
    ),
    (
        lambda: partition.heterogeneity(SKEWED, 4, q=1.2),
        "q must be a number between 0 and 1, got 1.2",
    ),
    (lambda: partition.heterogeneity(SKEWED, 4, q=-0.1), "q must be a finite number, 0 or above"),
    (lambda: partition.heterogeneity(SKEWED, 184, q=0.5), "183 rows are too few for 184 clients"),
    (
        lambda: partition.dominant_class(SKEWED, 4, share=2),
        "share must be a number between 0 and 1",
    ),
    (lambda: partition.dominant_class([1, 1], 1, share=0.5), "needs at least 2 classes"),
    (lambda: partition.dominant_class([0, 1], 3, share=0.5), "Use fewer clients."),
    (lambda: partition.dirichlet(SKEWED, 4, alpha=0.0), "alpha must be a finite number above 0"),
    (
        lambda: partition.dirichlet(SKEWED, 10, alpha=1.0, min_per_client=19),
        "183 rows are too few for 10 clients with 19",
    ),
    (
        lambda: partition.dirichlet(SKEWED, 4, alpha=1.0, max_tries=0),
        "max_tries must be at least 1",
    ),
    (lambda: partition.long_tail(SKEWED, ratio=0.0), "ratio must be a finite number above 0"),
    (lambda: partition.long_tail(SKEWED, ratio=2.0), "ratio must be a number between 0 and 1"),
    (lambda: partition.long_tail(SKEWED, largest=0), "largest must be at least 1, got 0"),
    (
        lambda: partition.split([np.arange(9)], fractions={"train": 0.8, "test": 0.1}),
        "fractions must sum to 1, got {'train': 0.8, 'test': 0.1}",
    ),
    (
        lambda: partition.split([np.arange(9)], fractions={"train": 1.5, "test": -0.5}),
        "fractions['test'] must be a finite number above 0",
    ),
]


@pytest.mark.usefixtures("wrong_types")
@pytest.mark.parametrize(("call", "message"), BAD, ids=[message[:40] for _, message in BAD])
def test_bad_numbers_are_refused(call, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        call()


@pytest.mark.usefixtures("wrong_types")
@pytest.mark.parametrize("labels", [[], [0.5, 1.0], [[0, 1]], ["cat"]])
def test_bad_labels_are_refused(labels):
    with pytest.raises(TypeError, match="labels must be a non-empty flat array of whole numbers"):
        partition.shards(labels, 1)


# many clients


@pytest.mark.parametrize("sizes", [(4, 4, 4), (3, 7, 4)])  # one call for all, or one per client
def test_a_split_draws_one_permutation_per_client_in_order(sizes):
    parts = partition.given_sizes(20, sizes, seed=1)
    cut = partition.split(parts, fractions={"a": 0.5, "b": 0.5}, seed=2)
    rng = np.random.default_rng(2)
    for rows, first, second in zip(parts, cut["a"], cut["b"], strict=True):
        assert np.concatenate([first, second]).tolist() == rng.permutation(rows).tolist()


def test_pieces_of_several_columns_are_sorted_by_client():
    rng = np.random.default_rng(0)
    sizes = rng.integers(0, 4, (50, 3))
    columns = [rng.integers(0, 1000, n + 2) for n in sizes.sum(0)]
    rows, begins = pieces.interleaved(columns, sizes)
    by_column = [pieces.cut(column, own) for column, own in zip(columns, sizes.T, strict=True)]
    naive = [piece for mine in zip(*by_column, strict=True) for piece in mine]
    assert rows.tolist() == np.concatenate(naive).tolist()
    assert begins.ravel().tolist() == [sum(map(len, naive[:i])) for i in range(len(naive))]

"""Minimax tasks and rankings: AUC, partial AUC, fair groups, perturbations, the areas."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import rookery as rk
from rookery.algorithms import FeDXL
from rookery.problem.sample import Rows
from rookery.tasks.ranking import area, partial_area


@pytest.fixture(scope="module")
def even(digits):
    """Three clients of forty rows: the mean over them is the mean over all rows."""
    rows = list(np.arange(120).reshape(3, 40))
    return {"train": rows, "validation": rows}


def all_rows(task):
    """The training rows of all clients, in float64."""
    own = [task.population.rows(i, "train") for i in range(3)]
    rows = jax.tree.map(lambda *parts: np.concatenate(parts), *own)
    return Rows({**rows, "inputs": jnp.asarray(rows["inputs"], float)})


def share_of_pairs(positive, negative):
    """The AUC by its definition."""
    above = np.subtract.outer(np.asarray(positive), np.asarray(negative))
    return np.mean((above > 0) + 0.5 * (above == 0))


def test_areas_are_shares_of_pairs():
    rng = np.random.default_rng(0)
    positive, negative = rng.integers(2, 12, 20).astype(float), rng.integers(0, 9, 40).astype(float)
    got = area(jnp.array(positive), jnp.array(negative))
    assert got == pytest.approx(share_of_pairs(positive, negative))
    got = partial_area(jnp.array(positive), jnp.array(negative), 0.2)
    assert got == pytest.approx(share_of_pairs(positive, np.sort(negative)[-8:]))


def test_the_auc_saddle_is_the_square_loss_of_all_pairs(digits, even, moved_start):
    """At the best a, b and α, by the pairs of all clients' rows, formed one by one."""
    task = rk.tasks.auc(digits, even, positive=(1, 4))
    task.problem.check(task.start(0), task.population.example)
    x, _ = moved_start(task)
    rows = all_rows(task)
    labels = rows.rows["labels"]
    h = rows.rows["inputs"] @ x["w"][0]["w"][:, 0] + x["w"][0]["b"][0]
    up, down, p = h[labels == 1], h[labels == 0], labels.mean()
    x = {**x, "a": up.mean(), "b": down.mean()}
    alpha = down.mean() - up.mean()
    value, f_x, f_y = jax.jit(
        lambda x, alpha: (
            task.problem.value(x, alpha, rows),
            task.problem.grad_x(x, alpha, rows),
            task.problem.grad_y(x, alpha, rows),
        )
    )(x, alpha)
    pairs = np.subtract.outer(np.asarray(up), np.asarray(down))
    assert value == pytest.approx(p * (1 - p) * (np.mean((1 - pairs) ** 2) - 1), rel=1e-10)
    np.testing.assert_allclose([f_x["a"], f_x["b"], f_y], 0, atol=1e-10)  # where they are best


def test_fewer_positives_and_the_metrics_of_a_ranking(digits, parts, measure):
    task = rk.tasks.auc(digits, parts, positive=2, keep_positives=0.5)
    every = rk.tasks.auc(digits, parts, positive=2)
    ones = [
        sum(int(t.population.rows(i, "train")["labels"].sum()) for i in range(5))
        for t in (task, every)
    ]
    assert ones[0] == pytest.approx(ones[1] / 2, abs=3)
    x, alpha = task.start(1)
    scores = digits.test["inputs"] @ x["w"][0]["w"][:, 0]
    got = measure(task, (x, alpha))
    assert set(got) == {"auc", "partial_auc"}
    is_two = digits.test["labels"] == 2
    assert got["auc"] == pytest.approx(share_of_pairs(scores[is_two], scores[~is_two]), abs=1e-5)


def test_the_partial_auc_risk_is_that_of_all_pairs(digits, even, moved_start):
    task = rk.tasks.partial_auc(digits, even, positive=(1, 4), temperature=3.0, margin=0.5)
    problem = task.problem
    problem.check(task.start(0), task.population.example)
    (w,) = moved_start(task)
    samples, scores = [], []
    for split in ("positive", "negative"):
        rows = np.concatenate([task.population.rows(i, split)["inputs"] for i in range(3)])
        samples.append(Rows({"inputs": jnp.asarray(rows, float)}))
        scores.append(rows.astype(float) @ np.asarray(w[0]["w"])[:, 0])  # b cancels in pairs
    short = np.maximum(0.5 - np.subtract.outer(*scores), 0)
    wanted = np.mean(3.0 * np.log(np.mean(np.exp(short**2 / 3.0), axis=1)))
    value = jax.jit(lambda w: problem.value(w, *samples))(w)
    assert value == pytest.approx(wanted, rel=1e-10)
    most = [
        max(len(task.population.rows(i, split)["labels"]) for i in range(3))
        for split in ("positive", "negative")
    ]
    assert [problem.most_positives, problem.most_negatives] == most


@pytest.mark.slow
def test_fedxl_ranks_digits(digits, parts):
    rows = rk.partition.split(
        rk.partition.iid(len(digits.train["labels"]), 4), fractions={"train": 1.0}
    )
    task = rk.tasks.partial_auc(digits, rows, positive=8, keep_positives=0.5)
    algorithm = FeDXL(
        lr=0.05, gamma=0.9, beta=0.5, local_steps=4, batch_size={"positive": 4, "negative": 16}
    )
    result = rk.run(
        algorithm, task.problem, task.population, task.start(0), rounds=30, evaluate=task.evaluate
    )
    assert result.history["partial_auc"][-1] > max(0.75, result.history["partial_auc"][0] + 0.1)


@pytest.mark.parametrize("groups", ["client", "label"])
def test_the_fair_payoff_is_the_weighted_mean_of_the_groups(groups, digits, even, moved_start):
    task = rk.tasks.fair_classification(digits, even, groups=groups, concavity=0.3)
    w, start = moved_start(task)
    y = np.random.default_rng(0).dirichlet(np.ones(len(start)))
    rows = all_rows(task)
    plain = rk.tasks.classification(digits, even).problem
    each = np.asarray(jax.jit(jax.vmap(lambda row: plain.loss(w, row)))(rows.rows))
    group = np.arange(120) // 40 if groups == "client" else np.asarray(rows.rows["labels"])
    losses = [each[group == g].mean() for g in range(len(start))]
    wanted = np.dot(y, losses) - 0.15 * np.sum((y - 1 / len(start)) ** 2)
    got = jax.jit(lambda y: task.problem.value(w, y, rows))(jnp.array(y))
    assert got == pytest.approx(wanted, rel=1e-6)


@pytest.mark.slow
def test_the_weights_of_groups_stay_in_the_simplex_and_rise_for_the_worst(digits, parts):
    task = rk.tasks.fair_classification(digits, parts)
    algorithm = rk.GDA(outer_lr=0.05, inner_lr=0.2)
    result = rk.run(
        algorithm, task.problem, task.population, task.start(0), rounds=6, evaluate=task.evaluate
    )
    w, y = result.solution
    assert np.min(y) >= 0
    assert np.sum(y) == pytest.approx(1, abs=1e-5)
    plain = rk.tasks.classification(digits, parts).problem
    losses = [plain.value(w, Rows(task.population.rows(i, "train"))) for i in range(5)]
    assert np.argmax(y) == np.argmax(losses)
    assert result.history["accuracy/worst"][-1] <= result.history["accuracy/mean"][-1]


def test_the_worst_class(digits, parts, measure):
    task = rk.tasks.fair_classification(digits, parts, groups="label")
    w, y = task.start(0)
    guess = np.argmax(digits.test["inputs"] @ w[0]["w"] + w[0]["b"], axis=1)
    right, labels = guess == digits.test["labels"], digits.test["labels"]
    wanted = min(right[labels == c].mean() for c in range(10))
    assert measure(task, (w, y))["worst_class_accuracy"] == pytest.approx(wanted, abs=1e-6)


@pytest.mark.slow
def test_an_adversary_moves_the_inputs(digits, even, moved_start, measure, agrees_with_differences):
    task = rk.tasks.adversarial(digits, even, concavity=2.0)
    w, delta = moved_start(task)
    sample, plain = all_rows(task), rk.tasks.classification(digits, even).problem
    moved = Rows({**sample.rows, "inputs": sample.rows["inputs"] + delta[None]})
    value, wanted = jax.jit(
        lambda: (task.problem.value(w, delta, sample), plain.value(w, moved) - jnp.sum(delta**2))
    )()
    assert value == pytest.approx(float(wanted), rel=1e-10)
    f_y = task.problem.grad_y(w, delta, sample)
    agrees_with_differences(lambda d: task.problem.value(w, d, sample), delta, f_y)
    got = measure(task, jax.tree.map(lambda a: a.astype(jnp.float32), (w, delta)))
    assert got["perturbation"] == pytest.approx(float(jnp.linalg.norm(delta)), rel=1e-5)
    assert got["robust_loss"] != got["loss"]


def test_bad_settings_are_refused(digits, parts):
    with pytest.raises(ValueError, match="positive must name some of the classes 0 to 9"):
        rk.tasks.auc(digits, parts, positive=10)
    with pytest.raises(ValueError, match="keep_positives"):
        rk.tasks.auc(digits, parts, keep_positives=0.0)
    with pytest.raises(ValueError, match="groups"):
        rk.tasks.fair_classification(digits, parts, groups="site")  # pyright: ignore[reportArgumentType]
    one_kind = {"train": [np.flatnonzero(digits.train["labels"] == c)[:9] for c in (0, 1)]}
    with pytest.raises(ValueError, match="client 0 has no negative training rows"):
        rk.tasks.partial_auc(digits, one_kind, positive=0)
    twice = {split: [rows[0], rows[0]] for split, rows in parts.items()}
    with pytest.raises(ValueError, match="clients without common rows"):
        rk.tasks.fair_classification(digits, twice)
    with pytest.raises(ValueError, match="concavity"):
        rk.tasks.adversarial(digits, parts, concavity=0.0)

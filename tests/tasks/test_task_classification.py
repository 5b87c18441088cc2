import jax
import numpy as np
import pytest

import rookery as rk
from rookery.problem.sample import Rows


def test_gradients(digits, parts, moved_start, rows_of, agrees_with_differences):
    task = rk.tasks.classification(digits, parts, hidden=(5,))
    task.problem.check(task.start(0), task.population.example)
    (w,), rows = moved_start(task), rows_of(task, 1, "train")
    gradient = jax.jit(lambda w: task.problem.gradient(w, rows))(w)
    agrees_with_differences(lambda w: task.problem.value(w, rows), w, gradient)


def test_evaluation_knows_the_worst_clients(digits, parts, measure):
    task = rk.tasks.classification(digits, parts)
    got = measure(task, task.start(0))
    of_clients = {f"{metric}/{which}" for metric in ("accuracy", "loss")
                  for which in ("mean", "worst", "worst10", "variance")}  # fmt: skip
    assert set(got) == {"accuracy", "loss"} | of_clients
    assert got["accuracy/worst"] <= got["accuracy/worst10"] <= got["accuracy/mean"]
    assert got["loss/worst"] >= got["loss/worst10"] >= got["loss/mean"]
    (w,) = task.start(0)
    rows = Rows(task.population.rows(3, "validation"))
    only = {split: [rows[3]] for split, rows in parts.items()}
    alone = measure(rk.tasks.classification(digits, only), (w,))
    assert alone["loss/mean"] == pytest.approx(float(task.problem.value(w, rows)), rel=1e-5)


def test_clients_may_count_by_their_rows(digits, parts):
    rows = np.array([len(rows) for rows in parts["train"]])
    weighted = rk.tasks.classification(digits, parts, weigh_by_rows=True).population.weights
    np.testing.assert_allclose(weighted, rows / rows.sum())
    equal = rk.tasks.classification(digits, parts).population.weights
    np.testing.assert_allclose(equal, 0.2)


@pytest.mark.slow
def test_a_small_gamma_favours_the_worst_client(digits):
    """A client with few rows of a class that no other has."""
    labels = digits.train["labels"]
    rows = [np.flatnonzero(labels == 1)[:5], *np.array_split(np.flatnonzero(labels != 1)[:120], 4)]
    task = rk.tasks.classification(digits, {"train": rows, "validation": rows})
    jobs = [rk.Run(rk.ComFedL(lr=0.3, gamma=gamma), task.start(0)) for gamma in (0.3, 10.0)]
    robust, plain = rk.sweep(jobs, task.problem, task.population, rounds=40, evaluate=task.evaluate)
    assert robust.history["loss/worst"][-1] < 0.9 * plain.history["loss/worst"][-1]
    assert robust.history["accuracy/variance"][-1] <= plain.history["accuracy/variance"][-1]


def test_images_go_through_convolutions(digits, parts):
    images = {name: a.reshape(-1, 8, 8, 1) if name == "inputs" else a
              for name, a in digits.train.items()}  # fmt: skip
    dataset = type(digits)("images", images, images, ())
    task = rk.tasks.classification(dataset, parts, hidden=(2, 3, 4))
    task.problem.check(task.start(0), task.population.example)
    assert task.start(0)[0]["convolutions"][1]["w"].shape == (18, 3)
    plain = rk.tasks.classification(dataset, parts)
    plain.problem.check(plain.start(0), plain.population.example)
    assert plain.start(0)[0][0]["w"].shape == (64, 10)
    with pytest.raises(ValueError, match=r"three hidden layers.*hidden="):
        rk.tasks.classification(dataset, parts, hidden=(2,))
    odd = {**images, "inputs": images["inputs"][..., 0]}
    with pytest.raises(ValueError, match=r"\[height, width, channels\]"):
        rk.tasks.classification(type(digits)("odd", odd, odd, ()), parts, hidden=(2,))


def test_bad_arguments(digits, parts):
    with pytest.raises(ValueError, match="adapt_lr must be a finite number above 0, got 0"):
        rk.tasks.classification(digits, parts, adapt_lr=0)
    with pytest.raises(ValueError, match=r"adapt_steps=\d+ .*adapt_lr"):
        rk.tasks.classification(digits, parts, adapt_steps=2)
    with pytest.raises(ValueError, match="needs the splits train, validation, got train"):
        rk.tasks.classification(digits, {"train": parts["train"]})

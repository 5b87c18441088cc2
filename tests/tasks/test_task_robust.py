import jax
import jax.numpy as jnp
import numpy as np
import pytest

import rookery as rk


def test_gradients(digits, parts, moved_start, rows_of, agrees_with_differences):
    task = rk.tasks.robust(digits, parts, gamma=0.7, hidden=(5,))
    task.problem.check(task.start(0), task.population.example)
    (w,), rows = moved_start(task), rows_of(task, 1, "train")
    gradient = jax.jit(lambda w: task.problem.gradient(w, rows, rows))(w)
    agrees_with_differences(lambda w: task.problem.value(w, rows, rows), w, gradient)


def test_the_exponential_is_of_the_clients_mean_loss(digits, parts, measure):
    task = rk.tasks.robust(digits, parts, gamma=0.5)
    (w,) = task.start(0)
    rows = rk.Rows(task.population.rows(3, "validation"))
    mean = np.log(task.problem.value(w, rows, rows)) * 0.5
    only = {"validation": [parts["validation"][3]], "train": [parts["train"][3]]}
    alone = rk.tasks.robust(digits, only, gamma=0.5)
    got = measure(alone, (w,))
    assert got["loss/mean"] == got["loss/worst"] == pytest.approx(mean, rel=1e-5)


def test_evaluation_knows_the_worst_client(digits, parts, measure):
    task = rk.tasks.robust(digits, parts, gamma=1.0)
    got = measure(task, task.start(0))
    assert set(got) == {
        "accuracy", "loss", "accuracy/mean", "accuracy/worst", "loss/mean", "loss/worst",
    }  # fmt: skip
    assert got["accuracy/worst"] <= got["accuracy/mean"]
    assert got["loss/worst"] >= got["loss/mean"]


def test_a_small_gamma_favours_the_worst_client(digits, measure):
    """Sixty steps of gradient descent on gamma log mean exp(f_i / gamma)."""
    labels = digits.train["labels"]
    rows = [np.flatnonzero(labels == 1)[:5], *np.array_split(np.flatnonzero(labels != 1)[:120], 4)]
    parts = {"train": rows, "validation": rows}

    def worst(gamma):
        task = rk.tasks.robust(digits, parts, gamma=gamma)
        samples = [rk.Rows(task.population.rows(i, "train")) for i in range(5)]

        @jax.jit
        def step(w):
            values = jnp.stack([task.problem.value(w, s, s) for s in samples])
            gradients = [task.problem.gradient(w, s, s) for s in samples]
            scale = (gamma / values.sum()).astype(jnp.float32)
            return jax.tree.map(lambda w, *g: w - scale * sum(g[1:], g[0]), w, *gradients)

        (w,) = task.start(0)
        for _ in range(60):
            w = step(w)
        return measure(task, (w,))["loss/worst"]

    assert worst(0.3) < worst(10.0)


def test_images_go_through_convolutions(digits, parts):
    images = {name: a.reshape(-1, 8, 8, 1) if name == "inputs" else a
              for name, a in digits.train.items()}  # fmt: skip
    dataset = type(digits)("images", images, images, ())
    task = rk.tasks.robust(dataset, parts, gamma=1.0, hidden=(2, 3, 4))
    task.problem.check(task.start(0), task.population.example)
    assert task.start(0)[0]["convolutions"][1]["w"].shape == (18, 3)
    plain = rk.tasks.robust(dataset, parts, gamma=1.0)
    plain.problem.check(plain.start(0), plain.population.example)
    assert plain.start(0)[0][0]["w"].shape == (64, 10)
    with pytest.raises(ValueError, match="images need three hidden layers"):
        rk.tasks.robust(dataset, parts, gamma=1.0, hidden=(2,))
    odd = {**images, "inputs": images["inputs"][..., 0]}
    with pytest.raises(ValueError, match=r"inputs must be flat or \[height, width, channels\]"):
        rk.tasks.robust(type(digits)("odd", odd, odd, ()), parts, gamma=1.0, hidden=(2,))


def test_bad_arguments(digits, parts):
    with pytest.raises(ValueError, match="gamma must be a finite number above 0, got 0"):
        rk.tasks.robust(digits, parts, gamma=0)
    with pytest.raises(ValueError, match="needs the splits train, validation, got train"):
        rk.tasks.robust(digits, {"train": parts["train"]}, gamma=1.0)

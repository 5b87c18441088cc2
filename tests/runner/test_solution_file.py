"""The file that a run leaves, and how it is read back."""

from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import safetensors.numpy

import rookery as rk

START = ({"b": jnp.zeros(()), "layers": [jnp.ones((2, 3)), jnp.zeros(3)]},)


def loss(w, row):
    out = row["x"] @ w["layers"][0] + w["layers"][1] + w["b"]
    return jnp.sum(out**2)


def go(directory, rounds=3, **kwargs):
    population = rk.Population.stacked({"x": np.ones((2, 4, 2))})
    problem = rk.SingleLevel(loss, split="train")
    return rk.run(
        rk.FedAvg(lr=0.01, local_steps=2), problem, population, START,
        rounds=rounds, directory=directory, evaluate_every=2, **kwargs,
    )  # fmt: skip


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    directory = tmp_path_factory.mktemp("run")
    return directory, go(directory)


def test_it_is_the_solution_with_readable_names_for_any_program(run):
    directory, result = run
    arrays = safetensors.numpy.load_file(directory / "solution.safetensors")
    assert sorted(arrays) == ["w.b", "w.layers.0", "w.layers.1"]
    np.testing.assert_array_equal(arrays["w.layers.0"], result.solution[0]["layers"][0])
    loaded = rk.load_solution(directory, like=START)
    assert jax.tree.structure(loaded) == jax.tree.structure(START)
    for a, b in zip(*map(jax.tree.leaves, (loaded, result.solution)), strict=True):
        np.testing.assert_array_equal(a, b)
        assert a.dtype == b.dtype


@pytest.mark.parametrize(
    ("like", "message"),
    [
        (START[0], r"one value per variable, \(w,\)"),
        ((START[0], START[0]), "got tuple of 2"),
        (({"b": START[0]["b"]},), r"w\.layers\.0, w\.layers\.1 are in one of them only"),
        (({**START[0], "c": jnp.zeros(1)},), r"w\.c is in one of them only"),
        (({**START[0], "b": jnp.zeros(2)},), r"w\.b is float64\[\], like has float64\[2\]"),
        (({**START[0], "b": jnp.zeros((), jnp.float32)},), "float64.*float32.*64-bit"),
    ],
)
def test_another_shape_or_structure_is_named(run, like, message):
    with pytest.raises(ValueError, match=message):
        rk.load_solution(run[0], like=like)


def test_what_is_not_there_is_explained(run, tmp_path):
    with pytest.raises(FileNotFoundError, match="not a run directory"):
        rk.load_solution(tmp_path, like=START)
    with pytest.raises(FileNotFoundError, match='had no keep="best'):
        rk.load_solution(run[0], like=START, which="best")
    with pytest.raises(ValueError, match="unknown which 'first'"):
        rk.load_solution(run[0], like=START, which=cast(Any, "first"))
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(FileNotFoundError, match="the run has not ended"):
        rk.load_solution(tmp_path, like=START)
    (tmp_path / "solution.safetensors").write_bytes(b"x")
    with pytest.raises(ValueError, match="not a solution of rookery"):
        rk.load_solution(tmp_path, like=START)


def test_a_longer_run_does_not_leave_the_shorter_one_s_solution(tmp_path):
    class Killed(Exception):
        pass

    def kill(snapshot):
        raise Killed

    go(tmp_path)
    with pytest.raises(Killed):
        go(tmp_path, rounds=9, callback=kill, callback_every=1)
    assert not (tmp_path / "solution.safetensors").exists()
    stopped = go(tmp_path, rounds=9, callback=lambda s: s.round == 5, callback_every=5)
    assert stopped.status == "stopped"
    (w,) = rk.load_solution(tmp_path, like=START)
    np.testing.assert_array_equal(w["layers"][0], stopped.solution[0]["layers"][0])
    go(tmp_path, rounds=1, overwrite=True, seed=5)
    (w,) = rk.load_solution(tmp_path, like=START)
    assert not np.array_equal(w["layers"][0], stopped.solution[0]["layers"][0])


def test_keys_with_dots_stay_apart(tmp_path):
    from rookery.runner.solution_file import save_solution

    tree = ({"a.b": jnp.zeros(1), "a": {"b": jnp.ones(1)}},)
    (tmp_path / "config.json").write_text("{}")
    save_solution(tmp_path, "last", tree, ("w",), 0)
    (loaded,) = rk.load_solution(tmp_path, like=tree)
    assert loaded["a.b"] == 0 and loaded["a"]["b"] == 1

"""The tasks whose solution is known: their evaluation is the distance to it."""

import inspect

import jax
import numpy as np
import pytest

import rookery as rk

TASKS = {
    "quadratic": (rk.tasks.quadratic, {}, rk.zoo.quadratic_bilevel()),
    "personal_quadratic": (rk.tasks.personal_quadratic, {}, rk.zoo.personal_quadratic()),
    "saddle": (rk.tasks.saddle, {}, rk.zoo.saddle()),
    "curved saddle": (
        rk.tasks.saddle, {"curvature": 1.0, "x_size": 3}, rk.zoo.saddle(curvature=1.0)
    ),
    "dirac_gan": (rk.tasks.dirac_gan, {}, rk.zoo.dirac_gan()),
    "mean_semideviation": (
        rk.tasks.mean_semideviation,
        {"rows": 50, "size": 3},
        rk.zoo.mean_semideviation(rows=50, size=3),
    ),
    "conditional_quadratic": (
        rk.tasks.conditional_quadratic, {"draws": 3}, rk.zoo.conditional_quadratic(draws=3)
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", TASKS)
def test_the_distance_is_to_the_members_solution(name, measure):
    make, settings, member = TASKS[name]
    task = make(**settings)
    task.problem.check(task.start(0), task.population.example)
    assert [a.tolist() for a in task.start(0)] == [a.tolist() for a in member.start]
    assert all(value < 1e-12 for value in measure(task, member.solution()).values())
    away = {
        f"distance_{variable}": np.linalg.norm(a - b)
        for variable, a, b in zip("xy", member.start, member.solution(), strict=False)
    }
    if name == "conditional_quadratic":
        away = {f"distance_{which}": away["distance_x"] for which in ("w", "plug_in_w")}
    if name == "mean_semideviation":
        (x,), (solution,) = member.start, member.solution()
        away["distance_x"] = min(away["distance_x"], np.linalg.norm(x + solution))
    if name in ("quadratic", "personal_quadratic"):
        away["gradient_norm"] = np.linalg.norm(member.hypergradient(member.start[0]))
    assert measure(task, task.start(0)) == pytest.approx(away)


@pytest.mark.parametrize("name", TASKS)
def test_float32(name, measure):
    make, settings, member = TASKS[name]
    task = make(**settings, dtype="float32")
    start = jax.tree.map(jax.numpy.asarray, task.start(0))
    assert {a.dtype for a in start} == {np.dtype("float32")}
    task.problem.check(start, task.population.example)
    assert all(value < 1e-5 for value in measure(task, _rounded(member.solution())).values())


def _rounded(solution):
    return tuple(a.astype(np.float32) for a in solution)


def test_minus_the_solution_of_the_semideviation_is_one_too(measure):
    task = rk.tasks.mean_semideviation(rows=50, size=3)
    (x,) = rk.zoo.mean_semideviation(rows=50, size=3).solution()
    assert measure(task, (-x,))["distance_x"] < 1e-12


@pytest.mark.slow
def test_fednest_solves_the_quadratic(descend):
    task = rk.tasks.quadratic(n_clients=3, heterogeneity=0.5)
    result = descend(
        task,
        rounds=10,
        outer_lr=0.1,
        inner_lr=0.2,
        ihgp=rk.parts.FedIHGPSum(terms=20, lipschitz=4.0),
    )
    assert result.history["distance_x"][-1] < 0.5 * result.history["distance_x"][0]


def test_arguments_are_by_name_and_checked():
    with pytest.raises(TypeError, match="positional"):
        rk.tasks.quadratic(5)  # pyright: ignore[reportCallIssue]
    for make in (rk.tasks.quadratic, rk.tasks.mean_semideviation):
        with pytest.raises(ValueError, match=r"heterogeneity .*between 0 and 1, got 2\.0"):
            make(heterogeneity=2.0)
    # what experiment files and help() show: the arguments of the problem
    for make, member in (
        (rk.tasks.quadratic, rk.zoo.quadratic_bilevel),
        (rk.tasks.saddle, rk.zoo.saddle),
        (rk.tasks.fednest_saddle, rk.zoo.fednest_saddle),
        (rk.tasks.mean_semideviation, rk.zoo.mean_semideviation),
    ):
        assert inspect.signature(make).parameters == inspect.signature(member).parameters

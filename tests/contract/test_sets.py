"""Every algorithm keeps variables in their sets, or refuses a problem that has some."""

import dataclasses

import jax.numpy as jnp
import numpy as np
import pytest
from instances import INSTANCES, OPTIMISED

import rookery as rk
from rookery.problem.bilevel import AbstractBilevel

CASES = OPTIMISED | {name: next(iter(every.values())) for name, every in INSTANCES.items()}


def solve(algorithm, zoo, project, rounds):
    problem = dataclasses.replace(zoo.problem, project=project)
    population = rk.Population.stacked(zoo.data)
    return rk.run(algorithm, problem, population, zoo.start, rounds=rounds).solution


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_every_algorithm_that_projects_stays_in_the_set(name):
    zoo, algorithm = CASES[name]
    radius = 1e-4  # the first step leaves it
    has_free_y = isinstance(zoo.problem, AbstractBilevel)
    names = [n for n in zoo.problem.variables if not (n == "y" and has_free_y)]
    start = dict(zip(zoo.problem.variables, zoo.start, strict=True))

    def near(centre):
        return lambda w: jnp.clip(w, centre - radius, centre + radius)

    project = {n: near(np.asarray(start[n])) for n in names}
    if not algorithm.projects:
        with pytest.raises(ValueError, match=f"{algorithm.name} does not project"):
            solve(algorithm, zoo, project, 3)
        return
    solution = dict(zip(zoo.problem.variables, solve(algorithm, zoo, project, 3), strict=True))
    for n in names:
        moved = np.abs(solution[n] - start[n])
        assert np.all(moved <= radius * (1 + 1e-9)), n
        assert np.any(moved > 0.1 * radius), n

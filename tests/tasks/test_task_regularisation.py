import jax
import numpy as np
import pytest

import rookery as rk
from rookery.problem.sample import Rows


@pytest.mark.slow
def test_oracles(digits, parts, check_bilevel):
    check_bilevel(rk.tasks.regularisation(digits, parts))


def test_the_penalty_is_a_square_for_every_parameter(digits, parts):
    task = rk.tasks.regularisation(digits, parts, l2=0.5)
    x, y = task.start(0)
    assert jax.tree.structure(x) == jax.tree.structure(y)
    sample = Rows(task.population.rows(0, "train"))
    penalty = task.problem.inner_value(x, y, sample) - task.problem.outer_value(x, y, sample)
    squares = sum((leaf.astype(float) ** 2).sum() for leaf in jax.tree.leaves(y))
    np.testing.assert_allclose(penalty, 0.5 * squares, rtol=1e-5)


@pytest.mark.slow
def test_fednest_lowers_the_outer_loss(digits, parts, lower_the_outer_loss):
    task = rk.tasks.regularisation(digits, parts, l2=0.01)
    result = lower_the_outer_loss(task, outer_lr=50.0, inner_lr=1.0)
    assert result.history["accuracy"][-1] > 0.6
    assert np.std(result.solution[0][0]["w"]) > 0.01


def test_bad_arguments(digits, parts):
    with pytest.raises(ValueError, match="l2 must be a finite number above 0, got -1"):
        rk.tasks.regularisation(digits, parts, l2=-1)
    with pytest.raises(ValueError, match="needs the splits train, validation, got train"):
        rk.tasks.regularisation(digits, {"train": parts["train"]})

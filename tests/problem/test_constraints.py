"""Projections of a problem: what is accepted, and that what is none is found out."""

from typing import Any

import jax.numpy as jnp
import numpy as np
import optax
import pytest

import rookery as rk
from rookery.problem.constraints import check_projections, projected


def loss(w, row):
    return jnp.sum(w) * row


def payoff(x, y, row):
    return jnp.sum(x) * jnp.sum(y) * row


def box(w):
    return jnp.clip(w, -1.0, 1.0)


NUMBER: Any = 3


def test_a_variable_without_a_set_stays_as_it_is():
    problem = rk.Minimax(payoff, project={"y": box})
    assert projected(problem, "x", 7.0) == 7.0
    assert projected(problem, "y", jnp.array(7.0)) == 1.0


@pytest.mark.parametrize(
    ("build", "error", "said"),
    [
        (lambda: rk.Minimax(payoff, project=box), TypeError, r"project must map .* \(x, y\)"),
        (lambda: rk.Minimax(payoff, project={"z": box}), ValueError, "project has 'z'"),
        (
            lambda: rk.SingleLevel(loss, project={"w": NUMBER}),
            TypeError,
            r"project\['w'\] .* got 3",
        ),
        (lambda: rk.SingleLevel(loss, project=NUMBER), TypeError, "got 3"),
        (lambda: rk.Bilevel(payoff, payoff, project={"y": box}), ValueError, "project has 'y'"),
    ],
)
def test_what_is_no_projection_of_a_variable_is_refused(build, error, said, wrong_types):
    with pytest.raises(error, match=said):
        build()


@pytest.mark.parametrize(
    ("project", "start", "said"),
    [
        (box, np.array([2.0, 0.0]), "the start of w is outside its set"),
        (lambda w: w / 2, np.zeros(2), "applied twice"),
        (lambda w: jnp.sum(w), np.zeros(2), "must return what it is given"),
    ],
)
def test_a_function_that_is_not_idempotent_is_found_out(project, start, said):
    with pytest.raises(ValueError, match=said):
        rk.SingleLevel(loss, project=project).check((start,), lambda split: jnp.array(1.0))


@pytest.mark.parametrize(
    "project",
    [
        optax.projections.projection_simplex,
        optax.projections.projection_non_negative,
        optax.projections.projection_l2_ball,
        box,
    ],
)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_projections_of_optax_pass(project, dtype):
    problem = rk.SingleLevel(loss, project=project)
    check_projections(problem, (np.full(4, 0.25, dtype),))

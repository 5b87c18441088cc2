"""Proximal steps: a penalty without a gradient, such as the sum of absolute values."""

from collections.abc import Callable

import optax

from rookery import tree
from rookery.types import Number, Tree


def proximal_sgd(
    learning_rate: Number, prox: Callable[[Tree, Number], Tree]
) -> optax.GradientTransformation:
    """A gradient step and the proximal operator of a penalty r:  w+ = prox(w - a g, a).

    It is an Optax transformation, for use as an :class:`Optimiser` wherever the direction is a
    gradient: the server's steps of FedMBO, SOBA, GDA or SCGD. FedAvg's server moves along a
    difference of models, in which a is not the whole step size.

    >>> import jax.numpy as jnp
    >>> def soft_threshold(w, a):  # of the penalty 0.3 |w|_1
    ...     return jnp.sign(w) * jnp.maximum(jnp.abs(w) - 0.3 * a, 0.0)
    >>> import rookery as rk
    >>> sparse = rk.parts.Optimiser(proximal_sgd, learning_rate=0.1, prox=soft_threshold)
    >>> w, _ = sparse.move(jnp.zeros(2), sparse.first_opt(jnp.zeros(2)), jnp.array([1.0, 0.01]), 0)
    >>> [round(float(a), 4) for a in w]
    [0.97, 0.0]

    Args:
        learning_rate: a.
        prox: takes a value of the variable and a; returns argmin_u  r(u) + |u - value|² / (2 a).
    """
    if callable(learning_rate):
        raise TypeError(
            "proximal_sgd takes no schedule of Optax: prox needs the step size as a number. Wrap "
            "it as rk.parts.ByRound(schedule), which counts rounds."
        )

    def update(updates, state, params=None):
        if params is None:
            raise ValueError("proximal_sgd needs the variable itself, not its direction alone.")
        target = prox(tree.axpy(-learning_rate, updates, params), learning_rate)
        return tree.sub(target, params), state

    return optax.GradientTransformation(lambda params: optax.EmptyState(), update)

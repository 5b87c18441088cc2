"""FederatedCG: the adjoint by conjugate gradients on the mean inner Hessian.

After k products the error is the least that any polynomial of degree k in the Hessian can reach;
a Neumann series of k hops is one such polynomial. It needs no L. In return it trusts that all
products come from one matrix: sampled clients or mini-batches spoil the conjugacy, and then the
series, which forgives noise, is the better choice.
"""

from dataclasses import KW_ONLY

import jax
import jax.numpy as jnp

from rookery import check, tree
from rookery.algorithms.shared.adjoint import AbstractAdjoint


class FederatedCG(AbstractAdjoint):
    """A fixed number of conjugate-gradient iterations from zero.

    It costs ``iterations`` + 1 exchanges.

    Args:
        iterations: products with the mean Hessian; as many as y has numbers give v exactly.
    """

    _: KW_ONLY
    iterations: int = 5

    def __check_init__(self):
        check.count("FederatedCG.iterations", self.iterations)

    def solve(self, system, L, key):
        """The last iterate, and L untouched."""
        start_key, product_key = jax.random.split(key)
        r = system.right_side(start_key)

        def iterate(k, carry):
            v, r, p, rr = carry
            image = system.product(p, jax.random.fold_in(product_key, k))
            step = _ratio(rr, tree.dot(p, image))
            v, r = tree.axpy(step, p, v), tree.axpy(-step, image, r)
            new_rr = tree.dot(r, r)
            return v, r, tree.axpy(_ratio(new_rr, rr), p, r), new_rr

        start = (tree.zeros_like(r), r, r, tree.dot(r, r))
        return system.repeat(self.iterations, iterate, start)[0], L


def _ratio(a: jax.Array, b: jax.Array) -> jax.Array:
    """The quotient a / b, or zero where a solved system leaves nothing to divide by."""
    return jnp.where(b > 0, a / jnp.where(b > 0, b, jnp.ones_like(b)), jnp.zeros_like(a))

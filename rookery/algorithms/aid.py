"""AID: approximate implicit differentiation, the hypergradient by conjugate gradients.

K. Ji, J. Yang, Y. Liang. Bilevel optimization: convergence analysis and enhanced design. ICML 2021,
arXiv:2010.07962. The method for a single machine, its gradients and products computed as means over
clients; no client takes a local step. With all clients and full batches it is that of the pooled
data.

    paper   code                    meaning
    x, y    x, y                    outer and inner variable
    α, β    outer_lr, inner_lr      step sizes
    D       inner_rounds            inner steps per round
    N       adjoint                 conjugate gradients, or a Neumann series

Cost of a round: D + N + 2 exchanges, D + 1 on minimax problems, D + 2 on compositions. Departure
from the paper: conjugate gradients start from zero in every round, not from the last v.
"""

from dataclasses import KW_ONLY
from typing import Unpack

import jax

from rookery import check
from rookery.algorithms.nested import Nested, ServerStepsSettings, server_steps
from rookery.algorithms.shared.adjoint import AbstractAdjoint
from rookery.algorithms.shared.system import conjugate_gradients
from rookery.signature import expands


@expands(server_steps)
def AID(
    *, adjoint: AbstractAdjoint | None = None, **settings: Unpack[ServerStepsSettings]
) -> Nested:
    """Gradient steps inside, then a step along the hypergradient of an approximate adjoint.

    ``adjoint`` is how v is found: :class:`FederatedCG` with ten iterations if None, or
    :class:`FedIHGPSum` for a Neumann series. The other settings are those of :class:`Nested`.

    >>> AID(outer_lr=0.05, inner_lr=0.1, clients=10).name
    'AID'
    """
    chosen = FederatedCG(iterations=10) if adjoint is None else adjoint
    return server_steps("AID", chosen, **settings)


class FederatedCG(AbstractAdjoint):
    """A fixed number of conjugate-gradient iterations from zero, on the mean inner Hessian.

    After k products the error is the least that any polynomial of degree k in the Hessian can
    reach; a Neumann series of k hops is one such polynomial. It needs no L. In return it assumes
    that all products come from one matrix: sampled clients or mini-batches destroy the conjugacy,
    and then the series, which tolerates noise, is the better choice. It costs ``iterations`` + 1
    exchanges.

    Args:
        iterations: products with the mean Hessian; as many as y has numbers give v exactly.

    >>> FederatedCG(iterations=3).iterations
    3
    """

    _: KW_ONLY
    iterations: int = 5

    def __check_init__(self):
        check.count("FederatedCG.iterations", self.iterations)

    def solve(self, system, L, key):
        """The last iterate, and L untouched."""
        start_key, product_key = jax.random.split(key)
        r = system.right_side(start_key)

        def key_of(k):
            return jax.random.fold_in(product_key, k)

        return conjugate_gradients(system, r, self.iterations, key_of), L

"""StocBiO: stochastic bilevel optimisation with a Neumann series of mini-batch products.

K. Ji, J. Yang, Y. Liang. Bilevel optimization: convergence analysis and enhanced design. ICML 2021,
arXiv:2010.07962. The method for a single machine, its gradients and products computed as means over
clients; no client takes a local step.

    paper   code                    meaning
    x, y    x, y                    outer and inner variable
    α, β    outer_lr, inner_lr      step sizes
    D       inner_rounds            inner steps per round
    Q       terms                   length of the Neumann series
    η       adjoint_lr              its step
    v       η Σ_n Π (I - η g_yy) f_y, n from 0 to Q

Cost of a round: D + Q + 2 exchanges, D + 1 on minimax problems, D + 2 on compositions. Departures
from the paper: all batches have one size, and f_x has rows of its own.
"""

from typing import Unpack

from rookery.algorithms.fednest.fedihgp import FedIHGPSum
from rookery.algorithms.nested import Nested, ServerStepsSettings, server_steps
from rookery.algorithms.shared.step_rule import check_number
from rookery.signature import expands


@expands(server_steps)
def StocBiO(
    *, terms: int = 10, adjoint_lr: float = 0.1, **settings: Unpack[ServerStepsSettings]
) -> Nested:
    """Stochastic steps inside, and a Neumann series whose every product has a batch of its own.

    ``terms`` is Q. ``adjoint_lr`` is η, below 2 over the largest eigenvalue of the inner Hessian.
    The other settings are those of :class:`Nested`.

    >>> StocBiO(outer_lr=0.05, inner_lr=0.1, terms=5, adjoint_lr=0.2).name
    'StocBiO'
    """
    check_number("StocBiO", "adjoint_lr", adjoint_lr, "It is the step of a Neumann series.")
    series = FedIHGPSum(terms=terms, lipschitz=1 / adjoint_lr)
    return server_steps("StocBiO", series, **settings)

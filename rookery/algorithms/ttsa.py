"""TTSA: two-timescale stochastic approximation, one step inside and one outside.

M. Hong, H.-T. Wai, Z. Wang, Z. Yang. A two-timescale framework for bilevel optimization: complexity
analysis and application to actor-critic. SIAM J. Optim. 2023, arXiv:2007.05170. The method for a
single machine, its gradients and products computed as means over clients; no client takes a local
step.

    paper   code                    meaning
    x, y    x, y                    outer and inner variable
    α, β    outer_lr, inner_lr      step sizes: α / (k+1)^3/5 and β / (k+1)^2/5 in round k
    N       terms                   length of the Neumann series; v is one product of N' < N hops

Cost of a round: N' + 3 exchanges, 2 on minimax problems, 3 on compositions, and one more in a round
that estimates L. Departure from the paper: the sizes fall with the round, so that the number of
rounds need not be known.
"""

from typing import Unpack

from rookery.algorithms.fednest.fedihgp import FedIHGP
from rookery.algorithms.nested import Nested, server_steps
from rookery.algorithms.shared.lipschitz import Lipschitz, given_or_estimated
from rookery.algorithms.shared.schedule import PowerDecay
from rookery.algorithms.shared.step_rule import check_number
from rookery.algorithms.shared.two_level import TwoLevelAlgorithm, TwoLevelSettings
from rookery.signature import expands


@expands(TwoLevelAlgorithm)
def TTSA(
    *,
    outer_lr: float,
    inner_lr: float,
    terms: int = 10,
    lipschitz: Lipschitz | None = None,
    **shared: Unpack[TwoLevelSettings],
) -> Nested:
    """One stochastic step inside and one outside, whose sizes fall at two speeds.

    ``terms`` is N, ``lipschitz`` is L, or how to estimate it (:class:`PowerIteration` if None). The
    other settings are those of :class:`Nested`.

    >>> TTSA(outer_lr=0.05, inner_lr=0.1, terms=5).name
    'TTSA'
    """
    for name, lr in (("outer_lr", outer_lr), ("inner_lr", inner_lr)):
        check_number("TTSA", name, lr, "Its two speeds are the method.")
    return server_steps(
        "TTSA",
        FedIHGP(terms=terms, lipschitz=given_or_estimated(lipschitz)),
        outer_lr=PowerDecay(outer_lr, 3 / 5),
        inner_lr=PowerDecay(inner_lr, 2 / 5),
        inner_rounds=1,
        **shared,
    )

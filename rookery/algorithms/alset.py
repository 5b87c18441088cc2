"""ALSET: alternating stochastic gradient steps with sizes made for a known number of rounds.

T. Chen, Y. Sun, W. Yin. Closing the gap: tighter analysis of alternating stochastic gradient
methods for bilevel problems. NeurIPS 2021. It is BSA (S. Ghadimi, M. Wang,
arXiv:1802.02246) with a fixed number of inner steps. The method for a single machine, its gradients
and products computed as means over clients; no client takes a local step.

    paper   code                    meaning
    x, y    x, y                    outer and inner variable
    α, β    outer_lr, inner_lr      step sizes, divided by √K
    K       horizon                 rounds of the run
    T       inner_rounds            inner steps per round
    N       terms                   length of the Neumann series; v is one product of N' < N hops

Cost of a round: T + N' + 2 exchanges, T + 1 on minimax problems, T + 2 on compositions, and one
more in a round that estimates L. Departure from the paper: β is chosen by hand, since its theorem's
multiple of α needs constants that are not known in practice.
"""

import math
from typing import Unpack

from rookery import check
from rookery.algorithms.fednest.fedihgp import FedIHGP
from rookery.algorithms.nested import Nested, server_steps
from rookery.algorithms.shared.lipschitz import Lipschitz, given_or_estimated
from rookery.algorithms.shared.step_rule import check_number
from rookery.algorithms.shared.two_level import TwoLevelAlgorithm, TwoLevelSettings
from rookery.signature import expands


@expands(TwoLevelAlgorithm)
def ALSET(
    *,
    outer_lr: float,
    inner_lr: float,
    horizon: int,
    inner_rounds: int = 10,
    terms: int = 10,
    lipschitz: Lipschitz | None = None,
    **shared: Unpack[TwoLevelSettings],
) -> Nested:
    """Stochastic steps inside, a product of random length outside, and sizes made for K rounds.

    ``horizon`` is K, the rounds of the run: a step has the size α / √K or β / √K. ``terms`` is N,
    ``lipschitz`` is L, or how to estimate it (:class:`PowerIteration` if None). The other settings
    are those of :class:`Nested`.

    >>> ALSET(outer_lr=0.2, inner_lr=0.4, horizon=100).name
    'ALSET'
    """
    check.count("horizon", horizon)
    for name, lr in (("outer_lr", outer_lr), ("inner_lr", inner_lr)):
        check_number("ALSET", name, lr, "It divides the sizes by the root of the horizon.")
    return server_steps(
        "ALSET",
        FedIHGP(terms=terms, lipschitz=given_or_estimated(lipschitz)),
        outer_lr=outer_lr / math.sqrt(horizon),
        inner_lr=inner_lr / math.sqrt(horizon),
        inner_rounds=inner_rounds,
        **shared,
    )

"""Random problems with known solutions and exact gradients, to test algorithms against.

Each holds the arrays of all clients as [clients, rows, ...] and has ``problem``, ``data``,
``start``, ``solution()`` and ``gradient(x)`` (``hypergradient(x)`` for bilevel problems,
``residual(blocks)`` for multi-sequence ones). ``Population.stacked(member.data)`` are its clients.
"""

from rookery.problem.zoo.composition import LinearChain, linear_chain, scalar_composition
from rookery.problem.zoo.conditional import ConditionalQuadratic, conditional_quadratic
from rookery.problem.zoo.gan import DiracGAN, dirac_gan
from rookery.problem.zoo.linear_sequences import LinearSequences, linear_sequences
from rookery.problem.zoo.pair_risk import PairRisk, pair_risk
from rookery.problem.zoo.personal import PersonalQuadratic, personal_quadratic
from rookery.problem.zoo.quadratic import QuadraticBilevel, quadratic_bilevel, scalar_bilevel
from rookery.problem.zoo.robust import (
    CubicMAML,
    QuadraticLosses,
    RobustQuadratic,
    cubic_maml,
    quadratic_losses,
    robust_quadratic,
)
from rookery.problem.zoo.saddle import QuadraticSaddle, fednest_saddle, saddle
from rookery.problem.zoo.semideviation import MeanSemideviation, mean_semideviation

__all__ = [
    "ConditionalQuadratic",
    "CubicMAML",
    "DiracGAN",
    "LinearChain",
    "LinearSequences",
    "MeanSemideviation",
    "PairRisk",
    "PersonalQuadratic",
    "QuadraticBilevel",
    "QuadraticLosses",
    "QuadraticSaddle",
    "RobustQuadratic",
    "conditional_quadratic",
    "cubic_maml",
    "dirac_gan",
    "fednest_saddle",
    "linear_chain",
    "linear_sequences",
    "mean_semideviation",
    "pair_risk",
    "personal_quadratic",
    "quadratic_bilevel",
    "quadratic_losses",
    "robust_quadratic",
    "saddle",
    "scalar_bilevel",
    "scalar_composition",
]

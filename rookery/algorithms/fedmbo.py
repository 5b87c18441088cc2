"""FedMBO: federated bilevel optimisation whose variance falls with the number of clients.

M. Huang, D. Zhang, K. Ji. Achieving linear speedup in non-IID federated bilevel learning.
ICML 2023, arXiv:2302.05412.

    paper   code                            meaning
    x, y    x, y                            outer and inner variable
    α, β    outer_lr, inner_lr              step sizes, both taken by the server
    T       inner_rounds                    inner steps per round
    n       clients, hypergradient.chains   who takes part in an exchange; chains side by side
    S       batch_size                      rows per evaluation on a client
    N       hypergradient.terms             length of the Neumann series
    ℓ_g,1   hypergradient.lipschitz         largest eigenvalue of the inner Hessian

Cost of a round: T + max_i N_i + 2 exchanges with PHE (N_i hops drawn by chain i), T + N + 2 with
PHESum, and one more in a round that estimates L. Departures from the paper: PHESum is the default,
since a random length is noise that no batch size removes; the clients of the chains are drawn
independently, as the proof assumes, and by their weights, so that unequal weights are right too;
d_i is f_x, where algorithm 2 prints f_y; an inner step starts from the newest y.
"""

from dataclasses import KW_ONLY

import equinox as eqx

from rookery.algorithms.nested import AbstractNested, Nested
from rookery.algorithms.parts.phe import PHESum
from rookery.algorithms.shared import local
from rookery.algorithms.shared.interface import AbstractHypergradient
from rookery.algorithms.shared.server import ServerSGD, ServerStep
from rookery.program.participation import AbstractParticipation, participation


class FedMBO(AbstractNested):
    """The server takes all steps, along mini-batch gradients of sampled clients.

    Args:
        outer_lr: α.
        inner_lr: β.
        inner_rounds: T.
        hypergradient: the estimator of the outer gradient.
        clients: how many take part in an exchange, a rule that draws them, or None for everyone.
        batch_size: rows per stochastic evaluation on a client; None is all its rows.
    """

    _: KW_ONLY
    outer_lr: float = eqx.field(converter=local.number)
    inner_lr: float = eqx.field(converter=local.number)
    inner_rounds: int = 1
    hypergradient: AbstractHypergradient = eqx.field(default_factory=PHESum)
    clients: AbstractParticipation = eqx.field(converter=participation, default=None)
    batch_size: int | None = None

    def parts(self) -> Nested:
        """T steps of the server inside, and one outside."""
        return Nested(
            inner=ServerSGD(lr=self.inner_lr),
            outer=ServerStep(lr=self.outer_lr, hypergradient=self.hypergradient),
            inner_rounds=self.inner_rounds,
            clients=self.clients,
            batch_size=self.batch_size,
        )

"""FedGDA-GT: local descent-ascent with gradient tracking, whose limit is exact.

Z. Sun, E. Wei. A communication-efficient algorithm with linear convergence for federated minimax
learning. NeurIPS 2022, arXiv:2206.01132.

    paper   code                    meaning
    x, y    u, the blocks
    η       outer_lr, inner_lr      step sizes
    K       local_steps

    exchange 1      h = mean of s_i(u),  s = (f_x, -f_y)
    exchange 2      K times  w = w - η (s_i(w) - s_i(u) + h);  u = mean of w

This is FedMSA with renewal 1 and all clients in both exchanges: the local differences add up to
s_i(w) - s_i(u). FedMSA's round 0 takes one local step. Cost of a round: 2 exchanges.
"""

from rookery.algorithms.fedmsa.fedmsa import FedMSA
from rookery.program.algorithm import with_settings_of
from rookery.program.participation import Everyone

CHOSEN = ("renewal", "momentum_clients", "clients", "warm_up", "output", "first_batch")


@with_settings_of(FedMSA, without=CHOSEN)
def FedGDAGT(**settings) -> FedMSA:
    """Gradient tracking on a minimax problem.

    >>> FedGDAGT(outer_lr=0.05, inner_lr=0.05, local_steps=10).renewal
    1.0
    """
    return FedMSA(**settings, renewal=1.0, clients=Everyone(), label="FedGDAGT")

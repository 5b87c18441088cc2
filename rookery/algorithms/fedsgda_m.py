"""FedSGDA-M and optimistic descent-ascent: local steps on a minimax problem with an estimator.

FedSGDA-M: X. Wu, J. Sun, Z. Hu, A. Zhang, H. Huang. Solving a class of non-convex minimax
optimization in federated learning. NeurIPS 2023, arXiv:2310.03613. Reconstructed: its program was
not released.

Optimistic descent-ascent: C. Daskalakis, A. Ilyas, V. Syrgkanis, H. Zeng. Training GANs with
optimism. ICLR 2018, arXiv:1711.00141.

    paper       code                    meaning
    x, y        w, the blocks           minimising and maximising variable
    u, v        d                       estimates of f_x and -f_y (:class:`STORM`)
    γ, λ        outer_lr, inner_lr      step sizes
    η_t         STORM.rate              scales both
    Q           local_steps             local steps between two averages

    FedSGDAM        the rounds of :class:`FedBiOAcc` on the maps (f_x, -f_y)
    OptimisticGDA   d = 2 s_t - s_{t-1}, local or, with one local step, at the server: it converges
                    where plain descent-ascent cycles

Cost of a round: 1 exchange, x, y and their estimates down and up; one more in round 0 for the first
estimate. An optimistic step of a clipped gradient may be three times as long as the bound: clip
after the combination.
"""

from rookery.algorithms.fedbio import FedBiO
from rookery.algorithms.shared.estimators import STORM, OptimisticEstimator
from rookery.program.algorithm import with_settings_of


@with_settings_of(FedBiO, without=())
def FedSGDAM(**settings) -> FedBiO:
    """Local descent-ascent with recursive momentum, ``estimator=STORM(c, rate)``.

    >>> FedSGDAM(outer_lr=0.05, inner_lr=0.1, local_steps=5).name
    'FedSGDAM'
    """
    return FedBiO(**{"estimator": STORM(), **settings}, label="FedSGDAM")


@with_settings_of(FedBiO, without=("estimator",))
def OptimisticGDA(**settings) -> FedBiO:
    """Optimistic descent-ascent.

    >>> OptimisticGDA(outer_lr=0.05, inner_lr=0.05).name
    'OptimisticGDA'
    """
    return FedBiO(**settings, estimator=OptimisticEstimator(), label="OptimisticGDA")

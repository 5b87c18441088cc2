"""FCSG, FCSG-M and Acc-FCSG-M: local steps along the plug-in gradient of a conditional problem.

X. Wu, J. Sun, Z. Hu, J. Li, A. Zhang, H. Huang. Federated conditional stochastic optimization.
NeurIPS 2023, arXiv:2310.02524.

    paper       code                    meaning
    x           w                       the variable
    ξ, η        row, row["draws"]       outer example, and an inner draw given it
    m           problem.m_in            inner draws per outer example
    G           maps                    gradient of the plug-in on a batch
    u           d                       its estimate (momentum, STORM)
    η_t         outer_lr                local step size
    a           1 - momentum            what a step renews of the momentum
    c, α        STORM(c, α)             recursive momentum
    Q           local_steps             local steps between two averages

    FCSG        d = G(w)
    FCSGM       d = (1 - a) d + a G(w)
    AccFCSGM    d = G(w') + (1 - c α²) (d - G(w)),  on one batch and the same inner draws

They are the rounds of :class:`FedBiO` on one block. After an average both points of the next
difference start at the averaged one: the authors' program keeps the client's own last point there.
With a = 1 FCSGM is FCSG. The plug-in's bias is O(1 / m_in), whatever the method.

Cost of a round: 1 exchange, w down and up; FCSGM and AccFCSGM have their estimate beside it, and
one exchange more in round 0, for the mean of the first estimates. A gradient takes 1 + m_in
evaluations per row, twice as many in AccFCSGM.
"""

from rookery.algorithms.fedbio import FedBiO
from rookery.algorithms.shared.estimators import STORM, MomentumEstimator, of_type
from rookery.algorithms.shared.views import ConditionalView
from rookery.program.algorithm import with_settings_of

ONE_BLOCK = {"inner_lr": (), "view": ConditionalView()}
"""Settings of FedBiO for w alone."""


@with_settings_of(FedBiO, without=(*ONE_BLOCK, "estimator", "first_batch"))
def FCSG(**settings) -> FedBiO:
    """Local steps of ``outer_lr`` along the plug-in gradient; the iterates are averaged.

    >>> FCSG(outer_lr=0.05, local_steps=5, clients=10, batch_size=8).name
    'FCSG'
    """
    return FedBiO(**settings, **ONE_BLOCK, label="FCSG")


@with_settings_of(FedBiO, without=(*ONE_BLOCK, "codec", "error_feedback"))
def FCSGM(**settings) -> FedBiO:
    """FCSG with momentum, ``estimator=MomentumEstimator(1 - a)``; the momentum is averaged too.

    >>> import rookery as rk
    >>> FCSGM(outer_lr=0.05, estimator=rk.parts.MomentumEstimator(0.9)).name
    'FCSGM'
    """
    momentum = settings.get("estimator", MomentumEstimator(0.9))
    settings["estimator"] = of_type("FCSGM", momentum, MomentumEstimator)
    return FedBiO(**settings, **ONE_BLOCK, label="FCSGM")


@with_settings_of(FedBiO, without=(*ONE_BLOCK, "codec", "error_feedback"))
def AccFCSGM(**settings) -> FedBiO:
    """FCSG with recursive momentum, ``estimator=STORM(c, rate)``.

    >>> AccFCSGM(outer_lr=0.05, local_steps=5).name
    'AccFCSGM'
    """
    settings["estimator"] = of_type("AccFCSGM", settings.get("estimator", STORM()), STORM)
    return FedBiO(**settings, **ONE_BLOCK, label="AccFCSGM")

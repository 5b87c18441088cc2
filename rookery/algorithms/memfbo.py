"""MemFBO: a single loop with local steps, by gradients alone.

Y. Yang, P. Xiao, S. Ma, K. Ji. First-order federated bilevel learning. AAAI 2025,
doi:10.1609/aaai.v39i21.34355. Its abstract has "fully single-loop, all variables simultaneously,
only first-order gradients"; the update itself was not at hand, and this one is a reconstruction:
the rounds of SimFBO on the blocks of a penalty.

    x, y_+, y_-     the blocks of :class:`PenaltyView`: outer variable, and the minimisers of
                    g + f / σ and g - f / σ
    client          τ_i times  w = w - η s_i(w; ξ),  q_i = the sum of these maps
    server          u = u - γ Σ p~_i q_i

The fixed point is off by O(1 / σ²), and by the drift of local steps. The inner variables lag behind
a moving x, and σ multiplies their lag: η and γ of x must shrink like 1 / σ. Cost of a round:
1 exchange, x and two inner variables down and up; no second derivative, unless steps are not given:
sizes are then found by Hessian-vector products (:class:`Curvature`). FedMSA with the same view has
two exchanges and no drift.
"""

from rookery.algorithms.shared.penalty_view import PenaltyView
from rookery.algorithms.simfbo import SimFBO
from rookery.program.algorithm import with_settings_of


@with_settings_of(SimFBO, without=())
def MemFBO(**settings) -> SimFBO:
    """SimFBO on the blocks of a penalty: ``view=PenaltyView(sigma)``, σ = 10 if not given.

    ``normalised=True`` is its form for unequal numbers of local steps.

    >>> MemFBO(outer_lr=0.01, inner_lr=0.1, server_lr=0.1, local_steps=5).view.sigma
    10.0
    """
    if settings.get("view") is None:
        settings["view"] = PenaltyView()
    if not isinstance(settings["view"], PenaltyView):
        raise TypeError(
            f"view of MemFBO must be a PenaltyView, got {settings['view']!r}. With another view it "
            "is SimFBO."
        )
    return SimFBO(**settings, label="MemFBO")

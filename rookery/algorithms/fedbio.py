"""FedBiO and FedBiOAcc: local steps of x, y and v, whose iterates are averaged.

J. Li, F. Huang, H. Huang. Communication-efficient federated bilevel optimization with global and
local lower level problems. NeurIPS 2023, arXiv:2302.06701. Reconstructed from its abstract and from
the equations as others quote them; the full text was not at hand.

    paper           code                    meaning
    x, y, u         w, the blocks           outer and inner variable, adjoint: g_yy u = f_y
    ν, ω, q         d                       estimates of their maps
    η, γ, θ         outer_lr, inner_lr      step sizes
    α_t             rate                    scales all steps, as δ / (u_0 + t)^(1/3)
    c_ν, c_ω, c_u   renewal                 an estimate keeps 1 - c α_t² of its past
    I               local_steps             local steps between two averages

    FedBiO      I times  w = w - η s_i(w; ξ);  then the mean of w
    FedBiOAcc   I times  w' = w - η α_t d,  d = s_i(w'; ξ) + (1 - c α_t²) (d - s_i(w; ξ));
                then the means of w and d

FedBiO is SimFBO with the server's step equal to the clients'. FedBiOAcc lowers the noise of
samples, not the drift of local steps: at a constant α both end O(α I) from the solution, whatever
c is; FedMSA's limit is exact. Averages start both points of the next difference: the first step of
a round starts at the mean, and so does its difference. From the client's own last point, which it
would have to keep, the drift falls with c (:class:`FedBiOAccLocal`; experiments/theory_drift).
The paper has all clients in every round; the mean over a sampled cohort is normalised by the sum of
its weights, or unbiased (``weighting``).

Cost of a round: 1 exchange; FedBiO has all three variables down and up, FedBiOAcc these and their
estimates; its round 0 has one exchange more, for the mean of the first estimates. FedBiOAcc
evaluates every map twice in a local step. On problems of other classes the blocks are those of its
view.
"""

from typing import ClassVar

from rookery.algorithms.shared.estimators import STORM, of_type
from rookery.algorithms.shared.local_blocks import (
    AbstractLocalBlocks,
    LocalBlocksState,
    LocalSteps,
)
from rookery.algorithms.shared.local_sizes import after
from rookery.algorithms.shared.views import Blocks
from rookery.program.algorithm import with_settings_of
from rookery.program.federation import AbstractFederation
from rookery.types import Key, Problem


class FedBiO(AbstractLocalBlocks):
    """Local steps on all blocks; the server averages the clients' iterates.

    >>> FedBiO(outer_lr=0.05, inner_lr=(0.1, 0.05), local_steps=5, clients=10).local_steps
    5
    """

    sends_iterates: ClassVar[bool] = True

    def reply(self, steps: LocalSteps) -> Blocks:
        """The blocks after the last step."""
        return steps.w

    def round(
        self, fed: AbstractFederation, problem: Problem, state: LocalBlocksState, key: Key
    ) -> LocalBlocksState:
        """One exchange: the means of the iterates, and of the estimates if they are kept."""
        w, d, own, feedback = self.mean_reply(fed, problem, state, key)  # -- down and up  u (and d)
        variables, added = self.inside(problem, w)
        own = after(self, own, state.u, (*variables, *added))
        return LocalBlocksState(variables, added, d, (), own, feedback)


@with_settings_of(FedBiO, without=("codec", "error_feedback"))
def FedBiOAcc(**settings) -> FedBiO:
    """FedBiO with recursive momentum: ``estimator=STORM(c, α_t)``, c = 1 if not given.

    >>> import rookery as rk
    >>> rate = rk.parts.PowerDecay(1.0, 1 / 3)
    >>> FedBiOAcc(outer_lr=0.05, inner_lr=0.1, estimator=rk.parts.STORM(0.5, rate)).name
    'FedBiOAcc'
    """
    settings["estimator"] = of_type("FedBiOAcc", settings.get("estimator", STORM()), STORM)
    return FedBiO(**settings, label="FedBiOAcc")

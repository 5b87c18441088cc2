"""SimFBO and ShroFBO: one exchange a round, in which x, y and v move at once.

Y. Yang, P. Xiao, K. Ji. SimFBO: towards simple, flexible and communication-efficient federated
bilevel learning. NeurIPS 2023, arXiv:2305.19442. Reconstructed from its abstract and from the
equations as others quote them; the full text was not at hand.

    paper           code                    meaning
    x, y, v         u, the blocks           outer and inner variable, adjoint: g_yy v = f_y
    s_i             view.maps               (f_x - g_xy v,  g_y,  g_yy v - f_y)
    τ_i             local_steps             local steps of a client
    η               outer_lr, inner_lr      step rules of the clients
    γ               server_lr               step rules of the server
    q_i             total                   the sum of a client's maps along its steps
    p~_i            weighting               (m / |C|) p_i over the cohort C, or normalised
    r               radius                  v is projected onto the ball of this radius, after the
                                            mean: a client that projects would change the method

    client      τ_i times  w = w - η s_i(w; ξ),  q_i = the sum of these maps
    SimFBO      u = u - γ Σ p~_i q_i
    ShroFBO     u = u - γ ρ Σ p~_i q_i / τ_i,  ρ = Σ p~_i τ_i

The paper weighs the maps of a client's steps by a_i^k; here all are 1, and |a_i|_1 is τ_i.
Where clients take unequal numbers of steps SimFBO solves another problem, in which a client counts
by its number; ShroFBO solves the right one up to the drift of local steps. For equal numbers they
are the same. Cost of a round: 1 exchange, all three variables down and up, and a number up for
ShroFBO. On problems of other classes the blocks are those of its view.
"""

from dataclasses import KW_ONLY
from typing import ClassVar

import equinox as eqx
import jax.numpy as jnp

from rookery import tree
from rookery.algorithms.shared import local
from rookery.algorithms.shared.auto import ServerOpts
from rookery.algorithms.shared.blocks import Radius, check_radius, descend
from rookery.algorithms.shared.local_blocks import (
    AbstractLocalBlocks,
    LocalBlocksState,
    LocalSteps,
)
from rookery.algorithms.shared.step_rule import (
    StepRule,
    StepRules,
    all_observed,
    check_step_rules,
    each_rule,
    first_opt,
    is_auto,
    server_rules,
    step_rules,
)
from rookery.algorithms.shared.views import Blocks, view_of
from rookery.algorithms.shared.weighting import Weighting
from rookery.program.algorithm import with_settings_of
from rookery.program.federation import AbstractFederation
from rookery.types import Key, Problem, Tree


class SimFBO(AbstractLocalBlocks):
    """Local steps on all blocks; the server steps along the sums of the clients' maps.

    Args:
        server_lr: γ, the server's step rule, one for all blocks or a tuple with one each, x first.
            None, or "auto", is the rule of the clients, for the sum of whose directions it is
            divided by the number of local steps.
        weighting: of a sampled cohort, "unbiased" as in the paper or "normalised"
            (:class:`AbstractLocalBlocks`).
        normalised: whether sums are divided by the number of steps (ShroFBO).
        inner_radius: the largest norm of the blocks other than x, one for all or a tuple with one
            each, where inf is no bound; (inf, r) bounds v. None bounds none.

    >>> SimFBO(outer_lr=0.05, inner_lr=0.1, server_lr=0.1, local_steps=5, clients=10).weighting
    'unbiased'
    """

    sends_iterates: ClassVar[bool] = False

    _: KW_ONLY
    server_lr: StepRules | None = eqx.field(converter=server_rules, default=None)
    weighting: Weighting = "unbiased"
    normalised: bool = False
    inner_radius: Radius = eqx.field(converter=step_rules, default=None)

    def __check_init__(self):
        if self.server_lr is not None:
            check_step_rules("server_lr", self.server_lr)
        elif not all(map(is_auto, self._local_rules(2))):
            raise ValueError(
                f"{self.name} got step rules of the clients and none of the server. Give server_lr "
                "as well, or leave out all three."
            )
        check_radius("inner_radius", self.inner_radius)

    def check(self, problem: Problem, n_clients: int) -> None:
        """Raise unless the problem has blocks and the settings fit them and the clients."""
        super().check(problem, n_clients)
        n = view_of(problem, self.view).n_blocks(problem)
        if self.server_lr is not None:
            check_step_rules("server_lr", self.server_lr, n)
        check_radius("inner_radius", self.inner_radius, n - 1)

    def server_rules(self, n_blocks: int) -> tuple[StepRule, ...]:
        """One for each block."""
        rules = self.server_lr
        if rules is None:
            return self._local_rules(n_blocks)
        return rules if isinstance(rules, tuple) else each_rule(rules, rules, n_blocks)

    def _local_rules(self, n_blocks: int) -> tuple[StepRule, ...]:
        """Those of the clients."""
        return each_rule(self.outer_lr, self.inner_lr, n_blocks)

    def first_opts(self, problem: Problem, u: Blocks) -> tuple[Tree, ...]:
        """No optimiser of the server has taken a step; the clients' sizes are kept elsewhere."""
        if self.server_lr is None:
            return ()
        return tuple(map(first_opt, self.server_rules(len(u)), u))

    def reply(self, steps: LocalSteps) -> Tree:
        """q_i, or q_i / τ_i and τ_i."""
        if not self.normalised:
            return steps.total
        tau = jnp.asarray(steps.steps, float)
        return tree.scale(1 / tau, steps.total), tau

    def round(
        self, fed: AbstractFederation, problem: Problem, state: LocalBlocksState, key: Key
    ) -> LocalBlocksState:
        """One exchange, and a step of the server along the sum of the replies."""
        q, d, own, feedback = self.mean_reply(fed, problem, state, key)  # -- down  u, up  q_i
        if self.normalised:
            q, rho = q
            q = tree.scale(rho, q)
        u, radius = state.u, self.inner_radius
        rules = self.server_rules(len(u))
        mean = tree.scale(1 / local.most_steps(self.local_steps), q)  # of a local step
        own = all_observed(self._local_rules(len(u)), mean, own, u)
        if self.server_lr is None:
            assert isinstance(own, ServerOpts), "checked at construction"
            new, opts = descend(rules, mean, own.message(), u, fed.round, radius)[0], ()
        else:
            new, opts = descend(rules, q, state.opts, u, fed.round, radius)
        variables, added = self.inside(problem, new)
        return LocalBlocksState(variables, added, d, opts, own, feedback)


@with_settings_of(SimFBO, without=("normalised",))
def ShroFBO(**settings) -> SimFBO:
    """SimFBO for unequal numbers of local steps: sums are normalised, and so solve one problem.

    >>> ShroFBO(outer_lr=0.05, inner_lr=0.1, server_lr=0.1, local_steps=(1, 5, 2)).name
    'ShroFBO'
    """
    return SimFBO(**settings, normalised=True, label="ShroFBO")

"""Fed-Norm-SGDA and Fed-Norm-SGDA+: normalised local descent-ascent with a server step.

P. Sharma, R. Panda, G. Joshi. Federated minimax optimization with client heterogeneity. TMLR 2023,
arXiv:2302.04249. Written from its equations as others quote them.

    paper       code                    meaning
    x, y        u, the blocks           minimising and maximising variable
    η_c         outer_lr, inner_lr      step rules of the clients
    γ_s         server_lr               step rules of the server, x first
    τ_i         local_steps
    g_i         total / τ_i             mean of a client's gradients along its steps
    τ_eff       -                       mean of the τ_i
    x̂, S        z, snapshot_rounds      the "+" form: an old x, renewed every S rounds

    client      τ_i times  x = x - η f_x(x, y),  y = y + η f_y(x, y),  both at the old pair
    "+" form    τ_i times  x = x - η f_x(x, y),  y = y + η f_y(x̂, y)
    server      u = u - γ τ_eff (mean of g_i)

The rounds of the first are those of :func:`ShroFBO` on the blocks (x, y) with the maps (f_x, -f_y).
Plain sums weigh a client by its number of steps, and end at the saddle point of another problem.
Where f is not concave enough in y, the "+" form holds the problem of y still for S rounds; with
S = 1 and one local step it is the first. With equal τ_i it is FedSGDA+ of Wu et al. (NeurIPS 2023).

Cost of a round: 1 exchange, x and y down and up, and a number up; with the "+" form x̂ down too.
"""

from dataclasses import KW_ONLY
from typing import ClassVar

import equinox as eqx
import jax.numpy as jnp

from rookery import check, tree
from rookery.algorithms.shared.blocks import descend
from rookery.algorithms.shared.local_blocks import (
    AbstractLocalBlocks,
    LocalBlocksState,
    LocalSteps,
)
from rookery.algorithms.shared.step_rule import (
    StepRule,
    StepRules,
    check_step_rules,
    each_rule,
    first_opt,
    inner_rules,
    step_rule,
    step_rules,
)
from rookery.algorithms.shared.views import AbstractOneSampleView, AbstractView, Blocks
from rookery.algorithms.simfbo import SimFBO
from rookery.problem.constraints import all_projected
from rookery.problem.minimax import Minimax
from rookery.program.algorithm import check_kind, with_settings_of
from rookery.program.federation import AbstractFederation
from rookery.types import Key, Problem, Sample, Tree


@with_settings_of(SimFBO, without=("normalised",))
def FedNormSGDA(**settings) -> SimFBO:
    """Normalised local descent-ascent.

    >>> FedNormSGDA(outer_lr=0.05, inner_lr=0.1, server_lr=0.1, local_steps=(1, 5, 2)).name
    'FedNormSGDA'
    """
    return SimFBO(**settings, normalised=True, label="FedNormSGDA")


class SnapshotView(AbstractOneSampleView[Minimax]):
    """A minimax problem as (x, y, z): y climbs at z, an old x, which local steps leave alone.

    >>> import rookery as rk
    >>> SnapshotView().n_blocks(rk.zoo.saddle().problem)
    3
    """

    kind: ClassVar[type] = Minimax

    def n_blocks(self, problem: Minimax) -> int:
        """x, y and z."""
        return 3

    def added(self, problem: Minimax, *variables: Tree) -> Blocks:
        """z starts at x."""
        return variables[:1]

    def maps(self, problem: Minimax, blocks: Blocks, samples: tuple[Sample, ...]) -> Blocks:
        """f_x at (x, y), -f_y at (z, y), and zero."""
        (x, y, z), (sample,) = blocks, samples
        down, up = problem.grad_x(x, y, sample), problem.grad_y(z, y, sample)
        return down, tree.scale(-1, up), tree.zeros_like(z)


class FedNormSGDAPlus(AbstractLocalBlocks):
    """Normalised local descent-ascent whose y climbs at a snapshot of x.

    Args:
        outer_lr: step rule of x on the clients.
        inner_lr: that of y.
        server_lr: γ, the server's step rule, one for both variables or a pair, x first.
        snapshot_rounds: S, after how many rounds the snapshot is the newest x.

    >>> steps = {"outer_lr": 0.05, "inner_lr": 0.1, "server_lr": 0.1, "local_steps": (1, 5, 2)}
    >>> FedNormSGDAPlus(**steps, snapshot_rounds=10).snapshot_rounds
    10
    """

    sends_iterates: ClassVar[bool] = False

    _: KW_ONLY
    outer_lr: StepRule = eqx.field(converter=step_rule)
    inner_lr: StepRules = eqx.field(converter=inner_rules)
    server_lr: StepRules = eqx.field(converter=step_rules)
    snapshot_rounds: int
    view: AbstractView | None = eqx.field(default_factory=SnapshotView)

    def __check_init__(self):
        check_step_rules("server_lr", self.server_lr, 2)
        check.count("snapshot_rounds", self.snapshot_rounds)
        if not isinstance(self.view, SnapshotView):
            raise TypeError(
                f"FedNormSGDAPlus has a view of its own, got {self.view!r}. Leave it out."
            )

    def check(self, problem: Problem, n_clients: int) -> None:
        """Raise unless the problem is minimax and the settings fit the clients."""
        check_kind(self, problem, Minimax)
        super().check(problem, n_clients)

    def server_rules(self) -> tuple[StepRule, ...]:
        """Those of x and y."""
        rules = self.server_lr
        return rules if isinstance(rules, tuple) else each_rule(rules, rules, 2)

    def first_opts(self, problem: Problem, u: Blocks) -> tuple[Tree, ...]:
        """No optimiser of the server has taken a step."""
        return tuple(map(first_opt, self.server_rules(), u[:2]))

    def reply(self, steps: LocalSteps) -> Tree:
        """The mean gradients of x and y along the steps, and the number of steps."""
        tau = jnp.asarray(steps.steps, float)
        return tree.scale(1 / tau, steps.total[:2]), tau

    def round(
        self, fed: AbstractFederation, problem: Problem, state: LocalBlocksState, key: Key
    ) -> LocalBlocksState:
        """A new snapshot if it is due, one exchange, and a step of the server."""
        (x, y), (z,) = state.variables, state.added
        z = tree.where(jnp.asarray(fed.round) % self.snapshot_rounds == 0, x, z)
        mean = self.mean_reply(fed, problem, state._replace(added=(z,)), key)
        g, tau = mean.reply  # ------------------------------------- down  x, y, x̂  up  g_i, τ_i
        along = tree.scale(tau, g)
        moved, opts = descend(self.server_rules(), along, state.opts, (x, y), fed.round)
        variables = all_projected(problem, moved)
        return LocalBlocksState(variables, (z,), mean.d, opts, mean.own, mean.feedback)

"""CODASCA: SCAFFOLD on a minimax problem, in stages with a proximal term.

Z. Yuan, Z. Guo, Y. Xu, Y. Ying, T. Yang. Federated deep AUC maximization for heterogeneous data
with a constant communication complexity. ICML 2021, arXiv:2102.04635. From its abstract and public
programs; the text was not at hand. These renew the centre at the start of every stage, of a fixed
number of rounds, and divide the steps by a constant from stage to stage.

    paper       code                    meaning
    v = (w, a, b), α    blocks          minimising and maximising variables of the AUC saddle
    v_0         centre                  where the proximal term pulls to
    1 / γ       mu                      its strength: a stage solves  f + μ/2 |x - centre|²
    T_s         stage_rounds            rounds of a stage; then the centre moves to x
    η_s         outer_lr, inner_lr      step sizes, or schedules that fall with the stages
    I           local_steps             local steps between two averages

    stage       the rounds of SCAFFOLD (``scaffold.py``) along (f_x + μ (x - centre), -f_y)
    restart     centre = x, every ``stage_rounds`` rounds

It is written for the AUC saddle (``rk.tasks.auc``) and takes any minimax problem. Where the problem
is not convex enough in x, a stage is. Centres end where x ends, so the limit is a stationary point
of the problem itself, exact for clients that differ. With mu = 0 it is SCAFFOLD-S.

Cost of a round: that of SCAFFOLD-S. The centre is common to all clients, so it travels inside c,
which is sent anyway: clients step along  f_x + μ x  and c has  - μ centre  in it. Departures from
the authors' program: variates and steps see the same gradients (there steps are clipped, variates
are not); the gradient in α is that of the loss, with no class mean replaced by a or b; the centre
starts at the start.
"""

from dataclasses import KW_ONLY
from typing import ClassVar

import equinox as eqx
import jax.numpy as jnp

from rookery import check, tree
from rookery.algorithms.scaffold import AbstractScaffold, ScaffoldState
from rookery.algorithms.shared.field import Blocks, saddle_field
from rookery.algorithms.shared.schedule import number
from rookery.algorithms.shared.step_rule import Size, step_rule
from rookery.problem.minimax import Minimax
from rookery.types import Count, Sample, Tree


class CODASCA(AbstractScaffold):
    """SCAFFOLD-S in stages, each with a proximal term around its start.

    >>> CODASCA(outer_lr=0.05, inner_lr=0.1, mu=0.1, stage_rounds=50, local_steps=5).rates()
    (0.05, 0.1)

    Args:
        outer_lr: of every local step of x, or of the whole round (:class:`PerCall`).
        inner_lr: of y, likewise.
        mu: strength of the proximal term.
        stage_rounds: rounds until its centre moves to x.
    """

    kind: ClassVar[type] = Minimax

    _: KW_ONLY
    outer_lr: Size = eqx.field(converter=step_rule)
    inner_lr: Size = eqx.field(converter=step_rule)
    mu: float = eqx.field(converter=number)
    stage_rounds: int

    def __check_init__(self):
        check.not_negative("mu", self.mu)
        check.count("stage_rounds", self.stage_rounds)

    def rates(self) -> tuple[Size, ...]:
        """One step size for x and one for y."""
        return self.outer_lr, self.inner_lr

    def field(self, problem: Minimax, blocks: Blocks, sample: Sample) -> Blocks:
        """(f_x + μ x, -f_y); the rest of the proximal term, - μ centre, is in c."""
        x, _ = blocks
        f_x, back_y = saddle_field(problem, blocks, sample)
        return tree.axpy(self.mu, x, f_x), back_y

    def first_centre(self, blocks: Blocks) -> Tree:
        """Zero, until round 0 begins a stage."""
        return tree.zeros_like(blocks[0])

    def begun(self, state: ScaffoldState, round: Count) -> ScaffoldState:
        """The state with the centre at x, if a stage begins."""
        (x, _), (c_x, c_y) = state.blocks, state.c
        is_due = jnp.asarray(round) % self.stage_rounds == 0
        centre = tree.where(is_due, x, state.centre)
        c_x = tree.axpy(-self.mu, tree.sub(centre, state.centre), c_x)
        return state._replace(c=(c_x, c_y), centre=centre)

"""SOBA: x, y and the adjoint v of a bilevel problem step at once, at the server.

M. Dagréou, P. Ablin, S. Vaiter, T. Moreau. A framework for bilevel optimization that enables
stochastic and global variance reduction algorithms. NeurIPS 2022, arXiv:2201.13409.

On a population of one client this is the centralised method; with several, the directions are means
over clients. FedMSA with one client, K = 1 and ρ = 1 takes the same steps. Cost of a round:
1 exchange, all three variables down and up.

    paper           code                meaning
    x, z, v         x, y, v             outer and inner variable, adjoint
    D_x, D_z, D_v   d_x, d_y, d_v       their directions
    γ, ρ            outer_lr, inner_lr  step rules of x, and of y and v

Departures from the paper: v has the opposite sign, g_yy v = f_y; outer and inner rows are drawn
independently.
"""

from typing import NamedTuple

import jax

from rookery import tree
from rookery.algorithms.shared.block_steps import AbstractBilevelSteps
from rookery.algorithms.shared.blocks import draw_levels
from rookery.algorithms.shared.views import Blocks
from rookery.problem.bilevel import Bilevel
from rookery.problem.constraints import projected
from rookery.program.federation import AbstractFederation, Client
from rookery.types import BatchSize, Key, Tree


class SOBAState(NamedTuple):
    """The iterates, the adjoint, and the states of their step rules."""

    x: Tree
    y: Tree
    v: Tree
    opts: tuple[Tree, ...] = ((), (), ())


class SOBA(AbstractBilevelSteps):
    """One step of x, y and v at once, along the means of the clients' directions.

    Args:
        outer_lr: step rule of x.
        inner_lr: of y and v, or a tuple with one each.

    >>> SOBA(outer_lr=0.05, inner_lr=(0.1, 0.05), batch_size=8).inner_lr
    (0.1, 0.05)
    """

    def init(self, problem: Bilevel, x: Tree, y: Tree) -> SOBAState:
        """The given variables, and v = 0; no optimiser has taken a step."""
        blocks = x, y, tree.zeros_like(y)
        return SOBAState(*blocks, self.first_opts(problem, blocks))

    def round(
        self, fed: AbstractFederation, problem: Bilevel, state: SOBAState, key: Key
    ) -> SOBAState:
        """One exchange, and a step of all three variables."""
        blocks = state.x, state.y, state.v
        who, sample_key = jax.random.split(key)
        cohort = fed.sample(self.clients, who)
        at = fed.broadcast(cohort, blocks)  # ------------------------------- down  x, y, v
        settings = {"problem": problem, "batch_size": self.batch_size}
        d_i = fed.map(directions, at, key=sample_key, **settings)
        with fed.outer():
            d = fed.mean(d_i)  # -------------------------------------------- up    d_x, d_y, d_v
        opts = self.measured(fed, problem, state.opts, blocks, key)
        (x, y, v), opts = self.step(d, opts, blocks, fed.round)
        return SOBAState(projected(problem, "x", x), y, v, opts)


def directions(client: Client, at: Blocks, *, problem: Bilevel, batch_size: BatchSize) -> Blocks:
    """d_x = f_x - g_xy v,  d_y = g_y,  d_v = g_yy v - f_y."""
    x, y, v = at
    outer, inner = draw_levels(client, problem, batch_size)
    f_x, f_y = problem.outer_gradients(x, y, outer)
    d_y, g_xy, g_yy = problem.inner_derivatives(x, y, v, inner)
    return tree.sub(f_x, g_xy), d_y, tree.sub(g_yy, f_y)

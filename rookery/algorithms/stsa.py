"""STSA: all sequences of a multi-sequence problem step at once, at the server.

H. Shen, T. Chen. A single-timescale analysis for stochastic approximation with multiple coupled
sequences. NeurIPS 2022, arXiv:2206.10414.

On a population of one client this is the centralised method; with several, the map is the mean of
the clients' maps. FedMSA with one client, K = 1 and ρ = 1 takes the same steps. Cost of a round:
1 exchange, all blocks down and up.

    paper           code                meaning
    x, y^1 .. y^N   u, the blocks       what is sought; those of a problem follow from its view
    v, h^n          view.maps           one map per block
    α, β_n          outer_lr, inner_lr  step rules of x and of the other blocks

Departure from the paper: one sample serves all maps of a step, where STSA draws one per block; the
maps of bilevel problems draw outer and inner rows independently.
"""

from dataclasses import KW_ONLY
from typing import NamedTuple

import jax

from rookery.algorithms.shared.block_steps import AbstractBlockSteps
from rookery.algorithms.shared.blocks import own_maps
from rookery.algorithms.shared.on_view import AbstractOnView
from rookery.algorithms.shared.views import AbstractView, Blocks, view_of
from rookery.problem.constraints import all_projected
from rookery.program.federation import AbstractFederation
from rookery.types import Key, Problem, Tree


class BlocksState(NamedTuple):
    """The problem's own variables, the blocks that its view adds, and the states of their rules."""

    variables: Blocks
    added: Blocks
    opts: tuple[Tree, ...]


class STSA(AbstractBlockSteps, AbstractOnView):
    """One step of all blocks at once, along the mean of the clients' maps.

    Args:
        outer_lr: step rule of x.
        inner_lr: of all other blocks, one for all or a tuple with one each.
        view: how the problem is seen as blocks; by its class if None.

    >>> STSA(outer_lr=0.05, inner_lr=0.1, clients=5).outer_lr
    0.05
    """

    _: KW_ONLY
    view: AbstractView | None = None

    def seen_as(self) -> AbstractView | None:
        """The view that was given."""
        return self.view

    def init(self, problem: Problem, *variables: Tree) -> BlocksState:
        """The given variables, and what the view adds to them; no optimiser has taken a step."""
        added = view_of(problem, self.view).added(problem, *variables)
        return BlocksState(variables, added, self.first_opts(problem, (*variables, *added)))

    def round(
        self, fed: AbstractFederation, problem: Problem, state: BlocksState, key: Key
    ) -> BlocksState:
        """One exchange."""
        who, sample_key = jax.random.split(key)
        u = (*state.variables, *state.added)
        cohort = fed.sample(self.clients, who)
        at = fed.broadcast(cohort, u)  # ------------------------------------ down  u
        settings = {"problem": problem, "view": self.view}
        settings |= {"batch_size": self.batch_size, "round": fed.round}
        s_i = fed.map(own_maps, at, key=sample_key, **settings)
        with fed.outer():
            s = fed.mean(s_i)  # -------------------------------------------- up    s_i(u)
        n = len(state.variables)
        opts = self.measured(fed, problem, state.opts, u, key)
        u, opts = self.step(s, opts, u, fed.round)
        return BlocksState(all_projected(problem, u[:n]), u[n:], opts)

"""STSA and SOBA: all blocks step at once, at the server; the centralised counterparts of FedMSA.

    STSA    u <- u - a s(u; ξ), every block against its own map.
            H. Shen, T. Chen. NeurIPS 2022, arXiv:2206.10414.
    SOBA    the same for bilevel problems, on (x, y, v).
            M. Dagréou, P. Ablin, S. Vaiter, T. Moreau. NeurIPS 2022, arXiv:2201.13409.

On a population of one client these are the centralised methods; with several, the map is the mean
of the clients' maps. FedMSA with one client, K = 1 and ρ = 1 takes the same steps. Cost of a round:
1 exchange, all blocks down and up.

    papers          code                meaning
    x, y or z, v    u, the blocks       what is sought; those of a problem follow from its view
    s, D            view.maps           one map per block
    α, β; ρ, γ      outer_lr, inner_lr  step sizes of x and of the other blocks

Departure from the papers: one sample serves all maps of a step, where STSA draws one per block; the
maps of bilevel problems draw outer and inner rows apart.
"""

from dataclasses import KW_ONLY
from typing import Any, NamedTuple

import equinox as eqx
import jax

from rookery import check
from rookery.algorithms.shared.blocks import descend, evaluate
from rookery.algorithms.shared.local import number
from rookery.algorithms.shared.schedule import Rate, Rates, check_rates, rates, sizes_at
from rookery.algorithms.shared.views import AbstractView, Blocks, view_of
from rookery.problem.bilevel import Bilevel
from rookery.program.algorithm import AbstractAlgorithm
from rookery.program.federation import AbstractFederation, Client
from rookery.program.participation import AbstractParticipation, participation
from rookery.types import Key, Tree


class BlocksState(NamedTuple):
    """The problem's own variables, and the blocks that its view adds."""

    variables: Blocks
    added: Blocks


class STSA(AbstractAlgorithm):
    """One step of all blocks at once, along the mean of the clients' maps.

    Args:
        outer_lr: of x, a number or a schedule (:class:`Decay`, :class:`PowerDecay`).
        inner_lr: of all other blocks, one for all or a tuple with one each.
        clients: how many take part in an exchange, a rule that draws them, or None for everyone.
        batch_size: rows per evaluation on a client; None is all its rows.
        view: how the problem is seen as blocks; by its class if None.
    """

    _: KW_ONLY
    outer_lr: Rate = eqx.field(converter=number)
    inner_lr: Rates = eqx.field(converter=rates)
    clients: AbstractParticipation = eqx.field(converter=participation, default=None)
    batch_size: int | None = None
    view: AbstractView | None = None

    def __check_init__(self):
        check_rates("outer_lr", self.outer_lr)
        check_rates("inner_lr", self.inner_lr)
        if self.batch_size is not None:
            check.count("batch_size", self.batch_size)

    def check(self, problem: Any, n_clients: int) -> None:
        """Raise unless the problem has blocks and the settings fit them and the clients."""
        check_rates("inner_lr", self.inner_lr, view_of(problem, self.view).n_blocks(problem) - 1)
        self.clients.check(n_clients)

    def init(self, problem: Any, *variables: Tree) -> BlocksState:
        """The given variables, and what the view adds to them."""
        return BlocksState(variables, view_of(problem, self.view).added(problem, *variables))

    def round(
        self, fed: AbstractFederation, problem: Any, state: BlocksState, key: Key
    ) -> BlocksState:
        """One exchange."""
        who, sample_key = jax.random.split(key)
        u = (*state.variables, *state.added)
        cohort = fed.sample(self.clients, who)
        at = fed.broadcast(cohort, u)  # ------------------------------------ down  u
        s_i = fed.map(own_maps, at, key=sample_key, problem=problem, algorithm=self)
        with fed.outer():
            s = fed.mean(s_i)  # -------------------------------------------- up    s_i(u)
        u = descend(u, sizes_at(self.outer_lr, self.inner_lr, len(u), fed.round), s)
        n = len(state.variables)
        return BlocksState(u[:n], u[n:])

    def solution(self, state: BlocksState) -> tuple[Tree, ...]:
        """The problem's own variables."""
        return state.variables


class SOBA(AbstractAlgorithm):
    """STSA for bilevel problems: x, y and the adjoint v step at once.

    Args:
        outer_lr: of x, a number or a schedule.
        inner_lr: of y and v, or a tuple with one each.
        clients: how many take part in an exchange, a rule that draws them, or None for everyone.
        batch_size: rows per evaluation on a client; None is all its rows.
    """

    _: KW_ONLY
    outer_lr: Rate = eqx.field(converter=number)
    inner_lr: Rates = eqx.field(converter=rates)
    clients: AbstractParticipation = eqx.field(converter=participation, default=None)
    batch_size: int | None = None

    def __check_init__(self):
        self._stsa()  # which checks the settings

    def _stsa(self) -> STSA:
        return STSA(
            outer_lr=self.outer_lr,
            inner_lr=self.inner_lr,
            clients=self.clients,
            batch_size=self.batch_size,
        )

    def check(self, problem: Bilevel, n_clients: int) -> None:
        """Raise unless the problem is bilevel and the settings fit."""
        if not isinstance(problem, Bilevel):
            raise TypeError(f"SOBA solves Bilevel problems, got {type(problem).__name__}.")
        self._stsa().check(problem, n_clients)

    def init(self, problem: Bilevel, x: Tree, y: Tree) -> BlocksState:
        """The given variables, and v = 0."""
        return self._stsa().init(problem, x, y)

    def round(
        self, fed: AbstractFederation, problem: Bilevel, state: BlocksState, key: Key
    ) -> BlocksState:
        """One exchange."""
        return self._stsa().round(fed, problem, state, key)

    def solution(self, state: BlocksState) -> tuple[Tree, ...]:
        """(x, y)."""
        return state.variables


def own_maps(client: Client, u: Blocks, *, problem: Any, algorithm: STSA) -> Blocks:
    """s_i(u; ξ)."""
    view, batch_size = algorithm.view, algorithm.batch_size
    return evaluate(client, problem, view, batch_size, client.key, u)[0]

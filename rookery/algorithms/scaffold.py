"""SCAFFOLD: local steps whose drift is taken off by control variates that clients remember.

S. P. Karimireddy, S. Kale, M. Mohri, S. J. Reddi, S. U. Stich, A. T. Suresh. SCAFFOLD: stochastic
controlled averaging for federated learning. ICML 2020, arXiv:1910.06378.

    paper   code                    meaning
    x       blocks                  all variables of the problem
    g_i     field                   what a client would subtract: its gradient, or any vector field
    c, c_i  c, own                  control variates of the server and of the clients
    η_l     lr; outer_lr, inner_lr  local step sizes, one per block
    η_g     server_lr               step size of the server
    K       local_steps             local steps between two averages
    S       clients                 who takes part in an exchange

A local step subtracts  η_l (g_i(w; ξ) - c_i + c).  After K of them, from w to w_i, the client's
variate becomes  c_i - c + (w - w_i) / (K η_l),  the mean of its local values of g_i (option II).
Where the mean field is zero, c_i = g_i and c = 0 leave every client at rest, however many steps it
takes: that point is where the method ends.

Cost of a round: 1 exchange, twice the blocks down (w, c) and up (both changes); the c_i stay with
the clients. Departures from the paper: c moves by the weight of the cohort among all clients, which
is its |S| / N when all weigh the same, so that c stays the weighted mean of the c_i; clients may
take unequally many steps. SCAFFOLD-S (C. Hou, K. K. Thekumparampil, G. Fanti, S. Oh. Efficient
algorithms for federated saddle point optimization. arXiv:2102.06333) is here SCAFFOLD on the saddle
field (f_x, -f_y), written from that idea and not from its authors' pseudo-code.
"""

import abc
from dataclasses import KW_ONLY
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp

from rookery import check, tree
from rookery.algorithms.shared import local
from rookery.algorithms.shared.field import Blocks, check_minimax, saddle_field
from rookery.algorithms.shared.model import check_single_level
from rookery.problem.minimax import Minimax
from rookery.problem.single_level import SingleLevel
from rookery.program.algorithm import AbstractAlgorithm
from rookery.program.federation import AbstractFederation, Client
from rookery.program.memory import Memory, check_rule
from rookery.program.participation import AbstractParticipation, participation
from rookery.types import Key, Sample, Tree


class ScaffoldState(NamedTuple):
    """The iterates, and the control variates of the server and of every client."""

    blocks: Blocks
    c: Blocks
    own: Memory


class Settings(NamedTuple):
    """The numbers of the method, whatever the problem.

    Attributes:
        rates: the local step size of each block.
        local_steps: K, one number or one per client.
        server_lr: η_g.
        clients: the rule that draws a cohort.
        batch_size: rows per local step; None is all.
    """

    rates: tuple[local.LearningRate, ...]
    local_steps: local.LocalSteps
    server_lr: float
    clients: AbstractParticipation
    batch_size: int | None


class AbstractScaffold(AbstractAlgorithm):
    """SCAFFOLD on a field. What the problem is and which field it has, a subclass says."""

    @abc.abstractmethod
    def settings(self) -> Settings:
        """The numbers of the method."""

    @abc.abstractmethod
    def check_problem(self, problem: Any) -> None:
        """Raise unless the problem has the field; its rows are those of ``problem.split``."""

    @abc.abstractmethod
    def field(self, problem: Any, blocks: Blocks, sample: Sample) -> Blocks:
        """What a step of size one would subtract from the blocks."""

    def __check_init__(self):
        local.check_fields(self)
        _, _, server_lr, clients, _ = self.settings()
        check.positive("server_lr", server_lr)
        check_rule(type(self).__name__, clients)

    def check(self, problem: Any, n_clients: int) -> None:
        """Raise unless the problem has the field and the settings fit the clients."""
        self.check_problem(problem)
        local.check_fields(self, n_clients)
        self.settings().clients.check(n_clients)

    def init(self, problem: Any, *blocks: Tree) -> ScaffoldState:
        """The given iterates; all control variates are zero."""
        zeros = tree.zeros_like(blocks)
        return ScaffoldState(blocks, zeros, Memory.of(zeros))

    def round(
        self, fed: AbstractFederation, problem: Any, state: ScaffoldState, key: Key
    ) -> ScaffoldState:
        """One exchange."""
        who, local_key = jax.random.split(key)
        settings = self.settings()
        cohort = fed.sample(settings.clients, who)
        blocks, c = fed.broadcast(cohort, state.blocks, state.c)  # ---------- down  w, c
        c_i = fed.recall(cohort, state.own)
        changes, c_i = fed.map(
            controlled_steps, blocks, c, c_i, key=local_key, problem=problem, algorithm=self
        )
        moved, turned = fed.mean(changes)  # --------------------------------- up    changes of both
        share = jnp.sum(jnp.where(cohort.active, fed.weights[cohort.ids], 0.0))
        return ScaffoldState(
            blocks=tree.axpy(settings.server_lr, moved, state.blocks),
            c=tree.axpy(share, turned, state.c),
            own=fed.keep(state.own, c_i),
        )

    def solution(self, state: ScaffoldState) -> tuple[Tree, ...]:
        """The blocks."""
        return state.blocks


class Scaffold(AbstractScaffold):
    """SCAFFOLD on a single-level problem, with the gradient for its field.

    Args:
        lr: η_l, of every local step, or of the whole round (:class:`PerCall`).
        local_steps: K, one number or one per client.
        server_lr: η_g.
        clients: how many take part in an exchange, a rule that draws different clients, or None
            for everyone.
        batch_size: rows per local step; None is all.
    """

    _: KW_ONLY
    lr: local.LearningRate = eqx.field(converter=local.number)
    local_steps: local.LocalSteps = eqx.field(converter=local.local_steps, default=1)
    server_lr: float = eqx.field(converter=local.number, default=1.0)
    clients: AbstractParticipation = eqx.field(converter=participation, default=None)
    batch_size: int | None = None

    def settings(self) -> Settings:
        """One block, one step size."""
        rates = (self.lr,)
        return Settings(rates, self.local_steps, self.server_lr, self.clients, self.batch_size)

    def check_problem(self, problem: SingleLevel) -> None:
        """Raise unless the problem is single-level."""
        check_single_level("Scaffold", problem)

    def field(self, problem: SingleLevel, blocks: Blocks, sample: Sample) -> Blocks:
        """The gradient."""
        (w,) = blocks
        return (problem.gradient(w, sample),)


class ScaffoldS(AbstractScaffold):
    """SCAFFOLD on a minimax problem: x and y together, with the field (f_x, -f_y).

    Args:
        outer_lr: step size of x, of every local step, or of the whole round (:class:`PerCall`).
        inner_lr: step size of y, likewise.
        local_steps: K, one number or one per client.
        server_lr: η_g.
        clients: how many take part in an exchange, a rule that draws different clients, or None
            for everyone.
        batch_size: rows per local step; None is all.
    """

    _: KW_ONLY
    outer_lr: local.LearningRate = eqx.field(converter=local.number)
    inner_lr: local.LearningRate = eqx.field(converter=local.number)
    local_steps: local.LocalSteps = eqx.field(converter=local.local_steps, default=1)
    server_lr: float = eqx.field(converter=local.number, default=1.0)
    clients: AbstractParticipation = eqx.field(converter=participation, default=None)
    batch_size: int | None = None

    def settings(self) -> Settings:
        """One step size for x and one for y."""
        rates = (self.outer_lr, self.inner_lr)
        return Settings(rates, self.local_steps, self.server_lr, self.clients, self.batch_size)

    def check_problem(self, problem: Minimax) -> None:
        """Raise unless the problem is minimax."""
        check_minimax("ScaffoldS", problem)

    def field(self, problem: Minimax, blocks: Blocks, sample: Sample) -> Blocks:
        """(f_x, -f_y)."""
        return saddle_field(problem, blocks, sample)


def controlled_steps(
    client: Client,
    blocks: Blocks,
    c: Blocks,
    c_i: Blocks,
    *,
    problem: Any,
    algorithm: AbstractScaffold,
) -> tuple[tuple[Blocks, Blocks], Blocks]:
    """How far the blocks and the client's variate moved, and the new variate itself."""
    settings = algorithm.settings()
    steps = local.steps_of(client, settings.local_steps)
    sizes = tuple(local.step_size(lr, steps) for lr in settings.rates)
    correction = tree.sub(c, c_i)

    def step(nu, blocks):
        key = jax.random.fold_in(client.key, nu)
        sample = client.draw(problem.split, settings.batch_size, key)
        direction = tree.add(algorithm.field(problem, blocks, sample), correction)
        return tuple(map(_step_back, sizes, direction, blocks))

    moved = tree.sub(client.repeat(steps, step, blocks), blocks)
    count = jnp.asarray(steps).astype(float)
    lengths = tuple(1 / (size * count) for size in sizes)
    new = tuple(map(_step_back, lengths, moved, tree.sub(c_i, c)))  # option II
    return (moved, tree.sub(new, c_i)), new


def _step_back(size, direction: Tree, block: Tree) -> Tree:
    return tree.axpy(-size, direction, block)

"""Gradient descent-ascent in three forms: the server's steps along mean gradients.

With one client these are the centralised methods; with all clients taking part, whole batches and
weights in proportion to the clients' rows they are the same methods run in parallel. Fewer clients
or smaller batches make them stochastic.

    method          round                                                       exchanges
    GDA             x - α f_x(x, y),  y + β f_y(x, y)                           1
    AlternatingGDA  y+ = y + β f_y(x, y),  x - α f_x(x, y+)                     2
    Extragradient   the step of GDA from (x, y), with gradients taken at the    2
                    point that GDA would have gone to

GDA and Extragradient (G. M. Korpelevich, 1976) are as old as saddle problems; alternating steps are
studied by J. Yang, N. Kiyavash, N. He, NeurIPS 2020, arXiv:2002.09621.

    papers  code                    meaning
    x, y    x, y                    minimising and maximising variable
    τ₁, τ₂  outer_lr, inner_lr      step sizes α and β

On a bilinear payoff GDA moves away from the saddle point, whatever the step sizes; Extragradient
converges. Departures from the papers: AlternatingGDA moves y first, as all nested methods here do,
which is the papers' sequence begun half a step earlier. Every exchange has clients and samples of
its own, so the two gradients of a stochastic extragradient round are independent.
"""

import abc
from dataclasses import KW_ONLY

import equinox as eqx
import jax

from rookery import check, tree
from rookery.algorithms.sgda import SaddleState
from rookery.algorithms.shared import local
from rookery.algorithms.shared.context import Context
from rookery.algorithms.shared.field import (
    ascent_field,
    check_minimax,
    descent_field,
    mean_field,
    saddle_field,
)
from rookery.problem.minimax import Minimax
from rookery.program.algorithm import AbstractAlgorithm
from rookery.program.federation import AbstractFederation
from rookery.program.participation import AbstractParticipation, participation
from rookery.types import Key, Tree


class AbstractDescentAscent(AbstractAlgorithm):
    """Steps of the server on a minimax problem; how a round is made up, a subclass says."""

    outer_lr: eqx.AbstractVar[float]
    inner_lr: eqx.AbstractVar[float]
    clients: eqx.AbstractVar[AbstractParticipation]
    batch_size: eqx.AbstractVar[int | None]

    @abc.abstractmethod
    def round(
        self, fed: AbstractFederation, problem: Minimax, state: SaddleState, key: Key
    ) -> SaddleState:
        """The pair after one round."""

    def __check_init__(self):
        check.positive("outer_lr", self.outer_lr)
        check.positive("inner_lr", self.inner_lr)
        if self.batch_size is not None:
            check.count("batch_size", self.batch_size)

    def check(self, problem: Minimax, n_clients: int) -> None:
        """Raise unless the problem is minimax and there are enough clients."""
        check_minimax(type(self).__name__, problem)
        self.clients.check(n_clients)

    def init(self, problem: Minimax, x: Tree, y: Tree) -> SaddleState:
        """The given iterates."""
        return SaddleState(x, y)

    def solution(self, state: SaddleState) -> tuple[Tree, Tree]:
        """(x, y)."""
        return state.x, state.y

    def step(self, field: tuple[Tree, Tree], pair: SaddleState) -> SaddleState:
        """The pair after one step against a value of the saddle field."""
        back_x, back_y = field
        return SaddleState(
            tree.axpy(-self.outer_lr, back_x, pair.x), tree.axpy(-self.inner_lr, back_y, pair.y)
        )


class GDA(AbstractDescentAscent):
    """Both variables move along their mean gradients at the old pair.

    Args:
        outer_lr: α.
        inner_lr: β.
        clients: how many take part in an exchange, a rule that draws them, or None for everyone.
        batch_size: rows per evaluation on a client; None is all its rows.
    """

    _: KW_ONLY
    outer_lr: float = eqx.field(converter=local.number)
    inner_lr: float = eqx.field(converter=local.number)
    clients: AbstractParticipation = eqx.field(converter=participation, default=None)
    batch_size: int | None = None

    def round(self, fed, problem, state, key):
        """One exchange."""
        context = Context(fed, problem, self.clients, self.batch_size)
        field = mean_field(context, saddle_field, (state.x, state.y), key)
        return self.step(field, state)


class AlternatingGDA(AbstractDescentAscent):
    """First y moves, then x along its mean gradient at the new y.

    Args:
        outer_lr: α.
        inner_lr: β.
        clients: how many take part in an exchange, a rule that draws them, or None for everyone.
        batch_size: rows per evaluation on a client; None is all its rows.
    """

    _: KW_ONLY
    outer_lr: float = eqx.field(converter=local.number)
    inner_lr: float = eqx.field(converter=local.number)
    clients: AbstractParticipation = eqx.field(converter=participation, default=None)
    batch_size: int | None = None

    def round(self, fed, problem, state, key):
        """Two exchanges: f_y, then f_x."""
        y_key, x_key = jax.random.split(key)
        context, (x, y) = Context(fed, problem, self.clients, self.batch_size), state
        back_y = mean_field(context, ascent_field, (x, y), y_key)
        y = tree.axpy(-self.inner_lr, back_y, y)
        back_x = mean_field(context, descent_field, (x, y), x_key)
        return SaddleState(tree.axpy(-self.outer_lr, back_x, x), y)


class Extragradient(AbstractDescentAscent):
    """Looks one step ahead, and steps from the old pair along the gradients found there.

    Args:
        outer_lr: α, of both steps.
        inner_lr: β, likewise.
        clients: how many take part in an exchange, a rule that draws them, or None for everyone.
        batch_size: rows per evaluation on a client; None is all its rows.
    """

    _: KW_ONLY
    outer_lr: float = eqx.field(converter=local.number)
    inner_lr: float = eqx.field(converter=local.number)
    clients: AbstractParticipation = eqx.field(converter=participation, default=None)
    batch_size: int | None = None

    def round(self, fed, problem, state, key):
        """Two exchanges: the gradients here, then those ahead."""
        here_key, ahead_key = jax.random.split(key)
        context = Context(fed, problem, self.clients, self.batch_size)
        here = mean_field(context, saddle_field, (state.x, state.y), here_key)
        ahead = self.step(here, state)
        there = mean_field(context, saddle_field, (ahead.x, ahead.y), ahead_key)
        return self.step(there, state)

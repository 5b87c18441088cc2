"""Scaffnew: gradient steps of all clients, which communicate rarely, at random.

K. Mishchenko, G. Malinovsky, S. Stich, P. Richtárik. ProxSkip: yes! Local gradient steps provably
lead to communication acceleration! Finally! ICML 2022, arXiv:2202.09357.

    paper   code                meaning
    x_i     w_i                 a client's model
    h_i     c_i                 its control variate; their mean is zero
    γ       lr                  step size
    p       probability         of communicating after a step

    every step          w_i = w_i - γ (∇f_i(w_i) - c_i)
    with probability p  w = mean of w_i,  c_i = c_i + (p / γ) (w - w_i),  w_i = w

On a minimax problem the field (f_x, -f_y) stands for the gradient; that is ProxSkip-VIP of
S. Zhang, S. Choudhury, S. U. Stich, N. Loizou. Communication-efficient gradient descent-accent
methods for distributed variational inequalities: unified analysis and local updates. 2023,
arXiv:2306.05100.

A round is one communication and the steps before it, whose number all clients share: it is drawn
from the geometric distribution with mean 1 / p. All clients take part in every round. The limit is
exact, and with p = 1 it is gradient descent. A client learns w with the next round, and then
updates its variate: it keeps c_i and its model before the mean. Cost of a round: that of FedAvg.
"""

from collections.abc import Callable
from dataclasses import KW_ONLY
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp

from rookery import check, tree
from rookery.algorithms.shared.field import saddle_field
from rookery.algorithms.shared.schedule import number
from rookery.algorithms.shared.step_rule import check_number
from rookery.algorithms.shared.views import Blocks
from rookery.problem.minimax import Minimax
from rookery.problem.single_level import SingleLevel
from rookery.program.algorithm import BatchedAlgorithm, with_settings_of
from rookery.program.federation import AbstractFederation, Client
from rookery.program.memory import Memory
from rookery.program.participation import Cohort, Everyone
from rookery.types import Count, Key, Number, Sample, Tree

OneLoss = SingleLevel | Minimax

Own = tuple[Blocks, Blocks]
"""What a client keeps: its control variate and its variables."""


class ScaffnewState(NamedTuple):
    """The variables, and the clients' variates and variables before the mean."""

    blocks: Blocks
    own: Memory


class Scaffnew(BatchedAlgorithm):
    """Controlled local steps, and a mean after a random number of them.

    Args:
        lr: γ, a number.
        probability: p, of communicating after a step, above 0 and at most 1.

    >>> Scaffnew(lr=0.1, probability=0.2).probability
    0.2
    """

    _: KW_ONLY
    lr: float = eqx.field(converter=number)
    probability: float = eqx.field(converter=number)

    def __check_init__(self):
        check_number("Scaffnew", "lr", self.lr, "The variates divide by it.")
        check.fraction("probability", self.probability)

    def check(self, problem: OneLoss, n_clients: int) -> None:
        """Raise unless the problem has one loss."""
        if not isinstance(problem, OneLoss):
            raise TypeError(
                f"{self.name} solves SingleLevel and Minimax problems, got "
                f"{type(problem).__name__}."
            )

    def init(self, problem: OneLoss, *variables: Tree) -> ScaffnewState:
        """The given variables; all variates are zero."""
        return ScaffnewState(variables, Memory.of((tree.zeros_like(variables), variables)))

    def round(
        self, fed: AbstractFederation, problem: OneLoss, state: ScaffnewState, key: Key
    ) -> ScaffnewState:
        """One exchange, after a random number of steps."""
        cohort, steps, local_key = begun(fed, key, self.probability)
        at = fed.broadcast(cohort, state.blocks), fed.recall(cohort, state.own)  # down  w
        settings = {"problem": problem, "algorithm": self, "steps": steps}
        own = fed.map(controlled_steps, *at, key=local_key, **settings)
        blocks = fed.mean(fed.map(model_of, own), around=at[0])  # ----------- up    w_i
        return ScaffnewState(blocks, fed.keep(state.own, own))

    def solution(self, state: ScaffnewState) -> tuple[Tree, ...]:
        """The variables."""
        return state.blocks


@with_settings_of(Scaffnew, without=())
def ProxSkipVIP(**settings) -> Scaffnew:
    """Scaffnew by its name for minimax problems.

    >>> ProxSkipVIP(lr=0.05, probability=0.2).name
    'ProxSkipVIP'
    """
    return Scaffnew(**settings, label="ProxSkipVIP")


def begun(fed: AbstractFederation, key: Key, probability: Number) -> tuple[Cohort, Count, Key]:
    """All clients, the number of steps of this round, and the key of these."""
    fed.refuse_robust(
        "the variates of Scaffnew",
        "clients add up their differences from the mean, which cancel for no other rule",
    )
    count_key, local_key = jax.random.split(key)
    return fed.sample(Everyone(), local_key), geometric(count_key, probability), local_key


def geometric(key: Key, probability: Number) -> Count:
    """How many trials until the first success."""
    u = jax.random.uniform(key, dtype=jnp.result_type(float), minval=jnp.finfo(float).tiny)
    skip = jnp.log1p(-jnp.minimum(jnp.asarray(probability, u.dtype), 1 - 1e-12))
    return 1 + jnp.floor(jnp.log(u) / skip).astype(jnp.int32)


def controlled_steps(
    client: Client, w: Blocks, own: Own, *, problem: OneLoss, algorithm: Scaffnew, steps: Count
) -> Own:
    """The client's variate after the last mean, and its variables before the next one."""

    def field(blocks, key):
        sample = client.draw(problem.split, algorithm.batch_size, key)
        return own_field(problem, blocks, sample)

    return steps_from_mean(client, field, w, own, algorithm.lr, algorithm.probability, steps)


def steps_from_mean(
    client: Client,
    field: Callable[[Tree, Key], Tree],
    w: Tree,
    own: tuple[Tree, Tree],
    lr: Number,
    probability: Number,
    steps: Count,
) -> tuple[Tree, Tree]:
    """A client's variate after the mean w, and its variables after steps along  field - variate.

    Args:
        client: who takes them.
        field: what a step of size one subtracts, with a fresh key each.
        w: the mean.
        own: the variate and the variables before that mean.
        lr: γ.
        probability: p.
        steps: how many.
    """
    c, before = own
    c = tree.axpy(probability / lr, tree.sub(w, before), c)

    def step(k, own):
        here = field(own, jax.random.fold_in(client.key, k))
        return tree.axpy(-lr, tree.sub(here, c), own)

    return c, client.repeat(steps, step, w)


def own_field(problem: OneLoss, blocks: Blocks, sample: Sample) -> Blocks:
    """The gradient, or (f_x, -f_y)."""
    if isinstance(problem, Minimax):
        return saddle_field(problem, blocks, sample)
    (w,) = blocks
    return (problem.gradient(w, sample),)


def model_of(client: Client, own: Own) -> Blocks:
    """What the client sends of what it keeps."""
    return own[1]

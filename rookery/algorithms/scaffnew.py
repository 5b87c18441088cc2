"""Scaffnew: gradient steps of all clients, which communicate only now and then, at random.

K. Mishchenko, G. Malinovsky, S. Stich, P. Richtárik. ProxSkip: yes! Local gradient steps provably
lead to communication acceleration! Finally! ICML 2022, arXiv:2202.09357.

    paper   code                meaning
    x_i     w_i                 a client's model
    h_i     c_i                 its control variate; their mean is zero
    γ       lr                  step size
    p       probability         of communicating after a step

    every step          w_i = w_i - γ (∇f_i(w_i) - c_i)
    with probability p  w = mean of w_i,  c_i = c_i + (p / γ) (w - w_i),  w_i = w

A round is one communication and the steps before it, whose number all clients share: it is drawn
from the geometric distribution with mean 1 / p. All clients take part in every round. The limit is
exact, and with p = 1 it is gradient descent. A client learns w with the next round, and then
updates its variate: it keeps c_i and its model before the mean. Cost of a round: that of FedAvg.
"""

from dataclasses import KW_ONLY
from typing import ClassVar, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp

from rookery import check, tree
from rookery.algorithms.shared.schedule import number
from rookery.algorithms.shared.step_rule import check_number
from rookery.problem.single_level import SingleLevel
from rookery.program.algorithm import BatchedAlgorithm, check_kind
from rookery.program.federation import AbstractFederation, Client
from rookery.program.memory import Memory
from rookery.program.participation import Everyone
from rookery.types import Count, Key, Number, Tree


class ScaffnewState(NamedTuple):
    """The model, and the clients' variates and models before the mean."""

    w: Tree
    own: Memory


class Scaffnew(BatchedAlgorithm):
    """Controlled local steps, and a mean after a random number of them.

    Args:
        lr: γ, a number.
        probability: p, of communicating after a step, above 0 and at most 1.

    >>> Scaffnew(lr=0.1, probability=0.2).probability
    0.2
    """

    projects: ClassVar[bool] = False

    _: KW_ONLY
    lr: float = eqx.field(converter=number)
    probability: float = eqx.field(converter=number)

    def __check_init__(self):
        check_number("Scaffnew", "lr", self.lr, "The variates divide by it.")
        check.fraction("probability", self.probability)

    def check(self, problem: SingleLevel, n_clients: int) -> None:
        """Raise unless the problem has one level."""
        check_kind(self, problem, SingleLevel)

    def init(self, problem: SingleLevel, w: Tree) -> ScaffnewState:
        """The given model; all variates are zero."""
        return ScaffnewState(w, Memory.of((tree.zeros_like(w), w)))

    def round(
        self, fed: AbstractFederation, problem: SingleLevel, state: ScaffnewState, key: Key
    ) -> ScaffnewState:
        """One exchange, after a random number of steps."""
        count_key, local_key = jax.random.split(key)
        cohort = fed.sample(Everyone(), local_key)
        at = fed.broadcast(cohort, state.w), fed.recall(cohort, state.own)  # down  w
        steps = geometric(count_key, self.probability)
        settings = {"problem": problem, "algorithm": self, "steps": steps}
        own = fed.map(controlled_steps, *at, key=local_key, **settings)
        w = fed.mean(fed.map(model_of, own))  # ------------------------------ up    w_i
        return ScaffnewState(w, fed.keep(state.own, own))

    def solution(self, state: ScaffnewState) -> tuple[Tree]:
        """(w,)."""
        return (state.w,)


def geometric(key: Key, probability: Number) -> Count:
    """How many trials until the first success."""
    u = jax.random.uniform(key, dtype=jnp.result_type(float), minval=jnp.finfo(float).tiny)
    skip = jnp.log1p(-jnp.minimum(jnp.asarray(probability, u.dtype), 1 - 1e-12))
    return 1 + jnp.floor(jnp.log(u) / skip).astype(jnp.int32)


def controlled_steps(
    client: Client,
    w: Tree,
    own: tuple[Tree, Tree],
    *,
    problem: SingleLevel,
    algorithm: Scaffnew,
    steps: Count,
) -> tuple[Tree, Tree]:
    """The client's variate after the last mean, and its model before the next one."""
    c, before = own
    c = tree.axpy(algorithm.probability / algorithm.lr, tree.sub(w, before), c)

    def step(k, own):
        key = jax.random.fold_in(client.key, k)
        sample = client.draw(problem.split, algorithm.batch_size, key)
        return tree.axpy(-algorithm.lr, tree.sub(problem.gradient(own, sample), c), own)

    return c, client.repeat(steps, step, w)


def model_of(client: Client, own: tuple[Tree, Tree]) -> Tree:
    """What the client sends of what it keeps."""
    return own[1]

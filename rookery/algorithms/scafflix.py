"""Scafflix: Scaffnew on personal mixtures of a common model and of one that a client trained alone.

K. Yi, L. Condat, P. Richtárik. Explicit personalization and local training: double communication
acceleration in federated learning. TMLR 2025, arXiv:2305.13170. The mixtures are those of FLIX:
E. Gasanov, A. Khaled, S. Horváth, P. Richtárik. FLIX: a simple and communication-efficient
alternative to local methods in federated learning. AISTATS 2022, arXiv:2111.11556.

    paper   code            meaning
    x       w               the common model
    x_i*    alone           the model that a client has trained alone
    α_i     alpha           share of the common model in the client's mixture
    h_i     c_i             control variate of a client; their mean is zero
    γ       lr              step size
    p       probability     of communicating after a step

    min over w of  mean of f_i(α_i w + (1 - α_i) alone_i)

In round 0 every client trains ``alone`` from the start, by ``own_steps`` gradient steps. All else
is Scaffnew's round (``scaffnew.py``) with the gradient α_i ∇f_i(α_i w_i + (1 - α_i) alone_i). The
limit is exact. With all α_i = 1 it is Scaffnew, and with α_i = 0 nothing moves but ``alone``.

Cost of a round: that of FedAvg; ``alone`` never travels. Written from the formula above and not
from the authors' pseudo-code: that has a step size for each client, here one is common to all, and
the variates are those of the mixtures (α_i h_i in the paper's letters).
"""

from dataclasses import KW_ONLY
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from rookery import check, tree
from rookery.algorithms.scaffnew import begun, steps_from_mean
from rookery.algorithms.shared.schedule import number
from rookery.algorithms.shared.step_rule import (
    StepRule,
    check_number,
    check_step_rule,
    first_opt,
    move,
    step_rule,
)
from rookery.problem.single_level import SingleLevel
from rookery.program.algorithm import BatchedAlgorithm, check_kind
from rookery.program.federation import AbstractFederation, Client
from rookery.program.memory import Memory
from rookery.types import Converted, Count, Key, Tree

Alpha = float | tuple[float, ...]
"""One number for all clients, or one per client."""


class ScafflixState(NamedTuple):
    """The common model, and what clients keep: c_i, w_i before the mean, and their model alone."""

    w: Tree
    own: Memory


def alphas(value: object) -> Converted:
    """Field converter: whole numbers become floats, and a list a tuple."""
    return tuple(map(number, value)) if isinstance(value, list | tuple) else number(value)


class Scafflix(BatchedAlgorithm):
    """Local steps on mixtures, and a mean after a random number of them.

    The solution is the common model; evaluations on clients use the client's mixture.

    Args:
        lr: γ, a number.
        probability: p, of communicating after a step, above 0 and at most 1.
        alpha: α_i, from 0 to 1, one number or one per client.
        own_steps: gradient steps with which a client trains its model alone, in round 0.
        own_lr: step rule of these.

    >>> Scafflix(lr=0.1, probability=0.2, alpha=0.3, own_steps=50, own_lr=0.1).alpha
    0.3
    """

    _: KW_ONLY
    lr: float = eqx.field(converter=number)
    probability: float = eqx.field(converter=number)
    alpha: Alpha = eqx.field(converter=alphas)
    own_steps: int
    own_lr: StepRule = eqx.field(converter=step_rule)

    def __check_init__(self):
        check_number("Scafflix", "lr", self.lr, "The variates divide by it.")
        check.fraction("probability", self.probability)
        for alpha in self.alpha if isinstance(self.alpha, tuple) else (self.alpha,):
            check.not_negative("alpha", alpha)
            check.not_negative("one minus alpha", 1 - alpha)
        check.count("own_steps", self.own_steps)
        check_step_rule("own_lr", self.own_lr, "local")

    def check(self, problem: SingleLevel, n_clients: int) -> None:
        """Raise unless the problem is single-level and every client has its α."""
        check_kind(self, problem, SingleLevel)
        if isinstance(self.alpha, tuple) and len(self.alpha) != n_clients:
            raise ValueError(f"alpha has {len(self.alpha)} entries for {n_clients} clients.")

    def init(self, problem: SingleLevel, w: Tree) -> ScafflixState:
        """The given model, also for every client alone; all variates are zero."""
        return ScafflixState(w, Memory.of((tree.zeros_like(w), w, w)))

    def round(
        self, fed: AbstractFederation, problem: SingleLevel, state: ScafflixState, key: Key
    ) -> ScafflixState:
        """One exchange, after a random number of steps."""
        cohort, steps, local_key = begun(fed, key, self.probability)
        w, own = fed.broadcast(cohort, state.w), fed.recall(cohort, state.own)  # down  w
        settings = {"problem": problem, "algorithm": self, "steps": steps, "round": fed.round}
        own = fed.map(personal_steps, w, own, key=local_key, **settings)
        mean = fed.mean(fed.map(common_model, own), around=w)  # ------------- up    w_i
        return ScafflixState(mean, fed.keep(state.own, own))

    def solution(self, state: ScafflixState) -> tuple[Tree]:
        """(w,)."""
        return (state.w,)

    def own_leaves(self, state: ScafflixState) -> tuple[Tree]:
        """The clients' mixtures, a row each."""
        *_, alone = state.own.rows
        n_clients = jax.tree.leaves(alone)[0].shape[0]
        return (jax.vmap(self.mixture, (0, None, 0))(jnp.arange(n_clients), state.w, alone),)

    def mixture(self, client: Count, w: Tree, alone: Tree) -> Tree:
        """α_i w + (1 - α_i) alone_i."""
        return tree.axpy(self.share(client), tree.sub(w, alone), alone)

    def share(self, client: Count) -> Float[Array, ""]:
        """α_i."""
        alpha = jnp.asarray(self.alpha)
        return alpha[client] if alpha.ndim else alpha


def personal_steps(
    client: Client,
    w: Tree,
    own: tuple[Tree, Tree, Tree],
    *,
    problem: SingleLevel,
    algorithm: Scafflix,
    steps: Count,
    round: Count,
) -> tuple[Tree, Tree, Tree]:
    """The variate after the last mean, the common model before the next one, and that alone."""
    *known, alone = own

    def gradient(w, key):
        return problem.gradient(w, client.draw(problem.split, algorithm.batch_size, key))

    key = jax.random.fold_in(client.key, 1 << 20)  # no step of the common model has it
    rule, n = algorithm.own_lr, algorithm.own_steps

    def step_alone(nu, carry):
        v, opt = carry
        return move(rule, gradient(v, jax.random.fold_in(key, nu)), opt, v, round, n)

    steps_alone = jnp.where(jnp.asarray(round) == 0, n, 0)
    first = alone, first_opt(rule, alone)
    alone, _ = client.repeat(steps_alone, step_alone, first, most=n)

    def of_mixture(w, key):
        here = gradient(algorithm.mixture(client.id, w, alone), key)
        return tree.scale(algorithm.share(client.id), here)

    lr, p = algorithm.lr, algorithm.probability
    return *steps_from_mean(client, of_mixture, w, (known[0], known[1]), lr, p, steps), alone


def common_model(client: Client, own: tuple[Tree, Tree, Tree]) -> Tree:
    """What the client sends of what it keeps."""
    return own[1]

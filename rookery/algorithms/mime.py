"""MIME and MimeLite: local steps with the server's momentum, which stays fixed during a round.

S. P. Karimireddy, M. Jaggi, S. Kale, M. Mohri, S. J. Reddi, S. U. Stich, A. T. Suresh. Breaking the
centralized barrier for cross-device federated learning. NeurIPS 2021, arXiv:2008.03606.

    paper   code            meaning
    x       w               the model
    c       c               mean of the clients' full gradients at w
    s       momentum        m of the base optimiser, here momentum SGD
    β       beta            how much of it stays
    η       lr              step rule of the local steps

    MIME        exchange 1:  c = mean ∇f_i(w)
                exchange 2:  w_i = w_i - η ((1 - β) d + β m),  d = ∇f_i(w_i; ξ) - ∇f_i(w; ξ) + c
    MimeLite    one exchange:  the same with d = ∇f_i(w_i; ξ), and ∇f_i(w) up with w_i
    server      m = (1 - β) c + β m,  w = mean of w_i

With β = 0 MIME's local steps are those of FedLin and of FedInn, whose limit is exact; MimeLite's
are FedAvg's. Cost of a round: MIME 2 exchanges, w and then c and m down, the gradient and then w_i
up; MimeLite 1 exchange, w and m down, w_i and the gradient up.
"""

from dataclasses import KW_ONLY
from typing import ClassVar, NamedTuple

import equinox as eqx
import jax

from rookery import check, tree
from rookery.algorithms.shared import local
from rookery.algorithms.shared.schedule import number
from rookery.algorithms.shared.step_rule import Size, check_size, size_of, step_rule
from rookery.problem.constraints import projected
from rookery.problem.single_level import SingleLevel
from rookery.program.algorithm import SampledAlgorithm, check_kind, with_settings_of
from rookery.program.federation import AbstractFederation, Client
from rookery.types import Count, Key, Tree


class MimeState(NamedTuple):
    """The model and the momentum."""

    w: Tree
    momentum: Tree


class Mime(SampledAlgorithm):
    """Local steps with the server's momentum and, unless ``lite``, corrected gradients.

    Args:
        lr: η, a number or a schedule.
        beta: β, at least 0 and below 1.
        local_steps: one number or one per client.
        lite: whether gradients are left uncorrected, which saves an exchange.

    >>> Mime(lr=0.1, beta=0.9, local_steps=5, clients=10).beta
    0.9
    """

    projects: ClassVar[bool] = True

    _: KW_ONLY
    lr: Size = eqx.field(converter=step_rule)
    beta: float = eqx.field(converter=number, default=0.9)
    local_steps: local.LocalSteps = eqx.field(converter=local.local_steps, default=1)
    lite: bool = False

    def __check_init__(self):
        check_size("Mime", "lr", self.lr, "The base optimiser is momentum SGD: use beta.", "local")
        local.check_fields(self)
        check.decay("beta", self.beta)

    def check(self, problem: SingleLevel, n_clients: int) -> None:
        """Raise unless the problem has one level and the settings fit the clients."""
        check_kind(self, problem, SingleLevel)
        local.check_fields(self, n_clients)
        self.clients.check(n_clients)

    def init(self, problem: SingleLevel, w: Tree) -> MimeState:
        """The given model, without momentum."""
        return MimeState(w, tree.zeros_like(w))

    def round(
        self, fed: AbstractFederation, problem: SingleLevel, state: MimeState, key: Key
    ) -> MimeState:
        """One cohort, and one or two exchanges with it."""
        who, local_key = jax.random.split(key)
        cohort = fed.sample(self.clients, who)
        at, m = fed.cache(state.w), state.momentum
        w = fed.broadcast(cohort, at)  # ------------------------------------- down  w
        if self.lite:
            there = fed.broadcast(cohort, m)  # ------------------------------ down  m
            c = None
        else:
            c = fed.mean(fed.map(full_gradient, w, problem=problem))  # ------ up    ∇f_i(w)
            there = fed.broadcast(cohort, (c, m))  # ------------------------- down  c, m
        settings = {"problem": problem, "algorithm": self, "round": fed.round}
        replies = fed.map(momentum_steps, w, there, key=local_key, **settings)
        if self.lite:
            new, c = fed.mean(replies, around=(w, None))  # ------------------ up    w_i, ∇f_i(w)
        else:
            new = fed.mean(replies, around=w)  # ----------------------------- up    w_i
        m = tree.add(tree.scale(1 - self.beta, c), tree.scale(self.beta, m))
        return MimeState(projected(problem, "w", new), m)

    def solution(self, state: MimeState) -> tuple[Tree]:
        """(w,)."""
        return (state.w,)


@with_settings_of(Mime, without=("lite",))
def MimeLite(**settings) -> Mime:
    """MIME without corrections: one exchange a round.

    >>> MimeLite(lr=0.1, local_steps=5).name
    'MimeLite'
    """
    return Mime(**settings, lite=True, label="MimeLite")


def full_gradient(client: Client, w: Tree, *, problem: SingleLevel) -> Tree:
    """∇f_i(w), on all rows."""
    return problem.gradient(w, client.draw(problem.split, None, jax.random.key(0)))


def momentum_steps(
    client: Client, w: Tree, sent: Tree, *, problem: SingleLevel, algorithm: Mime, round: Count
) -> Tree:
    """w_i after the local steps; for MimeLite also ∇f_i(w)."""
    beta, steps = algorithm.beta, local.steps_of(client, algorithm.local_steps)
    size = size_of(algorithm.lr, round, steps)
    c, m = (None, sent) if algorithm.lite else sent

    def step(k, own):
        own = projected(problem, "w", own)
        key = jax.random.fold_in(client.key, k)
        sample = client.draw(problem.split, algorithm.batch_size, key)
        d = problem.gradient(own, sample)
        if c is not None:
            d = tree.add(tree.sub(d, problem.gradient(w, sample)), c)
        along = tree.add(tree.scale(1 - beta, d), tree.scale(beta, m))
        return tree.axpy(-size, along, own)

    own = client.repeat(steps, step, w, most=local.most_steps(algorithm.local_steps))
    return (own, full_gradient(client, w, problem=problem)) if algorithm.lite else own

"""Steps that the server takes, along means of what the clients send."""

from dataclasses import KW_ONLY

import equinox as eqx
import jax

from rookery import tree
from rookery.algorithms.fednest.fedinn import inner_gradient
from rookery.algorithms.shared import local
from rookery.algorithms.shared.interface import AbstractHypergradient, AbstractInner, AbstractOuter
from rookery.algorithms.shared.schedule import Rate, check_rates, size_at


class ServerSGD(AbstractInner):
    """One exchange gives the mean inner gradient, and the server takes one step (FedMBO).

    Args:
        lr: β, or how it falls (:class:`PowerDecay`).
    """

    _: KW_ONLY
    lr: Rate = eqx.field(converter=local.number)

    def __check_init__(self):
        check_rates("ServerSGD.lr", self.lr)

    def __call__(self, fed, problem, sampling, x, y, key):
        """The inner variable y after one step."""
        who, sample_key = jax.random.split(key)
        settings = {"problem": problem, "batch_size": sampling.batch_size}
        cohort = fed.sample(sampling.clients, who)
        at_x, at_y = fed.broadcast(cohort, x, y)  # ------------------------- down  x, y
        q_i = fed.map(inner_gradient, at_x, at_y, key=sample_key, **settings)
        q = fed.mean(q_i)  # ------------------------------------------------ up    q
        return tree.axpy(-size_at(self.lr, fed.round), q, y)

    def check(self, n_clients):
        """Always fits."""


class ServerStep(AbstractOuter):
    """The server takes one step  x - α h.

    It costs what the estimate of h costs.

    Args:
        lr: α, or how it falls (:class:`PowerDecay`).
        hypergradient: the estimator of h: :class:`PHE` or :class:`PHESum`, or an adjoint
            (:class:`FedIHGP`, :class:`FedIHGPSum`, :class:`FederatedCG`), which costs one exchange
            more to become a hypergradient.
    """

    _: KW_ONLY
    lr: Rate = eqx.field(converter=local.number)
    hypergradient: AbstractHypergradient

    def __check_init__(self):
        check_rates("ServerStep.lr", self.lr)

    def __call__(self, fed, problem, sampling, x, y, L, key):
        """The outer variable x after one step, and L."""
        h, L = self.hypergradient(fed, problem, sampling, x, y, L, key)
        return tree.axpy(-size_at(self.lr, fed.round), h, x), L

    def check(self, problem, n_clients):
        """The estimator must fit."""
        self.hypergradient.check(problem, n_clients)


class Hold(AbstractOuter):
    """Leaves x as it is, so that the inner problem alone is solved; it costs nothing."""

    def __call__(self, fed, problem, sampling, x, y, L, key):
        """The same x and L."""
        return x, L

    def check(self, problem, n_clients):
        """Always fits."""

"""SCGD, NASA and the composed gradient: compositions solved by server steps.

With layers F_0 .. F_N, the values z_n between them and the Jacobians J_n,

    SCGD        z_{n+1} <- (1 - b) z_{n+1} + b F_n(z_n), from the first layer to the last, then
                x <- x - a J_0(x)' J_1(z_1)' .. J_N(z_N)'.
                M. Wang, E. X. Fang, H. Liu. arXiv:1411.3803, which has N = 1.
    NASA        x <- x - (t / B) d, then at the new x  d <- (1 - a t) d + a t J_0(x)' J_1(z_1)',
                z_1 <- (1 - b t) z_1 + b t F_0(x); N = 1.
                S. Ghadimi, A. Ruszczynski, M. Wang. arXiv:1812.01094.
    ComposedSGD SCGD with b = 1 and one batch throughout: the gradient of the whole composition as
                the batch has it. The "centralised MSA" of FedMSA's figure 2 (arXiv:2306.01648).

On a population of one client these are the centralised methods. With several, every mean is taken
where it belongs, inside, so they are as right for clients that differ; it takes more exchanges:
2 N + 1 for SCGD and ComposedSGD, 2 for NASA. With everyone taking part, p the size of x and s that
of z_1 .. z_N together, each client is sent p + 2 s and sends p + 2 s.

A function of a batch's mean is not the mean of the function, so ComposedSGD is biased unless the
batch is everything. The released program of FedMSA divides this gradient by the number of rows in
the batch, which makes the rival slower by as much. Here it is undivided; the other one is had by
dividing outer_lr.
"""

from dataclasses import KW_ONLY
from typing import Any, NamedTuple

import equinox as eqx
import jax

from rookery import check, tree
from rookery.algorithms.shared.chain import backward, forward, own_gradient
from rookery.algorithms.shared.local import number
from rookery.algorithms.shared.schedule import AbstractSchedule, Rate, check_rates, size_at
from rookery.algorithms.shared.views import Blocks, initial_values
from rookery.problem.composition import Composition
from rookery.program.algorithm import AbstractAlgorithm
from rookery.program.federation import AbstractFederation, Client
from rookery.program.participation import AbstractParticipation, participation
from rookery.types import Key, Tree


class TrackedState(NamedTuple):
    """x and the followed values z_1 .. z_N."""

    x: Tree
    z: Blocks


class AveragedState(NamedTuple):
    """x, the followed value z_1, and the averaged gradient."""

    x: Tree
    z: Tree
    d: Tree


class SCGD(AbstractAlgorithm):
    """Follows the values between the layers by moving averages; x steps along their product.

    Every exchange has a fresh cohort and fresh samples, as a product of means needs.

    Args:
        outer_lr: of x; the paper's is a :class:`PowerDecay` with exponent 3/4.
        inner_lr: b, the share of a new value, at most 1; the paper's has exponent 1/2.
        clients: how many take part in an exchange, a rule that draws them, or None for everyone.
        batch_size: rows per evaluation on a client; None is all its rows.
    """

    _: KW_ONLY
    outer_lr: Rate = eqx.field(converter=number)
    inner_lr: Rate = eqx.field(converter=number)
    clients: AbstractParticipation = eqx.field(converter=participation, default=None)
    batch_size: int | None = None

    def __check_init__(self):
        _check_settings(self)
        _check_share("inner_lr", self.inner_lr)

    def check(self, problem: Composition, n_clients: int) -> None:
        """Raise unless the problem is a composition that says where values start."""
        _check_composition(self, problem)
        initial_values(problem)
        self.clients.check(n_clients)

    def init(self, problem: Composition, x: Tree) -> TrackedState:
        """X as given, the values as the problem says."""
        return TrackedState(x, initial_values(problem))

    def round(
        self, fed: AbstractFederation, problem: Composition, state: TrackedState, key: Key
    ) -> TrackedState:
        """The values from the first layer to the last, then the product from the last back."""
        N, share = len(problem.layers) - 1, size_at(self.inner_lr, fed.round)
        pairs = [jax.random.split(k) for k in jax.random.split(key, 2 * N + 1)]
        turns = [(fed.sample(self.clients, who), sample_key) for who, sample_key in pairs]

        def follow(n, value):
            return _mixed(share, value, state.z[n])

        z = forward(fed, problem, turns[:N], state.x, self.batch_size, follow)
        g = backward(fed, problem, turns[N:], z, self.batch_size)[0]
        x = tree.axpy(-size_at(self.outer_lr, fed.round), g, state.x)
        return TrackedState(x, tuple(value.value for value in z[1:]))

    def solution(self, state: TrackedState) -> tuple[Tree]:
        """(x,)."""
        return (state.x,)


class ComposedSGD(AbstractAlgorithm):
    """Steps along the gradient of the whole composition on one batch, which is not divided.

    Args:
        outer_lr: of x, a number or a schedule.
        clients: how many take part in a round, a rule that draws them, or None for everyone.
        batch_size: rows per client; None is all its rows, and then the gradient is exact.
    """

    _: KW_ONLY
    outer_lr: Rate = eqx.field(converter=number)
    clients: AbstractParticipation = eqx.field(converter=participation, default=None)
    batch_size: int | None = None

    def __check_init__(self):
        _check_settings(self)

    def check(self, problem: Composition, n_clients: int) -> None:
        """Raise unless the problem is a composition."""
        _check_composition(self, problem)
        self.clients.check(n_clients)

    def init(self, problem: Composition, x: Tree) -> TrackedState:
        """X as given; no value is followed."""
        return TrackedState(x, ())

    def round(
        self, fed: AbstractFederation, problem: Composition, state: TrackedState, key: Key
    ) -> TrackedState:
        """One cohort and one batch from the first layer to the last and back."""
        who, sample_key = jax.random.split(key)
        N, turn = len(problem.layers) - 1, (fed.sample(self.clients, who), sample_key)
        z = forward(fed, problem, [turn] * N, state.x, self.batch_size)
        g = backward(fed, problem, [turn] * (N + 1), z, self.batch_size)[0]
        return TrackedState(tree.axpy(-size_at(self.outer_lr, fed.round), g, state.x), ())

    def solution(self, state: TrackedState) -> tuple[Tree]:
        """(x,)."""
        return (state.x,)


class NASA(AbstractAlgorithm):
    """Averages the gradient as well as the value, with one step size for all three sequences.

    Args:
        lr: t, a number or a schedule; the paper's is one over the root of the number of rounds.
        proximity: B, which divides the step of x.
        gradient_share: a, the share of a new gradient is a t.
        value_share: b, the share of a new value is b t.
        clients: how many take part in an exchange, a rule that draws them, or None for everyone.
        batch_size: rows per evaluation on a client; None is all its rows.
    """

    _: KW_ONLY
    lr: Rate = eqx.field(converter=number)
    proximity: float = eqx.field(converter=number, default=1.0)
    gradient_share: float = eqx.field(converter=number, default=1.0)
    value_share: float = eqx.field(converter=number, default=1.0)
    clients: AbstractParticipation = eqx.field(converter=participation, default=None)
    batch_size: int | None = None

    def __check_init__(self):
        _check_settings(self)
        for name in ("proximity", "gradient_share", "value_share"):
            check.positive(name, getattr(self, name))
        for name in ("gradient_share", "value_share"):
            _check_share(f"{name} times lr", self.lr, getattr(self, name))

    def check(self, problem: Composition, n_clients: int) -> None:
        """Raise unless the problem is a composition of two layers."""
        _check_composition(self, problem)
        if len(problem.layers) != 2:
            raise ValueError(
                f"NASA solves compositions of two layers, got {len(problem.layers)} layers."
            )
        initial_values(problem)
        self.clients.check(n_clients)

    def init(self, problem: Composition, x: Tree) -> AveragedState:
        """X as given, the value as the problem says, and no gradient yet."""
        return AveragedState(x, initial_values(problem)[0], tree.zeros_like(x))

    def round(
        self, fed: AbstractFederation, problem: Composition, state: AveragedState, key: Key
    ) -> AveragedState:
        """Two exchanges: the outer gradient at z, then the inner layer at the new x."""
        x, z, d = state
        keys = jax.random.split(key, 4)
        settings = {"problem": problem, "batch_size": self.batch_size}
        t = size_at(self.lr, fed.round)
        x = tree.axpy(-t / self.proximity, d, x)

        cohort = fed.sample(self.clients, keys[0])
        at = fed.broadcast(cohort, z)  # ------------------------------------ down  z
        a = fed.mean(fed.map(own_gradient, at, key=keys[1], **settings))  # - up    ∇F_1(z)

        cohort = fed.sample(self.clients, keys[2])
        at, along = fed.broadcast(cohort, x, a)  # -------------------------- down  x, a
        both = fed.map(own_value_and_pullback, at, along, key=keys[3], **settings)
        value, g = fed.mean(both)  # ---------------------------------------- up    F_0(x), J_0' a
        return AveragedState(
            x, _mixed(self.value_share * t, value, z), _mixed(self.gradient_share * t, g, d)
        )

    def solution(self, state: AveragedState) -> tuple[Tree]:
        """(x,)."""
        return (state.x,)


def own_value_and_pullback(
    client: Client, x: Tree, a: Tree, *, problem: Composition, batch_size: int | None
) -> tuple[Tree, Tree]:
    """F_0(x; ξ) and J_0(x; ξ)' a."""
    sample = client.draw(problem.split, batch_size, client.key)
    return problem.layer(0, x, sample), problem.layer_vjp(0, x, a, sample)


def _mixed(share: Any, new: Tree, old: Tree) -> Tree:
    return tree.axpy(share, new, tree.scale(1 - share, old))


def _check_share(name: str, rate: Rate, factor: float = 1.0) -> None:
    """Raise if a share of a new value, which is largest in round 0, is more than all of it."""
    first = rate.lr if isinstance(rate, AbstractSchedule) else rate
    if isinstance(first, float) and isinstance(factor, float):
        check.fraction(name, factor * first)


def _check_settings(algorithm: Any) -> None:
    for name, value in vars(algorithm).items():
        if name.endswith("lr"):
            check_rates(name, value)
    if algorithm.batch_size is not None:
        check.count("batch_size", algorithm.batch_size)


def _check_composition(algorithm: AbstractAlgorithm, problem: Any) -> None:
    if not isinstance(problem, Composition):
        raise TypeError(
            f"{type(algorithm).__name__} solves Composition problems, got {type(problem).__name__}."
        )

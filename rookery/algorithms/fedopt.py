"""FedOpt: FedAvg whose server steps by an adaptive optimiser.

S. J. Reddi, Z. Charles, M. Zaheer, Z. Garrett, K. Rush, J. Konečný, S. Kumar, H. B. McMahan.
Adaptive federated optimization. ICLR 2021, arXiv:2003.00295. FedAvgM: T.-M. H. Hsu, H. Qi,
M. Brown. Measuring the effects of non-identical data distribution for federated visual
classification. 2019, arXiv:1909.06335.

    paper   code            meaning
    x       w               the model
    η_l     lr              step rule of the local steps
    η       server_lr       step size of the server
    Δ_t     -(w - mean)     the mean of the clients' moves
    m, v    m, v            first and second moment of Δ_t
    β₁, β₂  b1, b2          how much of the old moments stays
    τ       tau             added to the root of v; v starts at τ²

A round is FedAvg's, at its cost, up to the server's step, which takes -Δ_t for a gradient:

    FedAvgM     m <- b1 m + Δ,               w <- w + η m
    others      m <- b1 m + (1 - b1) Δ,      w <- w + η m / (√v + τ),  where
    FedAdagrad  v <- v + Δ²
    FedAdam     v <- b2 v + (1 - b2) Δ²
    FedYogi     v <- v - (1 - b2) Δ² sign(v - Δ²)

The paper has no bias correction. With ``bias_correction`` m is divided by 1 - b1^t, and so is v by
1 - b2^t in FedAdam and FedYogi, where it then starts at zero; FedAdam's step is then Adam's. They
are configurations of :class:`FedAvg`, and ``FedAvg(server_lr=...)`` takes any other optimiser.
"""

from typing import Literal, NamedTuple, Required, TypedDict, Unpack

import jax
import jax.numpy as jnp
import optax

from rookery import check
from rookery.algorithms.fedavg import FedAvg
from rookery.algorithms.shared.local import LocalSteps
from rookery.algorithms.shared.schedule import AbstractSchedule
from rookery.algorithms.shared.step_rule import Optimiser, StepRule, check_size, step_rule
from rookery.program.participation import AbstractParticipation
from rookery.signature import expands
from rookery.types import BatchSize, Number, Tree

Kind = Literal["adagrad", "adam", "yogi"]
"""How the second moment follows the squares."""

READY_MADE = (
    "It is the step size of the optimiser that the algorithm has already. For another one use "
    "FedAvg(server_lr=...)."
)
"""Why the ready-made algorithms take no optimiser."""


class LocalSettings(TypedDict, total=False):
    """The settings of :class:`FedAvg` that are not the server's."""

    lr: Required[StepRule]
    local_steps: LocalSteps
    clients: AbstractParticipation | int | None
    batch_size: BatchSize


def local_settings(
    *,
    lr: StepRule,
    local_steps: LocalSteps = 1,
    clients: AbstractParticipation | int | None = None,
    batch_size: BatchSize = None,
) -> LocalSettings:
    """The same as a function, whose parameters experiment files know."""
    return LocalSettings(lr=lr, local_steps=local_steps, clients=clients, batch_size=batch_size)


class AdaptiveSettings(LocalSettings, total=False):
    """Those, and the numbers of the server's moments in FedAdam and FedYogi."""

    b1: float
    b2: float
    tau: float
    bias_correction: bool


@expands(local_settings)
def adaptive_settings(
    *,
    b1: float = 0.9,
    b2: float = 0.99,
    tau: float = 1e-3,
    bias_correction: bool = False,
    **settings: Unpack[LocalSettings],
) -> tuple[tuple[float, float, float, bool], LocalSettings]:
    """The numbers of the moments, in the order of :func:`server_rule`, and the other settings."""
    return (b1, b2, tau, bias_correction), local_settings(**settings)


@expands(local_settings)
def FedAvgM(
    *,
    server_lr: float | AbstractSchedule = 1.0,
    b1: float = 0.9,
    **settings: Unpack[LocalSettings],
) -> FedAvg:
    """FedAvg with momentum at the server.

    ``b1`` is how much of the old momentum stays. The other settings are those of :class:`FedAvg`.

    >>> FedAvgM(lr=0.1, local_steps=5, b1=0.8).name
    'FedAvgM'
    """
    check_size("FedAvgM", "server_lr", step_rule(server_lr), READY_MADE)
    check.decay("b1", b1)
    momentum = Optimiser(optax.sgd, learning_rate=server_lr, momentum=b1)
    return FedAvg(label="FedAvgM", server_lr=momentum, **local_settings(**settings))


@expands(local_settings)
def FedAdagrad(
    *,
    server_lr: float | AbstractSchedule,
    b1: float = 0.0,
    tau: float = 1e-3,
    bias_correction: bool = False,
    **settings: Unpack[LocalSettings],
) -> FedAvg:
    """FedAvg whose server divides by the root of the sum of all squares.

    The paper's experiments have b1 = 0. The other settings are those of :class:`FedAvg`.

    >>> FedAdagrad(lr=0.1, server_lr=0.05).name
    'FedAdagrad'
    """
    rule = server_rule("adagrad", server_lr, b1, 0.0, tau, bias_correction)
    return FedAvg(label="FedAdagrad", server_lr=rule, **local_settings(**settings))


@expands(adaptive_settings)
def FedAdam(*, server_lr: float | AbstractSchedule, **settings: Unpack[AdaptiveSettings]) -> FedAvg:
    """FedAvg whose server steps by Adam; the paper's has no bias correction.

    The other settings are those of :class:`FedAvg`.

    >>> FedAdam(lr=0.1, server_lr=0.01, clients=10, bias_correction=True).name
    'FedAdam'
    """
    moments, others = adaptive_settings(**settings)
    rule = server_rule("adam", server_lr, *moments)
    return FedAvg(label="FedAdam", server_lr=rule, **others)


@expands(adaptive_settings)
def FedYogi(*, server_lr: float | AbstractSchedule, **settings: Unpack[AdaptiveSettings]) -> FedAvg:
    """FedAvg whose server steps by Yogi: v falls by no more than (1 - b2) Δ² a round.

    The other settings are those of :class:`FedAvg`.

    >>> FedYogi(lr=0.1, server_lr=0.01, batch_size=32).name
    'FedYogi'
    """
    moments, others = adaptive_settings(**settings)
    rule = server_rule("yogi", server_lr, *moments)
    return FedAvg(label="FedYogi", server_lr=rule, **others)


def server_rule(
    kind: Kind,
    server_lr: float | AbstractSchedule,
    b1: float,
    b2: float,
    tau: float,
    bias_correction: bool,
) -> Optimiser:
    """The server's rule, its numbers checked."""
    check_size(f"Fed{kind.capitalize()}", "server_lr", step_rule(server_lr), READY_MADE)
    check.decay("b1", b1)
    check.decay("b2", b2)
    check.positive("tau", tau)
    numbers = {"learning_rate": server_lr, "b1": b1, "b2": b2, "tau": tau}
    return Optimiser(adaptive, **numbers, kind=kind, bias_correction=bias_correction)


class Moments(NamedTuple):
    """How many steps were taken, and the moments."""

    steps: jax.Array
    m: Tree
    v: Tree


def adaptive(
    learning_rate: Number, b1: Number, b2: Number, tau: Number, kind: Kind, bias_correction: bool
) -> optax.GradientTransformation:
    """The paper's algorithm 2 as an Optax transformation; the module says which lines it has.

    >>> import jax.numpy as jnp
    >>> rule = adaptive(0.1, 0.9, 0.99, 0.5, "adam", False)
    >>> rule.init(jnp.zeros(2)).v.tolist()  # tau squared
    [0.25, 0.25]
    """
    is_mean = kind != "adagrad"  # of squares, where adagrad has their sum

    def init(params):
        first = 0 * tau if bias_correction and is_mean else tau * tau
        v = jax.tree.map(lambda leaf: jnp.full_like(leaf, first), params)
        return Moments(jnp.zeros((), jnp.int32), jax.tree.map(jnp.zeros_like, params), v)

    def second(v, g):
        match kind:
            case "adagrad":
                return v + g * g
            case "adam":
                return b2 * v + (1 - b2) * g * g
            case "yogi":
                return v - (1 - b2) * g * g * jnp.sign(v - g * g)

    def update(updates, state, params=None):
        steps = state.steps + 1
        m = jax.tree.map(lambda m, g: b1 * m + (1 - b1) * g, state.m, updates)
        v = jax.tree.map(second, state.v, updates)
        first = 1 - b1**steps if bias_correction else 1
        other = 1 - b2**steps if bias_correction and is_mean else 1
        step = jax.tree.map(
            lambda m, v: -learning_rate * (m / first) / (jnp.sqrt(v / other) + tau), m, v
        )
        return step, Moments(steps, m, v)

    return optax.GradientTransformation(init, update)

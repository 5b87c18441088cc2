"""A composition from its first layer to its last, and back, by means over clients.

    forward     z_{n+1} = F_n(z_n)                          an exchange for each layer but the last
    backward    a_N = ∇F_N(z_N),  a_n = J_n(z_n)' a_{n+1}   an exchange for each layer

The last of the a_n, that of x, is the gradient if the values are those of the layers. Values are
cached: a client that was sent z_n going forward is not sent it again going back.
"""

from collections.abc import Callable, Sequence

from rookery.problem import oracles
from rookery.problem.composition import Composition
from rookery.program.federation import AbstractFederation, Cached, Client
from rookery.program.participation import Cohort
from rookery.types import BatchSize, Key, Tree

Draw = tuple[Cohort, Key]
"""The cohort of an exchange, and the key of its samples."""


def forward(
    fed: AbstractFederation,
    problem: Composition,
    draws: Sequence[Draw],
    x: Tree,
    batch_size: BatchSize,
    follow: Callable[[int, Tree], Tree] = lambda n, value: value,
) -> list[Cached]:
    """x and z_1 .. z_N.

    Args:
        fed: the federation.
        problem: the composition.
        draws: one for each layer but the last.
        x: the start.
        batch_size: rows per client; None means all.
        follow: what z_{n+1} is, from n and the value of layer n; the value itself if not given.
    """
    points = [fed.cache(x)]
    settings = {"problem": problem, "batch_size": batch_size}
    for n, (cohort, key) in enumerate(draws):
        at = fed.broadcast(cohort, points[n])  # ---------------------------- down  z_n
        value_i = fed.map(own_layer, at, key=key, layer=n, **settings)
        value = fed.mean(value_i)  # ---------------------------------------- up    F_n(z_n)
        points.append(fed.cache(follow(n, value)))
    return points


def backward(
    fed: AbstractFederation,
    problem: Composition,
    draws: Sequence[Draw],
    points: list[Cached],
    batch_size: BatchSize,
) -> list[Tree]:
    """J_0(x)' a_1 and a_1 .. a_N, in this order; a draw for each layer, that of the last first."""
    last, *others = draws
    settings = {"problem": problem, "batch_size": batch_size}
    at = fed.broadcast(last[0], points[-1])  # ------------------------------ down  z_N
    pulled = [fed.mean(fed.map(own_gradient, at, key=last[1], **settings))]  # up   ∇F_N(z_N)
    for n, (cohort, key) in zip(reversed(range(len(others))), others, strict=True):
        at, along = fed.broadcast(cohort, points[n], pulled[0])  # ---------- down  a (and z_n)
        a_i = fed.map(own_pullback, at, along, key=key, layer=n, **settings)
        pulled.insert(0, fed.mean(a_i))  # ---------------------------------- up    J_n(z_n)' a
    return pulled


def own_layer(
    client: Client, z: Tree, *, problem: Composition, batch_size: BatchSize, layer: int
) -> Tree:
    """F_n(z; ξ)."""
    return problem.layer(layer, z, client.draw(problem.split, batch_size, client.key))


def own_gradient(client: Client, z: Tree, *, problem: Composition, batch_size: BatchSize) -> Tree:
    """∇F_N(z; ξ) of the last layer."""
    sample = client.draw(problem.split, batch_size, client.key)
    return oracles.gradient(problem.layers[-1], (z,), 0, sample)


def own_pullback(
    client: Client, z: Tree, a: Tree, *, problem: Composition, batch_size: BatchSize, layer: int
) -> Tree:
    """J_n(z; ξ)' a."""
    return problem.layer_vjp(layer, z, a, client.draw(problem.split, batch_size, client.key))

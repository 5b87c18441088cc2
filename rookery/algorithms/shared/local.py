"""Local steps on a client: how many, how large, and in which direction."""

from collections.abc import Callable, Mapping
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp

from rookery import check, tree
from rookery.program.federation import Client
from rookery.rng import below
from rookery.types import Count, Key, Number, Sample, Tree


def number(value: object) -> Any:  # of the type of the field that it converts
    """Field converter: whole numbers become floats, so that they can be swept over."""
    return float(value) if isinstance(value, int) and not isinstance(value, bool) else value


class PerCall(eqx.Module):
    """A step size for a whole call, shared out over its local steps: lr_i = lr / local_steps_i.

    With it, clients that take unequally many steps move equally far; a plain number instead is the
    size of every single local step.
    """

    lr: float = eqx.field(converter=number)

    def __check_init__(self):
        check.positive("PerCall.lr", self.lr)


class RandomSteps(eqx.Module):
    """A number of local steps drawn for every job of a client, uniform on low..high.

    >>> import rookery as rk
    >>> rk.AFACS(lr=0.1, server_lr=0.5, local_steps=rk.parts.RandomSteps(1, 4)).local_steps
    RandomSteps(low=1, high=4)
    """

    low: int
    high: int

    def __check_init__(self):
        check.count("RandomSteps.low", self.low)
        check.count("RandomSteps.high", self.high, least=self.low)


LearningRate = float | PerCall
LocalSteps = int | tuple[int, ...] | RandomSteps
"""One number for all clients, one per client, or (where jobs are asynchronous) a random one."""


def check_learning_rate(name: str, value: object) -> None:
    """Raise unless a step size is a positive number or a :class:`PerCall`."""
    if not isinstance(value, PerCall):
        check.positive(name, value)


def local_steps(value) -> LocalSteps:
    """Field converter: a list of counts becomes a tuple."""
    return tuple(value) if isinstance(value, list) else value


def check_local_steps(
    name: str, value: LocalSteps, n_clients: int | None = None, may_be_drawn: bool = False
) -> None:
    """Raise unless counts are at least one and, if given per client, there is one for each."""
    if isinstance(value, RandomSteps):
        if not may_be_drawn:
            raise TypeError(
                f"{name} must be one number or one per client, got RandomSteps. Only the anarchic "
                "methods (AFBO, AFACD, AFACS), whose clients choose, draw it for each job."
            )
        return
    for count in value if isinstance(value, tuple) else (value,):
        check.count(name, count)
    if n_clients is not None and isinstance(value, tuple) and len(value) != n_clients:
        raise ValueError(f"{name} has {len(value)} entries for {n_clients} clients.")


def check_fields(
    algorithm: eqx.Module,
    n_clients: int | None = None,
    *,
    may_be_drawn: bool = False,
    except_for: tuple[str, ...] = (),
) -> None:
    """Check an algorithm's step sizes, numbers of local steps and batch sizes, told by their names.

    In every algorithm step sizes are ``lr`` or end in ``_lr``, numbers of local steps end in
    ``_steps`` and batch sizes in ``batch_size``.

    Args:
        algorithm: whose fields are checked.
        n_clients: how many clients there are, if known.
        may_be_drawn: whether a number of local steps may be :class:`RandomSteps`.
        except_for: fields with a rule of their own, which the caller checks.
    """
    fields = {name: value for name, value in vars(algorithm).items() if name not in except_for}
    check_settings(fields, n_clients, may_be_drawn=may_be_drawn)


def check_settings(
    settings: Mapping[str, object], n_clients: int | None = None, *, may_be_drawn: bool = False
) -> None:
    """:func:`check_fields` for settings by name."""
    for name, value in settings.items():
        if name == "lr" or name.endswith("_lr"):
            check_learning_rate(name, value)
        elif name.endswith("_steps"):
            check_local_steps(name, local_steps(value), n_clients, may_be_drawn)
        elif name.endswith("batch_size") and value is not None:
            check.count(name, value)


def steps_of(client: Client, steps: LocalSteps, key: Key | None = None):
    """How many local steps this client takes; the key is for those that are drawn."""
    if isinstance(steps, RandomSteps):
        assert key is not None, "algorithms that draw no number of steps refuse RandomSteps"
        return steps.low + below(key, (), steps.high - steps.low + 1)
    return jnp.asarray(steps, jnp.int32)[client.id] if isinstance(steps, tuple) else steps


def step_size(lr: LearningRate, steps):
    """The size of one local step of a client that takes so many."""
    return lr.lr / jnp.asarray(steps).astype(float) if isinstance(lr, PerCall) else lr


def plain_steps(
    client: Client,
    direction: Callable[[Tree, Key], Tree],
    start: Tree,
    lr: LearningRate,
    steps: LocalSteps,
    key: Key,
) -> Tree:
    """Local steps against ``direction(w, key)``, with a fresh key each."""
    own_steps = steps_of(client, steps)
    size = step_size(lr, own_steps)

    def step(nu, w):
        return tree.axpy(-size, direction(w, jax.random.fold_in(key, nu)), w)

    return client.repeat(own_steps, step, start)


def mean_gradient(
    client: Client,
    gradient: Callable[[Tree, Key], Tree],
    start: Tree,
    size: Number,
    steps: Count,
    key: Key,
) -> Tree:
    """The mean of the gradients along local steps of a given size and number, with a key each."""

    def step(k, carry):
        w, total = carry
        g = gradient(w, jax.random.fold_in(key, k))
        return tree.axpy(-size, g, w), tree.add(total, g)

    _, total = client.repeat(steps, step, (start, tree.zeros_like(start)))
    return tree.scale(1 / jnp.asarray(steps).astype(float), total)


def corrected_steps(
    client: Client,
    draw: Callable[[Key], Sample],
    gradient: Callable[[Tree, Sample], Tree],
    anchor: Tree,
    correction: Tree,
    lr: LearningRate,
    steps: LocalSteps,
) -> Tree:
    """Local steps along  G_i(w; ξ) - G_i(anchor; ξ) + correction,  the same sample ξ in both.

    At the anchor the difference is zero, so the first step needs no evaluation.
    """
    own_steps = steps_of(client, steps)
    size = step_size(lr, own_steps)

    def step(nu, w):
        sample = draw(jax.random.fold_in(client.key, nu))
        drift = tree.sub(gradient(w, sample), gradient(anchor, sample))
        return tree.axpy(-size, tree.add(drift, correction), w)

    return client.repeat(own_steps - 1, step, tree.axpy(-size, correction, anchor))

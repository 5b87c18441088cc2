"""Tasks with a known solution: problems of :mod:`rookery.problem.zoo`, judged by their distance.

A task takes the arguments of the zoo function that it is built on.
"""

import functools
import inspect
from collections.abc import Callable, Mapping
from typing import ParamSpec, Protocol, TypeVar, runtime_checkable

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from rookery.clients.population import Population
from rookery.problem import zoo
from rookery.problem.bilevel import Bilevel, PersonalBilevel
from rookery.problem.composition import Composition
from rookery.problem.conditional import Conditional
from rookery.problem.minimax import Minimax
from rookery.runner.metrics import OfSolution
from rookery.tasks.task import Task

Arguments = ParamSpec("Arguments")
Member = TypeVar("Member")


def _with_arguments_of(
    make: Callable[Arguments, Member],
) -> Callable[[Callable[[Member], Task]], Callable[Arguments, Task]]:
    """Turn a function of a zoo problem into one that takes the arguments of ``make``."""

    def decorate(task: Callable[[Member], Task]) -> Callable[Arguments, Task]:
        def build(*args: Arguments.args, **kwargs: Arguments.kwargs) -> Task:
            return task(make(*args, **kwargs))

        functools.update_wrapper(build, task)
        # what help() and experiment files see
        build.__signature__ = inspect.signature(make).replace(return_annotation=Task)  # pyright: ignore[reportFunctionMemberAccess]
        return build

    return decorate


@runtime_checkable
class _Member(Protocol):
    @property
    def problem(self) -> Bilevel | PersonalBilevel | Minimax | Composition | Conditional: ...
    @property
    def data(self) -> dict[str, np.ndarray]: ...
    @property
    def start(self) -> tuple[np.ndarray, ...]: ...


def _task(member: _Member, *evaluate: Callable[..., Mapping[str, jax.Array]]) -> Task:
    return Task(
        problem=member.problem,
        population=Population.stacked(member.data),
        start=lambda seed: member.start,
        evaluate=tuple(OfSolution(one) for one in evaluate),
    )


def _bilevel_task(member: zoo.QuadraticBilevel | zoo.PersonalQuadratic) -> Task:
    away = Distance(("x", "y"), member.solution())
    return _task(member, away, GradientNorm(*member.affine_hypergradient()))


@_with_arguments_of(zoo.quadratic_bilevel)
def quadratic(member: zoo.QuadraticBilevel) -> Task:
    """Solve a random quadratic bilevel problem, starting at zero.

    Arguments are those of :func:`rookery.problem.zoo.quadratic_bilevel`. Runs measure the distances
    of x and y from the solution, and the norm of the hypergradient.

    >>> quadratic(n_clients=3, heterogeneity=0.5).population.n_clients
    3
    """
    return _bilevel_task(member)


@_with_arguments_of(zoo.personal_quadratic)
def personal_quadratic(member: zoo.PersonalQuadratic) -> Task:
    """Solve a random quadratic bilevel problem whose clients have inner variables of their own.

    Arguments are those of :func:`rookery.problem.zoo.personal_quadratic`. Runs measure the distance
    of x from the solution, that of the mean of the clients' y from the mean of the exact ones, and
    the norm of the hypergradient.

    >>> personal_quadratic(n_clients=3, heterogeneity=0.5).population.n_clients
    3
    """
    return _bilevel_task(member)


@_with_arguments_of(zoo.saddle)
def saddle(member: zoo.QuadraticSaddle) -> Task:
    """Find the saddle point of a random quadratic, starting at ten in every coordinate.

    Arguments are those of :func:`rookery.problem.zoo.saddle`. Runs measure the distances of x and y
    from the saddle point.

    >>> saddle(n_clients=3, x_size=2).start(0)[0].tolist()
    [10.0, 10.0]
    """
    return _task(member, Distance(("x", "y"), member.solution()))


@_with_arguments_of(zoo.fednest_saddle)
def fednest_saddle(member: zoo.QuadraticSaddle) -> Task:
    """Find the saddle point (zero) of the FedNest paper's instance, starting at ten.

    Arguments are those of :func:`rookery.problem.zoo.fednest_saddle`. Runs measure the distances of
    x and y from the saddle point.

    >>> fednest_saddle(n_clients=20, size=2).population.n_clients
    20
    """
    return _task(member, Distance(("x", "y"), member.solution()))


@_with_arguments_of(zoo.dirac_gan)
def dirac_gan(member: zoo.DiracGAN) -> Task:
    """Train a GAN of one point, on which plain descent-ascent spirals outwards.

    Arguments are those of :func:`rookery.problem.zoo.dirac_gan`. Runs measure the distances of the
    generator x and the critic y from the saddle point.

    >>> dirac_gan(n_clients=3).start(0)[1].tolist()
    [1.0, 1.0]
    """
    return _task(member, Distance(("x", "y"), member.solution()))


@_with_arguments_of(zoo.mean_semideviation)
def mean_semideviation(member: zoo.MeanSemideviation) -> Task:
    """Recover a vector from squared measurements, starting at 0.1 in every coordinate.

    The loss is a mean plus its upward deviation, three nested levels, as in FedMSA. Arguments are
    those of :func:`rookery.problem.zoo.mean_semideviation`. Runs measure the distance of x from the
    nearer of the two solutions x* and -x*.

    >>> mean_semideviation(rows=50, size=2).start(0)[0].tolist()
    [0.1, 0.1]
    """
    return _task(member, DistanceUpToSign(*member.solution()))


@_with_arguments_of(zoo.conditional_quadratic)
def conditional_quadratic(member: zoo.ConditionalQuadratic) -> Task:
    """Solve a random quadratic of a conditional expectation, starting at zero.

    Arguments are those of :func:`rookery.problem.zoo.conditional_quadratic`. Runs measure the
    distance of w from the exact solution and, as ``distance_plug_in_w``, from that of the plug-in
    with ``m_in`` draws, where its bias leads.

    >>> conditional_quadratic(n_clients=3, m_in=2).population.n_clients
    3
    """
    return _task(
        member,
        Distance(("w",), member.solution()),
        Distance(("plug_in_w",), member.plug_in_solution()),
    )


class Distance(eqx.Module):
    """The Euclidean distances of the variables from the solution.

    Args:
        names: names of the variables, such as x and y.
        solution: one array per variable.

    >>> {k: float(v) for k, v in Distance(("x",), (np.zeros(2),))(jnp.array([3.0, 4.0])).items()}
    {'distance_x': 5.0}
    """

    names: tuple[str, ...] = eqx.field(static=True)
    solution: tuple[Float[np.ndarray | Array, " _size"], ...]

    def __call__(self, *variables: Float[Array, " _size"]) -> dict[str, Float[Array, ""]]:
        """``distance_x`` and so on, one number for each variable."""
        named = zip(self.names, variables, self.solution, strict=True)
        return {f"distance_{name}": _distance(value, exact) for name, value, exact in named}


class DistanceUpToSign(eqx.Module):
    """The distance of x from the nearer of two opposite solutions.

    >>> float(DistanceUpToSign(np.ones(4))(-jnp.ones(4))["distance_x"])
    0.0
    """

    solution: Float[np.ndarray | Array, " size"]

    def __call__(self, x: Float[Array, " size"]) -> dict[str, Float[Array, ""]]:
        """``distance_x``."""
        exact = jnp.asarray(self.solution)
        return {"distance_x": jnp.minimum(_distance(x, exact), _distance(x, -exact))}


class GradientNorm(eqx.Module):
    """The Euclidean norm of a known outer gradient that is affine in x.

    Args:
        slope: its matrix.
        zero: its value at x = 0.

    >>> float(GradientNorm(np.eye(2), np.zeros(2))(jnp.array([3.0, 4.0]))["gradient_norm"])
    5.0
    """

    slope: Float[np.ndarray | Array, "size size"]
    zero: Float[np.ndarray | Array, " size"]

    def __call__(self, x: Float[Array, " size"], *_: object) -> dict[str, Float[Array, ""]]:
        """``gradient_norm``."""
        slope, zero = (jnp.asarray(a).astype(x.dtype) for a in (self.slope, self.zero))
        return {"gradient_norm": jnp.linalg.norm(slope @ x + zero)}


def _distance(value: jax.Array, exact: np.ndarray | jax.Array) -> jax.Array:
    """The Euclidean distance, in the precision of the value."""
    return jnp.linalg.norm(value - jnp.asarray(exact).astype(value.dtype))

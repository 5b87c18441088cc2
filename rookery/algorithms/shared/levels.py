"""The two levels of each class of problem: the only module that distinguishes the classes.

                        Bilevel         Minimax     Composition of two layers, f(r(x))
    inner gradient      g_y             -f_y        y - r(x)
    Hessian times p     g_yy p          -           p
    adjoint v           g_yy^{-1} f_y   none        f_y
    hypergradient       f_x - g_xy v    f_x         r_x' v

Each of these is a mean over clients of their own terms. In a minimax problem f_y vanishes at the
inner solution, and the adjoint with it.
"""

from rookery import tree
from rookery.problem import oracles
from rookery.problem.bilevel import AbstractBilevel, Bilevel
from rookery.problem.composition import Composition
from rookery.problem.minimax import Minimax
from rookery.types import Problem, Sample, Tree

TwoLevel = AbstractBilevel | Minimax | Composition
"""Also those whose inner variables are the clients' own, which only some algorithms solve."""


def check_two_levels(name: str, problem: Problem) -> None:
    """Raise unless a problem is of a class above, and a composition has two layers."""
    if not isinstance(problem, Bilevel | Minimax | Composition):
        raise TypeError(
            f"{name} solves Bilevel, Minimax and two-layer Composition problems, "
            f"got {type(problem).__name__}."
        )
    if isinstance(problem, Composition) and len(problem.layers) != 2:
        raise ValueError(
            f"{name} solves compositions of two layers, got {len(problem.layers)} layers."
        )


def inner_split(problem: TwoLevel) -> str:
    """The split of a client's data that the inner level is averaged over."""
    return problem.inner_split if isinstance(problem, AbstractBilevel) else problem.split


def outer_split(problem: TwoLevel) -> str:
    """The split of a client's data that the outer level is averaged over."""
    return problem.outer_split if isinstance(problem, AbstractBilevel) else problem.split


def inner_gradient(problem: TwoLevel, x: Tree, y: Tree, sample: Sample) -> Tree:
    """The gradient whose mean over clients is zero at the inner solution."""
    match problem:
        case AbstractBilevel():
            return problem.inner_grad_y(x, y, sample)
        case Minimax():
            return tree.scale(-1, problem.grad_y(x, y, sample))
        case Composition():
            return tree.sub(y, problem.layer(0, x, sample))


def outer_gradient_y(problem: TwoLevel, x: Tree, y: Tree, sample: Sample) -> Tree:
    """f_y, the right side of the adjoint's system."""
    match problem:
        case AbstractBilevel():
            return problem.outer_grad_y(x, y, sample)
        case Composition():
            return oracles.gradient(problem.layers[1], (y,), 0, sample)
        case Minimax():
            raise TypeError("a minimax problem has no adjoint.")


def hessian_vector(problem: TwoLevel, x: Tree, y: Tree, p: Tree, sample: Sample) -> Tree:
    """g_yy p, the left side of the adjoint's system."""
    match problem:
        case AbstractBilevel():
            return problem.inner_hvp(x, y, p, sample)
        case Composition():
            return p
        case Minimax():
            raise TypeError("a minimax problem has no adjoint.")


def outer_gradient_x(problem: TwoLevel, x: Tree, y: Tree, sample: Sample) -> Tree:
    """f_x, the direct part of the hypergradient."""
    match problem:
        case AbstractBilevel():
            return problem.outer_grad_x(x, y, sample)
        case Minimax():
            return problem.grad_x(x, y, sample)
        case Composition():
            return tree.zeros_like(x)


def hypergradient_piece(
    problem: TwoLevel, x: Tree, y: Tree, v: Tree, outer_sample: Sample, inner_sample: Sample
) -> Tree:
    """A client's term h_i of the hypergradient, given the adjoint v (None in minimax problems)."""
    match problem:
        case AbstractBilevel():
            direct = problem.outer_grad_x(x, y, outer_sample)
            return tree.sub(direct, problem.inner_cross(x, y, v, inner_sample))
        case Minimax():
            return problem.grad_x(x, y, outer_sample)
        case Composition():
            return problem.layer_vjp(0, x, v, inner_sample)

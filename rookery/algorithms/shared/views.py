"""Every class of problem as blocks with averaged maps, all of them zero at the solution.

    view            blocks                          maps
    BilevelView     x, y, v                         f_x - g_xy v,  g_y,  g_yy v - f_y
    MinimaxView     x, y                            f_x,  -f_y
    AdjointView     x, z_1 .. z_N, a_1 .. a_N       J_0(x)' a_1,  z_n - F_{n-1}(z_{n-1}),
                                                    a_n - J_n(z_n)' a_{n+1}
    ProductView     x, z_1 .. z_N                   J_0(x)' J_1(z_1)' .. J_N(z_N)',
                                                    z_n - F_{n-1}(z_{n-1})
    SequencesView   those of a MultiSequence        its own
    ConditionalView w                               the gradient of the plug-in

z_0 is x, J_n is the Jacobian of layer F_n, and a_{N+1} is 1. The problem's own variables are always
the first blocks. (FedMSA, arXiv:2306.01648, equations 10 and 11; in 10 the system of v is corrected
to have f_y on its right.)
"""

import abc
from collections.abc import Callable
from typing import ClassVar, Generic, TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp

from rookery import tree
from rookery.problem import oracles, validation
from rookery.problem.bilevel import AbstractBilevel, Bilevel
from rookery.problem.composition import Composition
from rookery.problem.conditional import Conditional
from rookery.problem.minimax import Minimax
from rookery.problem.multisequence import MultiSequence
from rookery.types import Count, Problem, Sample, Tree

Blocks = tuple[Tree, ...]
P = TypeVar("P", bound=Problem)


class AbstractView(eqx.Module, Generic[P]):
    """A class of problems, seen as blocks with averaged maps."""

    kind: ClassVar[type]  # of the problems that a subclass is a view of

    def check(self, problem: P) -> None:
        """Raise unless the problem is of the class."""
        if not isinstance(problem, self.kind):
            raise TypeError(
                f"{type(self).__name__} is a view of {self.kind.__name__} problems, "
                f"got {type(problem).__name__}."
            )

    @abc.abstractmethod
    def n_blocks(self, problem: P) -> int:
        """How many blocks there are."""

    @abc.abstractmethod
    def splits(self, problem: P) -> tuple[str, ...]:
        """The parts of a client's data that one evaluation needs an independent sample of each."""

    def added(self, problem: P, *variables: Tree) -> Blocks:
        """Initial values of the blocks that are not the problem's own variables; none in some."""
        return ()

    def check_start(
        self, problem: P, start: tuple[Tree, ...], example: Callable[[str], Tree]
    ) -> None:
        """Raise unless initial values that the view adds have the shapes of the maps' values."""

    def at(self, round: Count) -> "AbstractView[P]":
        """The view with its settings at a round; most views have none that change."""
        return self

    def solution(self, variables: tuple[Tree, ...], added: Blocks) -> tuple[Tree, ...]:
        """The problem's variables out of the blocks: the first of them, in most views."""
        return variables

    @abc.abstractmethod
    def maps(self, problem: P, blocks: Blocks, samples: tuple[Sample, ...]) -> Blocks:
        """All mean maps at the blocks, each shaped like its block."""


class AbstractOneSampleView(AbstractView[P]):
    """A view whose maps share one sample."""

    def splits(self, problem: P) -> tuple[str, ...]:
        """The only split of the problem."""
        return problem.splits


class AbstractLevelsView(AbstractView[Bilevel]):
    """A bilevel problem as x and two inner variables.

    Args:
        one_sample: whether both levels are evaluated on the same rows, as in many programs. They
            must then read one split. If not, rows are drawn for each level, as proofs need it.
    """

    kind: ClassVar[type] = Bilevel

    one_sample: bool = eqx.field(default=False, kw_only=True)

    def check(self, problem: Bilevel) -> None:
        """Raise unless the problem is bilevel, and of one split if there is one sample."""
        super().check(problem)
        if self.one_sample and problem.outer_split != problem.inner_split:
            raise ValueError(
                f"{type(self).__name__} with one_sample=True needs one split for both levels, got "
                f"outer_split={problem.outer_split!r} and inner_split={problem.inner_split!r}. "
                "Leave one_sample out."
            )

    def n_blocks(self, problem: Bilevel) -> int:
        """x and two others."""
        return 3

    def splits(self, problem: Bilevel) -> tuple[str, ...]:
        """One sample for each level, or one for both."""
        return (problem.outer_split, problem.inner_split)[: 1 if self.one_sample else 2]


class BilevelView(AbstractLevelsView):
    """A bilevel problem as (x, y, v). One vector v, common to all clients, starts at zero.

    Args:
        one_sample: whether both levels are evaluated on the same rows; False draws rows for each.

    >>> import rookery as rk
    >>> BilevelView(one_sample=True).splits(rk.zoo.scalar_bilevel().problem)
    ('train',)
    """

    def added(self, problem: Bilevel, *variables: Tree) -> Blocks:
        """v = 0, of the shape of y."""
        return (tree.zeros_like(variables[1]),)

    def maps(self, problem: AbstractBilevel, blocks: Blocks, samples: tuple[Sample, ...]) -> Blocks:
        """f_x - g_xy v, g_y and g_yy v - f_y."""
        (x, y, v), outer, inner = blocks, samples[0], samples[-1]
        direct, right = problem.outer_gradients(x, y, outer)
        g_y, indirect, left = problem.inner_derivatives(x, y, v, inner)
        return tree.sub(direct, indirect), g_y, tree.sub(left, right)


class MinimaxView(AbstractOneSampleView[Minimax]):
    """A minimax problem as (x, y).

    >>> import rookery as rk
    >>> MinimaxView().n_blocks(rk.zoo.saddle().problem)
    2
    """

    kind: ClassVar[type] = Minimax

    def n_blocks(self, problem: Minimax) -> int:
        """x and y."""
        return 2

    def maps(self, problem: Minimax, blocks: Blocks, samples: tuple[Sample, ...]) -> Blocks:
        """f_x and -f_y."""
        (x, y), (sample,) = blocks, samples
        return problem.grad_x(x, y, sample), tree.scale(-1, problem.grad_y(x, y, sample))


class AbstractLayersView(AbstractView[Composition]):
    """A composition whose blocks hold z_1 .. z_N, the values between its layers.

    Args:
        starts: initial z_1 .. z_N; those of the problem if not given.
    """

    kind: ClassVar[type] = Composition

    starts: Blocks | None = eqx.field(converter=tree.as_arrays, default=None)

    def check(self, problem: Composition) -> None:
        """Raise unless the problem is a composition with initial values."""
        super().check(problem)
        initial_values(problem, self.starts)

    def check_start(self, problem, start, example):
        """Initial values must have the shapes of the layers' values."""
        (z,), row = start, example(problem.split)
        for n, initial in enumerate(initial_values(problem, self.starts)):
            z = validation.check_map(f"layers[{n}]", problem.layers[n], z, row)
            validation.check_like(f"starts[{n}]", initial, f"the value of layers[{n}]", z)


class AdjointView(AbstractLayersView):
    """A composition as (x, z_1 .. z_N, a_1 .. a_N), whose maps are exact in the mean.

    Every map holds one factor that depends on the client, so the mean of the clients' maps is the
    map of the means, however different they are. Adjoints start at zero.

    Args:
        starts: initial z_1 .. z_N; those of the problem if not given.

    >>> import rookery as rk
    >>> AdjointView(starts=([0.0, 0.0],)).n_blocks(rk.zoo.linear_chain(sizes=(1, 2)).problem)
    3
    """

    def n_blocks(self, problem: Composition) -> int:
        """x, and a value and an adjoint for each level between the layers."""
        return 2 * len(problem.layers) - 1

    def splits(self, problem: Composition) -> tuple[str, ...]:
        """One sample: every map is linear in it, so it may be common to all."""
        return (problem.split,)

    def added(self, problem: Composition, *variables: Tree) -> Blocks:
        """The initial values, and zeros for the adjoints."""
        values = initial_values(problem, self.starts)
        return *values, *map(tree.zeros_like, values)

    def maps(self, problem: Composition, blocks: Blocks, samples: tuple[Sample, ...]) -> Blocks:
        """J_0' a_1, then z_n - F_{n-1}(z_{n-1}), then a_n - J_n' a_{n+1}."""
        N, (sample,) = len(problem.layers) - 1, samples
        z, a = blocks[: N + 1], blocks[N + 1 :]
        behind = [tree.sub(z[n + 1], problem.layer(n, z[n], sample)) for n in range(N)]
        pulled = [problem.layer_vjp(n, z[n], a[n], sample) for n in range(N)]
        pulled.append(oracles.gradient(problem.layers[N], (z[N],), 0, sample))
        return pulled[0], *behind, *map(tree.sub, a, pulled[1:])


class ProductView(AbstractLayersView):
    """A composition as (x, z_1 .. z_N) with the paper's product of a client's own Jacobians.

    The mean of products is not the product of means: the maps have the right zero only if at most
    one of the Jacobians differs between clients, and may diverge otherwise. Kept for comparison.

    Args:
        starts: initial z_1 .. z_N; those of the problem if not given.

    >>> ProductView().starts is None
    True
    """

    def n_blocks(self, problem: Composition) -> int:
        """x, and a value for each level between the layers."""
        return len(problem.layers)

    def splits(self, problem: Composition) -> tuple[str, ...]:
        """A sample for each layer: a product of factors of one sample would be biased."""
        return (problem.split,) * len(problem.layers)

    def added(self, problem: Composition, *variables: Tree) -> Blocks:
        """The initial values."""
        return initial_values(problem, self.starts)

    def maps(self, problem: Composition, blocks: Blocks, samples: tuple[Sample, ...]) -> Blocks:
        """J_0' J_1' .. J_N', then z_n - F_{n-1}(z_{n-1})."""
        N = len(problem.layers) - 1
        product = oracles.gradient(problem.layers[N], (blocks[N],), 0, samples[N])
        for n in reversed(range(N)):
            product = problem.layer_vjp(n, blocks[n], product, samples[n])
        values = (problem.layer(n, blocks[n], samples[n]) for n in range(N))
        return product, *map(tree.sub, blocks[1:], values)


class SequencesView(AbstractOneSampleView[MultiSequence]):
    """A multi-sequence problem as itself: the blocks are its sequences, the maps its own.

    >>> SequencesView()
    SequencesView()
    """

    kind: ClassVar[type] = MultiSequence

    def n_blocks(self, problem: MultiSequence) -> int:
        """One for each map."""
        return 1 + len(problem.sequences)

    def maps(self, problem: MultiSequence, blocks: Blocks, samples: tuple[Sample, ...]) -> Blocks:
        """The problem's maps."""
        return problem.maps(blocks, samples[0])


class ConditionalView(AbstractOneSampleView[Conditional]):
    """A conditional problem as one block, w; inner draws come with the keys of the sample.

    >>> ConditionalView().kind.__name__
    'Conditional'
    """

    kind: ClassVar[type] = Conditional

    def n_blocks(self, problem: Conditional) -> int:
        """w alone."""
        return 1

    def maps(self, problem: Conditional, blocks: Blocks, samples: tuple[Sample, ...]) -> Blocks:
        """The gradient of the plug-in."""
        (w,), (sample,) = blocks, samples
        return (problem.gradient(w, sample),)


NATURAL: dict[type, type[AbstractView]] = {
    Bilevel: BilevelView,
    Minimax: MinimaxView,
    Composition: AdjointView,
    MultiSequence: SequencesView,
    Conditional: ConditionalView,
}


def view_of(problem: Problem, chosen: AbstractView | None = None) -> AbstractView:
    """The chosen view of a problem, checked, or the natural one of its class."""
    if chosen is None and type(problem) not in NATURAL:
        known = ", ".join(kind.__name__ for kind in NATURAL)
        raise TypeError(f"only {known} problems have blocks, got {type(problem).__name__}.")
    view = NATURAL[type(problem)]() if chosen is None else chosen
    view.check(problem)
    return view


def initial_values(problem: Composition, given: Blocks | None = None) -> Blocks:
    """Where z_1 .. z_N begin: as given, or as the problem says."""
    values = problem.starts if given is None else given
    between = len(problem.layers) - 1
    if values is None:
        raise ValueError(
            f"z_1 to z_{between}, the values between the layers, need initial values: give the "
            "Composition, or the view of it, starts= with one value per layer but the last."
        )
    if len(values) != between:
        raise ValueError(f"{between + 1} layers need {between} initial values, got {len(values)}.")
    return jax.tree.map(jnp.asarray, tuple(values))

"""A bilevel problem by first derivatives alone: the inner problem is perturbed by the outer loss.

With y_s the minimiser of  g(x, y) + s f(x, y)  in y, the hypergradient is a derivative in s at 0,
and a finite difference with s = 1 / σ estimates it:

    symmetric   (f_x(x, y_+) + f_x(x, y_-)) / 2 + σ/2 (g_x(x, y_+) - g_x(x, y_-)),  error O(1 / σ²)
    one-sided   f_x(x, y_+) + σ (g_x(x, y_+) - g_x(x, y_0)),                        error O(1 / σ)

y_+, y_- and y_0 are y_s for s = 1/σ, -1/σ and 0. The one-sided form is that of F2SA (J. Kwon,
D. Kwon, S. Wright, R. Nowak, ICML 2023, arXiv:2301.10945); the symmetric one that of F2SA-p for
p = 2 (L. Chen, J. Li, E. M. Chayti, J. Zhang, ICLR 2026, arXiv:2509.02937). Its released program
has an outer loss without x, and divides the estimate by its norm; the mean of both f_x is ours, and
of the same order, and nothing is divided. Schedules of σ (:class:`Growing`) are ours too.

The symmetric form needs g - f / σ to be strongly convex in y: σ above L_f / μ, with L_f the
smoothness of f and μ the strong convexity of g in y. Both points of a difference share one sample:
the difference is multiplied by σ, and so would be the noise of two samples.
"""

import equinox as eqx
import jax.numpy as jnp

from rookery import check, tree
from rookery.algorithms.shared.schedule import AbstractSchedule, number
from rookery.algorithms.shared.views import AbstractLevelsView, Blocks
from rookery.problem.bilevel import Bilevel
from rookery.types import Count, Number, Sample, Tree


class Growing(AbstractSchedule):
    """A number that grows by the same amount in every round, up to a largest value.

    >>> [float(Growing(10.0, 5.0, most=17.0)(r)) for r in (0, 1, 2)]
    [10.0, 15.0, 17.0]

    Args:
        first: in round 0.
        by: how much it grows in a round.
        most: the largest value.
    """

    first: float = eqx.field(converter=number)
    by: float = eqx.field(converter=number)
    most: float = eqx.field(converter=number)

    def __check_init__(self):
        check.positive("Growing.first", self.first)
        check.not_negative("Growing.by", self.by)
        check.positive("Growing.most", self.most)

    def __call__(self, round):
        """first + by times the round, at most ``most``."""
        return jnp.minimum(self.first + self.by * jnp.asarray(round, float), self.most)


class PenaltyView(AbstractLevelsView):
    """A bilevel problem as (x, y_+, y_-) or (x, y_+, y_0), without second derivatives.

    With the symmetric form the solution's y is the mean of y_+ and y_-, with the other it is y_0.

    Args:
        sigma: σ, the penalty, a number or a schedule by round (:class:`Growing`). The larger, the
            smaller the bias, and the larger the noise of mini-batches and the effect of inner
            variables that lag behind: outer steps of a single loop must shrink like 1 / σ.
        symmetric: whether the difference is central, which costs the same and is more accurate.
        one_sample: whether both levels are evaluated on the same rows; False draws rows for each.

    >>> import rookery as rk
    >>> PenaltyView(sigma=30).n_blocks(rk.zoo.scalar_bilevel().problem)
    3
    """

    sigma: float | AbstractSchedule = eqx.field(converter=number, default=10.0)
    symmetric: bool = True

    def __check_init__(self):
        first = self.sigma(0) if isinstance(self.sigma, AbstractSchedule) else self.sigma
        check.positive("PenaltyView.sigma", first)

    def at(self, round: Count) -> "PenaltyView":
        """The view with the penalty of a round."""
        if not isinstance(self.sigma, AbstractSchedule):
            return self
        return eqx.tree_at(lambda view: view.sigma, self, self.sigma(round))

    def added(self, problem: Bilevel, *variables: Tree) -> Blocks:
        """A second inner variable, which starts where the first one does."""
        return (variables[1],)

    def solution(self, variables: tuple[Tree, ...], added: Blocks) -> tuple[Tree, ...]:
        """x, and y at no penalty."""
        (x, above), (below,) = variables, added
        return x, tree.scale(0.5, tree.add(above, below)) if self.symmetric else below

    def maps(self, problem: Bilevel, blocks: Blocks, samples: tuple[Sample, ...]) -> Blocks:
        """The estimate of the hypergradient, and the gradients of the perturbed inner problems."""
        outer = self.outer_map(problem, blocks, samples)
        return outer, *self.inner_maps(problem, blocks, samples)

    def inner_maps(self, problem: Bilevel, blocks: Blocks, samples: tuple[Sample, ...]) -> Blocks:
        """g_y + f_y / σ at y_+, and g_y - f_y / σ at y_- or g_y at y_0."""
        (x, above, below), outer, inner = blocks, samples[0], samples[-1]
        s = 1 / self._sigma()
        up = problem.inner_grad_y(x, above, inner), problem.outer_grad_y(x, above, outer)
        down = problem.inner_grad_y(x, below, inner)
        if self.symmetric:
            down = tree.axpy(-s, problem.outer_grad_y(x, below, outer), down)
        return tree.axpy(s, up[1], up[0]), down

    def outer_map(self, problem: Bilevel, blocks: Blocks, samples: tuple[Sample, ...]) -> Tree:
        """The estimate of the hypergradient."""
        (x, above, below), outer, inner = blocks, samples[0], samples[-1]
        rise = tree.sub(
            problem.inner_grad_x(x, above, inner), problem.inner_grad_x(x, below, inner)
        )
        direct = problem.outer_grad_x(x, above, outer)
        if not self.symmetric:
            return tree.axpy(self._sigma(), rise, direct)
        direct = tree.add(direct, problem.outer_grad_x(x, below, outer))
        return tree.axpy(self._sigma() / 2, rise, tree.scale(0.5, direct))

    @property
    def share(self) -> Number:
        """1 / σ, how much of f is added to g."""
        return 1 / self._sigma()

    def _sigma(self) -> Number:
        assert not isinstance(self.sigma, AbstractSchedule), "at() evaluates it at a round"
        return self.sigma

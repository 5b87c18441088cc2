"""Compositional problems: nested means, over all clients or within each client."""

from collections.abc import Callable

import equinox as eqx

from rookery.problem import oracles, validation
from rookery.problem.splits import AbstractOneSplit, AbstractOneVariable, AbstractTwoSplits
from rookery.types import Loss, Sample, Scalar, Tree


class Composition(AbstractOneSplit):
    """min over x of  F_N( ... F_1( F_0(x) )),  every F_n a mean over all clients' examples.

    Layer n takes ``(z, example)``, where z is the value of layer n - 1 (x itself for layer 0), and
    returns any pytree; the last returns one number. The mean is *inside* at every level, so no
    client alone has an unbiased gradient.

    Args:
        layers: F_0 to F_N, innermost first, at least two.
        split: the split of a client's data that the layers are averaged over.
        starts: initial estimates of the values of F_0 to F_{N-1}, for algorithms that track them;
            one each, of its shape (zeros will do). None leaves it to the algorithm's settings.

    >>> import jax.numpy as jnp
    >>> from rookery.problem.sample import Rows
    >>> problem = Composition([lambda x, row: x * row, lambda z, row: z**2])
    >>> rows = Rows(jnp.array([1.0, 3.0]))
    >>> float(problem.layer(0, jnp.array(2.0), rows))
    4.0
    >>> float(problem.layer_vjp(1, jnp.array(4.0), jnp.array(1.0), rows))
    8.0
    """

    layers: tuple[Callable[..., Tree], ...] = eqx.field(converter=tuple)
    split: str = eqx.field(static=True, default="train", kw_only=True)
    starts: tuple[Tree, ...] | None = eqx.field(default=None, kw_only=True)

    def __check_init__(self):
        if len(self.layers) < 2:
            raise ValueError(
                f"a composition needs at least two layers, got {len(self.layers)}. "
                "One layer is an ordinary loss."
            )
        for n, layer in enumerate(self.layers):
            validation.check_function(f"layers[{n}]", layer)
        if self.starts is not None and len(self.starts) != len(self.layers) - 1:
            raise ValueError(
                f"starts must have one value per layer but the last: {len(self.layers) - 1}, "
                f"got {len(self.starts)}."
            )

    @property
    def variables(self) -> tuple[str]:
        """x alone."""
        return ("x",)

    def check(self, start: tuple[Tree, ...], example: Callable[[str], Tree]) -> None:
        """Raise unless every layer accepts the value of the one before and the last is a scalar."""
        validation.check_start(self, start)
        z, row = start[0], example(self.split)
        for n, layer in enumerate(self.layers[:-1]):
            z = validation.check_map(f"layers[{n}]", layer, z, row)
            if self.starts is not None:
                validation.check_like(
                    f"starts[{n}]", self.starts[n], f"the value of layers[{n}]", z
                )
        last = len(self.layers) - 1
        validation.check_scalar_loss(f"layers[{last}]", self.layers[last], (z,), row)

    def layer(self, n: int, z: Tree, sample: Sample) -> Tree:
        """The mean of layer n at z."""
        return oracles.map_value(self.layers[n], (z,), sample)

    def layer_vjp(self, n: int, z: Tree, cotangent: Tree, sample: Sample) -> Tree:
        """The transposed mean Jacobian of layer n at z, times ``cotangent``."""
        return oracles.map_vjp(self.layers[n], z, cotangent, sample)


class LocalComposition(AbstractOneVariable, AbstractTwoSplits):
    """min over w of  mean over clients of  outer_i( inner_i(w) ), both levels the client's own.

    ``inner(w, example)`` returns any pytree u and is averaged over the client's examples before
    ``outer(u, example)`` returns one number. Unlike in :class:`Composition`, nothing nested is
    averaged across clients.

    Args:
        inner: the map whose client mean is composed.
        outer: the loss of that mean.
        inner_split: the split of a client's data that the inner map is averaged over.
        outer_split: the split that the outer loss is averaged over.

    >>> import jax.numpy as jnp
    >>> from rookery.problem.sample import Rows
    >>> problem = LocalComposition(inner=lambda w, row: w * row, outer=lambda u, row: u**2)
    >>> rows = Rows(jnp.array([1.0, 3.0]))
    >>> float(problem.value(jnp.array(2.0), rows, rows))
    16.0
    >>> float(problem.gradient(jnp.array(2.0), rows, rows))
    16.0
    """

    inner: Callable[..., Tree]
    outer: Loss
    inner_split: str = eqx.field(static=True, default="train", kw_only=True)
    outer_split: str = eqx.field(static=True, default="train", kw_only=True)

    def __check_init__(self):
        validation.check_function("inner", self.inner)
        validation.check_function("outer", self.outer)

    def check(self, start: tuple[Tree, ...], example: Callable[[str], Tree]) -> None:
        """Raise unless the levels fit together and the outer one is a scalar."""
        validation.check_start(self, start)
        u = validation.check_map("inner", self.inner, start[0], example(self.inner_split))
        validation.check_scalar_loss("outer", self.outer, (u,), example(self.outer_split))

    def value(self, w: Tree, inner_sample: Sample, outer_sample: Sample) -> Scalar:
        """The client's composed loss."""
        u = oracles.map_value(self.inner, (w,), inner_sample)
        return oracles.value(self.outer, (u,), outer_sample)

    def gradient(self, w: Tree, inner_sample: Sample, outer_sample: Sample) -> Tree:
        """The transposed Jacobian of inner at w, times the gradient of outer at inner(w)."""
        u = oracles.map_value(self.inner, (w,), inner_sample)
        outer_gradient = oracles.gradient(self.outer, (u,), 0, outer_sample)
        return oracles.map_vjp(self.inner, w, outer_gradient, inner_sample)

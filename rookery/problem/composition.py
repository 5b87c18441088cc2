"""Compositional problems: a loss of a mean of a mean ..., and its client-local cousin."""

from collections.abc import Callable

import equinox as eqx
import jax

from rookery.problem import oracles
from rookery.types import Sample, Tree


class Composition(eqx.Module):
    """min over x of  F_N( ... F_1( F_0(x) )),  every F_n a mean over all clients' examples.

    Layer n takes ``(z, example)``, where z is the value of layer n - 1 (x itself for layer 0), and
    gives any pytree; the last gives one number. The mean is *inside* at every level, so no client
    alone has an unbiased gradient.

    Args:
        layers: F_0 to F_N, innermost first, at least two.
        split: which part of a client's data the layers are averaged over.
        starts: where algorithms that follow the values of F_0 to F_{N-1} begin, one each and shaped
            like it, zeros if nothing better is known; None leaves it to the algorithm's settings.
    """

    layers: tuple[Callable[..., Tree], ...] = eqx.field(converter=tuple)
    split: str = eqx.field(static=True, default="train")
    starts: tuple[Tree, ...] | None = None

    def __check_init__(self):
        if len(self.layers) < 2:
            raise ValueError(
                f"a composition needs at least two layers, got {len(self.layers)}. "
                "One layer is an ordinary loss."
            )
        for n, layer in enumerate(self.layers):
            if not callable(layer):
                raise TypeError(f"layers[{n}] must be a function, got {layer!r}.")
        if self.starts is not None and len(self.starts) != len(self.layers) - 1:
            raise ValueError(
                f"starts has one value per layer but the last: {len(self.layers) - 1}, "
                f"got {len(self.starts)}."
            )

    def check(self, variables: tuple[Tree], example: Callable[[str], Tree]) -> None:
        """Raise unless every layer accepts the value of the one before and the last is a scalar."""
        oracles.check_one_variable("a composition", variables)
        z, row = variables[0], example(self.split)
        for n, layer in enumerate(self.layers[:-1]):
            z = oracles.check_map(f"layers[{n}]", layer, z, row)
            if self.starts is not None:
                oracles.check_like(f"starts[{n}]", self.starts[n], f"the value of layers[{n}]", z)
        last = len(self.layers) - 1
        oracles.check_scalar_loss(f"layers[{last}]", self.layers[last], (z,), row)

    def layer(self, n: int, z: Tree, sample: Sample) -> Tree:
        """The mean of layer n at z."""
        return oracles.map_value(self.layers[n], (z,), sample)

    def layer_vjp(self, n: int, z: Tree, cotangent: Tree, sample: Sample) -> Tree:
        """The transposed mean Jacobian of layer n at z, times ``cotangent``."""
        return oracles.map_vjp(self.layers[n], z, cotangent, sample)


class LocalComposition(eqx.Module):
    """min over w of  mean over clients of  outer_i( inner_i(w) ), both levels the client's own.

    ``inner(w, example)`` gives any pytree u and is averaged over the client's examples before
    ``outer(u, example)`` gives one number. Nothing nested is averaged across clients, which is
    what sets this class apart from :class:`Composition`.

    Args:
        inner: the map whose client mean is composed.
        outer: the loss of that mean.
        inner_split: which part of a client's data the inner map is averaged over.
        outer_split: the same for the outer loss.
    """

    inner: Callable[..., Tree]
    outer: Callable[..., jax.Array]
    inner_split: str = eqx.field(static=True, default="train")
    outer_split: str = eqx.field(static=True, default="train")

    def __check_init__(self):
        for name in ("inner", "outer"):
            if not callable(getattr(self, name)):
                raise TypeError(f"{name} must be a function, got {getattr(self, name)!r}.")

    def check(self, variables: tuple[Tree], example: Callable[[str], Tree]) -> None:
        """Raise unless the levels fit together and the outer one is a scalar."""
        oracles.check_one_variable("a composition", variables)
        u = oracles.check_map("inner", self.inner, variables[0], example(self.inner_split))
        oracles.check_scalar_loss("outer", self.outer, (u,), example(self.outer_split))

    def value(self, w: Tree, inner_sample: Sample, outer_sample: Sample) -> jax.Array:
        """The client's composed loss."""
        u = oracles.map_value(self.inner, (w,), inner_sample)
        return oracles.value(self.outer, (u,), outer_sample)

    def gradient(self, w: Tree, inner_sample: Sample, outer_sample: Sample) -> Tree:
        """The transposed Jacobian of inner at w, times the gradient of outer at inner(w)."""
        u = oracles.map_value(self.inner, (w,), inner_sample)
        outer_gradient = oracles.gradient(self.outer, (u,), 0, outer_sample)
        return oracles.map_vjp(self.inner, w, outer_gradient, inner_sample)

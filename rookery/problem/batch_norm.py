"""Batch normalisation in losses over a batch, with statistics that are part of a variable.

The parameters and the running statistics of a layer are leaves of the model: :func:`init` makes
them. What happens to the statistics is a choice that the loss and the algorithm show:

    policy      in the loss                 in the algorithm
    frozen      :func:`by_statistics`       any; statistics never change, scale and shift do
    averaged    :func:`by_batch`            any with plain steps; statistics are averaged with the
                                            rest of the model
    own         :func:`by_batch`            FedAvg and FedProx with ``own="norm"``, the name of the
                                            layer, which then stays on each client (FedBN)

Metrics use :func:`by_statistics`, which needs no batch.

Plain steps are proportional to the gradient: SGD and momentum. Adam, clipping and weight decay give
wrong statistics, and so do weights that depend on losses (q-FedAvg, q > 0). FedAvg, its relatives
and q-FedAvg refuse them; with other algorithms give the statistics plain steps, by
:func:`is_statistic` and ``optax.partition``. Weight decay spoils frozen statistics as well.

Statistics are the mean and the mean square, not the variance: both average over batches and over
clients without bias, so the averaged ones are those of all clients' rows together. Their variance
is square - mean^2, which cancels in float32 if a feature's mean is a thousand times its standard
deviation: centre such inputs before the model. :func:`by_batch` does not normalise by it.

X. Li, M. Jiang, X. Zhang, M. Kamp, Q. Dou. FedBN: federated learning on non-IID features via local
batch normalization. ICLR 2021, arXiv:2102.07623.
"""

from collections.abc import Callable, Mapping

import jax
import jax.numpy as jnp
from jax import lax
from jax.ad_checkpoint import checkpoint_name
from jaxtyping import Array, Float

from rookery import check
from rookery.types import Number, Scalar, Tree

Norm = Mapping[str, Float[Array, " features"]]
"""One layer: ``scale`` and ``shift`` are trained, ``mean`` and ``square`` are its statistics."""

_MARK = "rookery_running_statistics"
"""Name of the value whose gradient moves running statistics, in the program of a loss."""


def init(features: int, dtype: jax.typing.DTypeLike = float) -> dict[str, Array]:
    """A layer that begins as the identity: statistics of mean 0 and variance 1.

    >>> sorted(init(3))
    ['mean', 'scale', 'shift', 'square']

    Args:
        features: the size of the last axis.
        dtype: of the leaves, that of the model.
    """
    check.count("features", features)
    zeros, ones = jnp.zeros(features, dtype), jnp.ones(features, dtype)
    return {"scale": ones, "shift": zeros, "mean": zeros, "square": ones}


def is_statistic(w: Tree) -> Tree:
    """True at the running statistics in a model, the ``mean`` and ``square`` of every layer.

    >>> is_statistic({"norm": init(1), "out": jnp.ones(1)})
    {'norm': {'mean': True, 'scale': False, 'shift': False, 'square': True}, 'out': False}

    Args:
        w: a model with layers that :func:`init` has made.
    """
    paths = [_names(path) for path, _ in jax.tree.leaves_with_path(w)]
    layers: dict[tuple[str, ...], set[str]] = {}
    for *layer, name in filter(None, paths):
        layers.setdefault(tuple(layer), set()).add(name)

    def is_one(names: tuple[str, ...]) -> bool:
        is_named = bool(names) and names[-1] in ("mean", "square")
        return is_named and layers[names[:-1]] == {"mean", "scale", "shift", "square"}

    return jax.tree.unflatten(jax.tree.structure(w), map(is_one, paths))


def is_followed(value: Callable[..., Scalar], *arguments: Tree) -> bool:
    """Whether a loss uses :func:`by_batch`, whose statistics follow the batches.

    >>> is_followed(lambda norm: by_batch(jnp.ones((2, 1)), jnp.ones(2) / 2, norm)[1], init(1))
    True

    Args:
        value: the loss.
        arguments: its arguments, or their shapes.
    """
    return _MARK in str(jax.make_jaxpr(value)(*arguments))


def by_statistics(
    values: Float[Array, "*rows features"], norm: Norm, *, epsilon: float = 1e-5
) -> Float[Array, "*rows features"]:
    """Normalised by the running statistics, which have no gradient here.

    >>> by_statistics(jnp.array([1.0, 2.0]), init(2), epsilon=0.0).tolist()
    [1.0, 2.0]

    Args:
        values: features along the last axis; one row or many.
        norm: the layer.
        epsilon: is added to the variance.
    """
    mean, square = lax.stop_gradient((norm["mean"], norm["square"]))
    variance = jnp.maximum(square - mean**2, 0)
    return _normalised(values, mean, variance, norm, epsilon)


def by_batch(
    values: Float[Array, "rows *places features"],
    weights: Float[Array, " rows"],
    norm: Norm,
    *,
    rate: Number = 1.0,
    epsilon: float = 1e-5,
) -> tuple[Float[Array, "rows *places features"], Scalar]:
    """Normalised by the statistics of the batch, and the term that moves the running ones.

    Add the term to the loss. Its value is zero; its gradient is ``rate`` (running - batch) in the
    running statistics and zero elsewhere, so a gradient step of size lr is the usual exponential
    average:  running = (1 - lr rate) running + lr rate batch.  For PyTorch's momentum of 0.1 set
    ``rate`` to 0.1 / lr. Derivatives of hypergradients do not pass through the running statistics.

    Args:
        values: a row along the first axis, features along the last; axes between are averaged too.
        weights: of the rows, as :class:`rookery.loss.OverBatch` gives them.
        norm: the layer.
        rate: how fast the running statistics follow, as a multiple of the step size.
        epsilon: is added to the variance.

    >>> import rookery as rk
    >>> from rookery.problem import OverBatch
    >>> def loss(w, rows, weights):
    ...     hidden, follow = by_batch(rows["input"] @ w["in"], weights, w["norm"])
    ...     each = (jnp.tanh(hidden) @ w["out"] - rows["target"]) ** 2
    ...     return jnp.vdot(weights, each) + follow
    >>> problem = rk.SingleLevel(OverBatch(loss))
    """
    weights = weights.astype(values.dtype)
    between = tuple(range(1, values.ndim - 1))

    def over_batch(each: Array) -> Array:
        return jnp.tensordot(weights, jnp.mean(each, axis=between) if between else each, 1)

    mean, square = over_batch(values), over_batch(values**2)
    # square - mean**2 would cancel in float32 where the mean is large
    variance = over_batch((values - _along_features(mean, values.ndim)) ** 2)
    now = lax.stop_gradient((mean, square))
    off = [jnp.sum((a - b) ** 2) for a, b in zip((norm["mean"], norm["square"]), now, strict=True)]
    distance = jnp.asarray(rate).astype(values.dtype) * (off[0] + off[1]) / 2
    distance = checkpoint_name(distance, _MARK)
    follow = distance - lax.stop_gradient(distance)
    return _normalised(values, mean, variance, norm, epsilon), follow


def _normalised(values: Array, mean: Array, variance: Array, norm: Norm, epsilon: float) -> Array:
    factor = norm["scale"] * lax.rsqrt(variance + jnp.asarray(epsilon, values.dtype))
    mean, factor, shift = (_along_features(v, values.ndim) for v in (mean, factor, norm["shift"]))
    return (values - mean) * factor + shift


def _names(path: tuple[object, ...]) -> tuple[str, ...]:
    return tuple(jax.tree_util.keystr((entry,), simple=True) for entry in path)


def _along_features(vector: Array, ndim: int) -> Array:
    return vector.reshape((1,) * (ndim - 1) + (-1,))

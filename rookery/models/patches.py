"""Convolutions as matrix products of patches, in any function of JAX.

XLA's convolutions are tens of times slower inside a compiled loop than outside on a CPU. A function
is traced, its convolutions and pools are replaced, and everything else stays.
"""

import functools
import itertools
from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
from jax import Array, lax
from jax.extend.core import Jaxpr, JaxprEqn, Literal


def with_patches(fn: Callable[..., object]) -> Callable[..., object]:
    """The same function with convolutions by patches and pools by reshaping.

    Convolutions with groups or a dilated input, and pools whose windows overlap, are left to XLA.
    The derivative of a pool differs where two entries share the maximum: each has half.

    >>> def blur(image):
    ...     kernel = jnp.ones((1, 1, 2, 2))
    ...     return lax.conv(image[None, None], kernel, (1, 1), "VALID")[0, 0]
    >>> with_patches(blur)(jnp.arange(6.0).reshape(2, 3)).tolist()
    [[8.0, 12.0]]
    >>> "conv_general" in str(jax.make_jaxpr(with_patches(blur))(jnp.ones((2, 3))))
    False
    """

    @functools.wraps(fn)
    def by_patches(*args: object, **named: object) -> object:
        closed, shape = jax.make_jaxpr(fn, return_shape=True)(*args, **named)
        leaves = _evaluate(closed.jaxpr, closed.consts, jax.tree.leaves((args, named)))
        return jax.tree.structure(shape).unflatten(leaves)

    return by_patches


def _evaluate(jaxpr: Jaxpr, consts: Sequence[Array], args: Sequence[Array]) -> list[Array]:
    values = dict(zip([*jaxpr.constvars, *jaxpr.invars], [*consts, *args], strict=True))
    for eqn in jaxpr.eqns:
        inputs = [v.val if isinstance(v, Literal) else values[v] for v in eqn.invars]
        values.update(zip(eqn.outvars, _outputs(eqn, inputs), strict=True))
    return [v.val if isinstance(v, Literal) else values[v] for v in jaxpr.outvars]


def _outputs(eqn: JaxprEqn, inputs: Sequence[Array]) -> Sequence[Array]:
    match eqn.primitive.name:
        case "conv_general_dilated" if _is_plain_convolution(eqn):
            return [_convolution(eqn, *inputs)]
        case "reduce_window_max" if _is_plain_pool(eqn):
            return [_pool(eqn.params["window_dimensions"], *inputs)]
        case "jit" | "pjit":
            inner = eqn.params["jaxpr"]
            return _evaluate(inner.jaxpr, inner.consts, inputs)
    bound = eqn.primitive.get_bind_params(eqn.params)
    functions, params = bound if isinstance(bound, tuple) else ((), bound)  # jax 0.9 had functions
    outputs = eqn.primitive.bind(*functions, *inputs, **params)
    return outputs if eqn.primitive.multiple_results else [outputs]


def _is_plain_convolution(eqn: JaxprEqn) -> bool:
    p = eqn.params
    groups = (p["feature_group_count"], p["batch_group_count"])
    return groups == (1, 1) and all(d == 1 for d in p["lhs_dilation"])


def _convolution(eqn: JaxprEqn, image: Array, kernel: Array) -> Array:
    """One matrix product of all patches with the kernel."""
    p = eqn.params
    batch, channel, *space = p["dimension_numbers"].lhs_spec
    image = image.transpose(batch, *space, channel)
    out, into, *taps = p["dimension_numbers"].rhs_spec
    kernel = kernel.transpose(*taps, into, out)
    image = lax.pad(image, jnp.zeros((), image.dtype), [
        (0, 0, 0), *((low, high, 0) for low, high in p["padding"]), (0, 0, 0)
    ])  # fmt: skip
    strides, dilation, sizes = p["window_strides"], p["rhs_dilation"], kernel.shape[:-2]
    counts = [
        (length - (k - 1) * d - 1) // s + 1
        for length, k, d, s in zip(image.shape[1:-1], sizes, dilation, strides, strict=True)
    ]
    shifted = []
    for tap in itertools.product(*map(range, sizes)):
        starts = [t * d for t, d in zip(tap, dilation, strict=True)]
        limits = [b + (n - 1) * s + 1 for b, n, s in zip(starts, counts, strides, strict=True)]
        rows, channels = image.shape[0], image.shape[-1]
        shifted.append(
            lax.slice(image, (0, *starts, 0), (rows, *limits, channels), (1, *strides, 1))
        )
    patches = lax.concatenate(shifted, image.ndim - 1)
    flat = patches.reshape(-1, patches.shape[-1]), kernel.reshape(-1, kernel.shape[-1])
    product = lax.dot(
        *flat, precision=p["precision"], preferred_element_type=p["preferred_element_type"]
    )
    product = product.reshape(*patches.shape[:-1], -1)
    batch, channel, *space = p["dimension_numbers"].out_spec
    order = [0] * image.ndim
    for source, target in enumerate([batch, *space, channel]):
        order[target] = source
    return product.transpose(order)


def _is_plain_pool(eqn: JaxprEqn) -> bool:
    p = eqn.params
    dilations = (*p["base_dilation"], *p["window_dilation"])
    return (
        p["window_dimensions"] == p["window_strides"]
        and all(d == 1 for d in dilations)
        and not any(low or high for low, high in p["padding"])
    )


def _pool(window: Sequence[int], image: Array) -> Array:
    """The maximum of windows that do not overlap, one axis after the other."""
    for axis, size in enumerate(window):
        if size > 1:
            n = image.shape[axis] // size
            image = lax.slice_in_dim(image, 0, n * size, axis=axis)
            shape = image.shape
            image = image.reshape(*shape[:axis], n, size, *shape[axis + 1 :])
            pieces = [lax.index_in_dim(image, i, axis + 1, keepdims=False) for i in range(size)]
            image = functools.reduce(jnp.maximum, pieces)
    return image

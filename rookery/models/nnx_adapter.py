"""Flax NNX modules as functions of their parameters, and trained parameters back into them."""

from types import ModuleType
from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp

from rookery.models import adapter
from rookery.models.patches import with_patches
from rookery.types import Key, Tree

if TYPE_CHECKING:
    from flax.nnx import Module  # pyright: ignore[reportMissingImports]


def from_nnx(
    module: "Module",
    *,
    batch_norm: str | None = None,
    batch_axis: bool = True,
    patches: bool = False,
) -> tuple[adapter.Apply, Tree]:
    """A Flax NNX module as ``apply(params, example)``, and its parameters, a nested dictionary.

    ``apply`` takes **one example** without a batch axis, as losses do; use ``jax.vmap`` for many.
    The module's mode (training or evaluation) stays as it was. All variables but ``nnx.Param`` are
    constants, except that a key seeds the random layers. Needs ``pip install -e '.[flax]'``.

    Args:
        module: any callable module with one input.
        batch_norm: what happens to running statistics of BatchNorm layers in training mode; only
            ``"frozen"``: they are constants.
        batch_axis: whether the module expects a batch axis; it gets a batch of one.
        patches: compute convolutions as products of patches (:func:`with_patches`).

    >>> import jax.numpy as jnp
    >>> import rookery as rk
    >>> from flax import nnx
    >>> apply, params = rk.models.from_nnx(nnx.Linear(64, 10, rngs=nnx.Rngs(0)))
    >>> def loss(w, example):
    ...     return rk.models.cross_entropy(apply(w, example["input"]), example["label"])
    >>> params["kernel"].shape, apply(params, jnp.zeros(64, params["kernel"].dtype)).shape
    ((64, 10), (10,))
    """
    nnx = _nnx("from_nnx")
    if not isinstance(module, nnx.Module):
        raise TypeError(f"from_nnx takes a Flax NNX module, got {type(module).__name__}.")
    own = nnx.clone(module)
    layers = {".".join(map(str, path)): layer for path, layer in nnx.iter_modules(own)}
    norms = {n: x for n, x in layers.items() if isinstance(x, nnx.BatchNorm)}
    training = [name for name, layer in norms.items() if not layer.use_running_average]
    adapter.check_policy(batch_norm, training, "module.eval()")
    for layer in norms.values():
        layer.eval()
    random = [n for n, x in layers.items() if isinstance(x, nnx.Dropout) and not x.deterministic]
    definition, params, seeds, rest = nnx.split(own, nnx.Param, nnx.RngState, ...)
    constants = jax.tree.leaves(rest)

    def called(values: Tree, inputs: Tree, key: Key | None) -> Tree:
        if random and key is None:
            raise adapter.needs_key(f"the layers {random}", "module.eval()")
        state = nnx.clone(params)
        nnx.replace_by_pure_dict(state, values)
        model = nnx.merge(
            definition, state, seeds if key is None else _seeded(nnx, seeds, key), rest
        )
        output = model(inputs)
        after = jax.tree.leaves(nnx.split(model, nnx.Param, nnx.RngState, ...)[3])
        if any(a is not b for a, b in zip(after, constants, strict=True)):
            raise ValueError(
                "the call changes variables of the module that are no parameters, which would be "
                "lost. Call module.eval() first if that stops it."
            )
        return output

    fixed = [leaf for leaf in constants if not jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)]
    text = adapter.architecture(layers.values(), repr(definition), fixed)
    apply = adapter.one_example(adapter.Forward(called, text), batch_axis)
    return with_patches(apply) if patches else apply, nnx.to_pure_dict(params)


def to_nnx(params: Tree, module: "Module") -> "Module":
    """The module with trained parameters, as :func:`from_nnx` returns them; it is changed in place.

    >>> import jax
    >>> import rookery as rk
    >>> from flax import nnx
    >>> network = nnx.Linear(64, 10, rngs=nnx.Rngs(0))
    >>> _, params = rk.models.from_nnx(network)
    >>> trained = jax.tree.map(lambda a: a + 1, params)  # in practice result.solution[0]
    >>> float(rk.models.to_nnx(trained, network).bias[0])
    1.0
    """
    nnx = _nnx("to_nnx")
    state = nnx.state(module, nnx.Param)
    own = nnx.to_pure_dict(state)
    mine, given = (jax.tree.map(lambda a: a.shape, tree) for tree in (own, params))
    if mine != given:
        raise ValueError(
            f"the parameters have shapes {given}, but the module's have {mine}. Pass one solution, "
            "and a module of the same architecture."
        )
    nnx.replace_by_pure_dict(state, params)
    nnx.update(module, state)
    return module


def _seeded(nnx: ModuleType, seeds: Tree, key: Key) -> Tree:
    """The state of all random layers, each with a key of its own."""
    leaves, tree = jax.tree.flatten(seeds)
    keys = jax.random.split(key, len(leaves))
    is_key = [jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key) for leaf in leaves]
    return tree.unflatten(
        [new if yes else old for new, old, yes in zip(keys, leaves, is_key, strict=True)]
    )


def _nnx(who: str) -> ModuleType:
    try:
        from flax import nnx  # pyright: ignore[reportMissingImports]
    except ImportError as error:
        raise ImportError(
            f"{who} needs the package flax: pip install -e '.[flax]' in rookery's checkout."
        ) from error
    return nnx

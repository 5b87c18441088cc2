"""Equinox modules as functions of their parameters."""

import inspect
import itertools
from typing import Any, TypeVar

import equinox as eqx
import jax

from rookery.models import adapter
from rookery.models.patches import with_patches
from rookery.types import Key, Tree

M = TypeVar("M", bound=eqx.Module)


def from_equinox(
    module: eqx.Module,
    *,
    state: eqx.nn.State | None = None,
    batch_norm: str | None = None,
    batch_axis: bool = False,
    patches: bool = False,
) -> tuple[adapter.Apply, Tree]:
    """An Equinox module as ``apply(params, example)``, and its parameters: the module's arrays.

    All arrays of floating-point numbers are parameters, everything else is constant. Modules of
    Equinox take one example, so there is no batch axis unless asked for. A key is handed on as the
    argument ``key`` of a module that has one.

    Args:
        module: any callable module with one input.
        state: of a module that has one, as ``eqx.nn.make_with_state`` returns it.
        batch_norm: what happens to running statistics of BatchNorm layers in training mode; only
            ``"frozen"``: they are constants.
        batch_axis: whether the module expects a batch axis; it gets a batch of one.
        patches: compute convolutions as products of patches (:func:`with_patches`).

    >>> import jax.numpy as jnp
    >>> model = eqx.nn.Linear(3, 2, key=jax.random.key(0))
    >>> apply, params = from_equinox(model)
    >>> bool(jnp.all(apply(params, jnp.ones(3)) == model(jnp.ones(3))))
    True
    """
    if not isinstance(module, eqx.Module) or not callable(module):
        raise TypeError(
            f"from_equinox takes a callable Equinox module, got {type(module).__name__}."
        )
    layers = _found(module, eqx.nn.BatchNorm)
    training = [type(layer).__name__ for layer in layers if not layer.inference]
    adapter.check_policy(batch_norm, training, "eqx.nn.inference_mode(module)")
    has_state = bool(_found(module, eqx.nn.StateIndex))
    if has_state and state is None:
        raise ValueError(
            "the module keeps a state beside its parameters. Pass it as state=: the one that "
            "eqx.nn.make_with_state returned or that training has left. It is constant here."
        )
    if batch_norm == "frozen":
        module = jax.tree.map(_frozen, module, is_leaf=_is_batch_norm)
    params, static = eqx.partition(module, eqx.is_inexact_array)
    takes_key = "key" in inspect.signature(type(module).__call__).parameters
    is_random = any(not layer.inference for layer in _found(module, eqx.nn.Dropout))

    def called(values: Tree, inputs: Tree, key: Key | None) -> Tree:
        if is_random and key is None:
            raise adapter.needs_key("Dropout", "eqx.nn.inference_mode(module)")
        model = eqx.combine(values, static)
        options = {"key": key} if takes_key and key is not None else {}
        if not has_state:
            return model(inputs, **options)
        output, after = model(inputs, state, **options)
        if after is not state:
            raise ValueError(
                "the call changes the module's state, which would be lost. Use "
                "eqx.nn.inference_mode(module) if that stops it."
            )
        return output

    constants = jax.tree.leaves(eqx.filter((static, state), eqx.is_array))
    text = adapter.architecture(_layers(module), str(static), constants)
    apply = adapter.one_example(adapter.Forward(called, text), batch_axis)
    return with_patches(apply) if patches else apply, params


def to_equinox(params: Tree, module: M) -> M:
    """The module with trained parameters in place of its own.

    >>> model = eqx.nn.Linear(3, 2, key=jax.random.key(0))
    >>> _, params = from_equinox(model)
    >>> to_equinox(jax.tree.map(lambda a: a + 1 - a, params), model).bias.tolist()
    [1.0, 1.0]
    """
    own, static = eqx.partition(module, eqx.is_inexact_array)
    mine, given = (jax.tree.map(lambda a: a.shape, tree) for tree in (own, params))
    if jax.tree.structure(own) != jax.tree.structure(params) or mine != given:
        raise ValueError(
            "the parameters do not fit the module: pass one solution, and a module of the same "
            "architecture."
        )
    return eqx.combine(params, static)


def _found(module: eqx.Module, kind: type) -> list[Any]:
    """All parts of a kind, however deep."""
    parts = jax.tree.leaves(module, is_leaf=lambda part: isinstance(part, kind))
    return [part for part in parts if isinstance(part, kind)]


def _layers(module: eqx.Module) -> list[eqx.Module]:
    """The module and all modules in it."""
    parts = jax.tree.leaves(
        module, is_leaf=lambda part: isinstance(part, eqx.Module) and part is not module
    )
    inner = [_layers(part) for part in parts if isinstance(part, eqx.Module)]
    return [module, *itertools.chain(*inner)]


def _is_batch_norm(part: object) -> bool:
    return isinstance(part, eqx.nn.BatchNorm)


def _frozen(part: Tree) -> Tree:
    return eqx.nn.inference_mode(part) if _is_batch_norm(part) else part

"""What the adapters have in common: the shape of ``apply``, and policies for statistics."""

import hashlib
import re
from collections.abc import Callable, Iterable
from typing import Protocol

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

from rookery import check
from rookery.models.code_digest import CodeReader
from rookery.types import Key, Tree

POLICIES = ("frozen", "averaged", "own")


class Apply(Protocol):
    """A model as a pure function of its parameters and one example, for jit, vmap and grad."""

    def __call__(self, params: Tree, inputs: Tree, key: Key | None = None) -> Tree:
        """The output for one example; ``key`` is for dropout and other random layers."""
        ...


class Forward:
    """A forward pass that holds objects of another library.

    A run describes its functions by what they read, to tell whether two runs are the same. These
    objects are no part of it; ``architecture`` stands for them.

    Attributes:
        call: ``call(params, inputs, key)``.
        architecture: the same text for the same module in any process.
    """

    __slots__ = ("__dict__", "call")

    def __init__(self, call: Callable[[Tree, Tree, Key | None], Tree], architecture: str):
        self.call, self.architecture = call, architecture


def architecture(layers: Iterable[object], text: str, constants: Iterable[ArrayLike]) -> str:
    """A digest of a module: what it prints, what its layers compute, and its constants.

    Args:
        layers: the module and everything in it.
        text: what it prints; addresses of objects are left out.
        constants: arrays that are no parameters.
    """
    digest = hashlib.sha256(re.sub(r" at 0x[0-9a-f]+", "", text).encode())
    reader = CodeReader()
    for layer in layers:
        digest.update(reader.layer(layer).encode())
    for constant in constants:
        array = np.asarray(constant)
        digest.update(f"{array.dtype}{array.shape}".encode() + array.tobytes())
    return digest.hexdigest()[:16]


def one_example(forward: Forward, batch_axis: bool) -> Apply:
    """A function of one example; a module that expects a batch gets a batch of one."""

    def apply(params: Tree, inputs: Tree, key: Key | None = None) -> Tree:
        inputs = jax.tree.map(jnp.asarray, inputs)
        if not batch_axis:
            return forward.call(params, inputs, key)
        outputs = forward.call(params, jax.tree.map(lambda a: a[None], inputs), key)
        return jax.tree.map(lambda a: a[0], outputs)

    return apply


def check_policy(batch_norm: str | None, training: list[str], to_evaluate: str) -> None:
    """Raise unless it is clear what happens to the statistics of batch normalisation.

    Args:
        batch_norm: the policy, or None.
        training: names of the layers that would use and change statistics of a batch.
        to_evaluate: how to put the module into evaluation mode.
    """
    if batch_norm is not None:
        check.one_of("policy for batch normalisation", batch_norm, POLICIES)
    if batch_norm in ("averaged", "own"):
        raise ValueError(
            f"batch_norm={batch_norm!r}: a module's own BatchNorm layers can only be 'frozen' "
            "here, because their statistics need a batch and change outside of the parameters. "
            "Write the layer with rookery.problem.batch_norm, whose statistics are part of the "
            "model, or use GroupNorm or LayerNorm, which need none."
        )
    if batch_norm is None and training:
        raise ValueError(
            f"the layers {training} are in training mode and keep statistics of batches. Pass "
            "batch_norm='frozen' to use their running statistics as constants (scale and shift are "
            f"still trained), or call {to_evaluate} first, or use GroupNorm or LayerNorm."
        )


def needs_key(what: str, to_evaluate: str) -> ValueError:
    """The error for a random layer without a key."""
    return ValueError(
        f"the model is random ({what}), and apply got no key. Give the loss a parameter key and "
        f"call apply(params, x, key), or call {to_evaluate} before the conversion to switch it off."
    )

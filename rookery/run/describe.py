"""A plain description of a run: what a directory must agree on before a run goes on in it."""

import hashlib
from collections.abc import Mapping
from typing import Any

import equinox as eqx
import jax
import numpy as np

from rookery._types import Tree


def describe(value: Any) -> Any:
    """JSON-ready description of modules, functions, arrays and plain values."""
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, np.ndarray | jax.Array):
        return value.item() if value.ndim == 0 else fingerprint(value)
    if isinstance(value, eqx.Module):
        fields = {name: describe(v) for name, v in vars(value).items()}
        return {"name": type(value).__name__, **fields}
    if isinstance(value, Mapping):
        return {str(name): describe(v) for name, v in value.items()}
    if isinstance(value, list | tuple):
        return [describe(v) for v in value]
    module, name = getattr(value, "__module__", ""), getattr(value, "__qualname__", None)
    return f"{module}.{name}" if name else type(value).__name__


def fingerprint(tree: Tree) -> str:
    """A short digest of the shapes, types and bytes of all arrays in a tree."""
    digest = hashlib.sha256()
    for path, leaf in jax.tree_util.tree_flatten_with_path(tree)[0]:
        array = np.asarray(leaf, order="C")
        digest.update(f"{jax.tree_util.keystr(path)}{array.dtype}{array.shape}".encode())
        digest.update(array.tobytes())
    return digest.hexdigest()[:16]

"""A plain description of a run: what a directory must agree on before a run goes on in it."""

import functools
import hashlib
import types
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
    if isinstance(value, functools.partial):
        return [describe(value.func), describe(value.args), describe(value.keywords)]
    if isinstance(value, types.FunctionType):
        return _describe_function(value)
    module, name = getattr(value, "__module__", ""), getattr(value, "__qualname__", None)
    return f"{module}.{name}" if name else type(value).__name__


def _describe_function(fn: types.FunctionType) -> str:
    """Its name and a digest of its code and of what it closes over: two lambdas differ."""
    closed = [describe(cell.cell_contents) for cell in fn.__closure__ or ()]
    content = [_code(fn.__code__), closed, describe(fn.__defaults__ or ())]
    digest = hashlib.sha256(repr(content).encode()).hexdigest()[:8]
    return f"{fn.__module__}.{fn.__qualname__}#{digest}"


def _code(code: types.CodeType) -> list:
    constants = [_code(c) if isinstance(c, types.CodeType) else repr(c) for c in code.co_consts]
    return [code.co_code.hex(), constants, code.co_names]


def fingerprint(tree: Tree) -> str:
    """A short digest of the shapes, types and bytes of all arrays in a tree."""
    digest = hashlib.sha256()
    for path, leaf in jax.tree_util.tree_flatten_with_path(tree)[0]:
        array = np.asarray(leaf, order="C")
        digest.update(f"{jax.tree_util.keystr(path)}{array.dtype}{array.shape}".encode())
        digest.update(array.tobytes())
    return digest.hexdigest()[:16]

"""JSON-ready descriptions of runs: a directory is resumed only if its description agrees."""

import functools
import hashlib
import types
from collections.abc import Mapping
from typing import Any

import equinox as eqx
import jax
import numpy as np

from rookery.clients.population import Population
from rookery.types import Tree


def describe(value: Any, _seen: tuple = ()) -> Any:  # anything in, JSON out
    """JSON-ready description of modules, functions, arrays and plain values.

    >>> describe({"sizes": (3, 4), "lr": np.float32(0.5)})
    {'sizes': [3, 4], 'lr': 0.5}
    """
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, np.ndarray | jax.Array):
        return value.item() if value.ndim == 0 else fingerprint(value)
    if isinstance(value, eqx.Module):
        fields = {name: describe(v, _seen) for name, v in vars(value).items()}
        return {"name": type(value).__name__, **fields}
    if isinstance(value, Mapping):
        return {str(name): describe(v, _seen) for name, v in value.items()}
    if isinstance(value, list | tuple):
        return [describe(v, _seen) for v in value]
    if isinstance(value, set | frozenset):
        return sorted(str(describe(v, _seen)) for v in value)
    if isinstance(value, functools.partial):
        return [describe(v, _seen) for v in (value.func, value.args, value.keywords)]
    if isinstance(value, types.MethodType):
        return [describe(value.__func__, _seen), describe(value.__self__, _seen)]
    if isinstance(value, types.FunctionType):
        return _describe_function(value, _seen)
    if hasattr(value, "__wrapped__"):  # a jitted function, for example
        return describe(value.__wrapped__, _seen)
    module, name = getattr(value, "__module__", ""), getattr(value, "__qualname__", None)
    if name:
        return f"{module}.{name}"
    return {"name": type(value).__name__, **describe(getattr(value, "__dict__", {}), _seen)}


def _describe_function(fn: types.FunctionType, seen: tuple) -> str:
    """Its name and a digest of its code, closure and globals, so that two lambdas differ."""
    name = f"{fn.__module__}.{fn.__qualname__}"
    if fn in seen:
        return name
    seen = (*seen, fn)
    closed = [_describe_cell(cell, seen) for cell in fn.__closure__ or ()]
    plain = bool | int | float | str | np.ndarray | np.generic | jax.Array | types.FunctionType
    used = {
        n: describe(fn.__globals__[n], seen)
        for n in sorted(_names(fn.__code__))
        if isinstance(fn.__globals__.get(n), plain)
    }
    defaults = describe([fn.__defaults__, fn.__kwdefaults__], seen)
    content = [_code(fn.__code__, seen), closed, used, defaults]
    return f"{name}#{hashlib.sha256(repr(content).encode()).hexdigest()[:8]}"


def _describe_cell(cell: types.CellType, seen: tuple) -> Any:  # JSON out
    try:
        content = cell.cell_contents
    except ValueError:  # a variable that was never set, or was deleted
        return "empty"
    return describe(content, seen)


def _names(code: types.CodeType) -> set[str]:
    inner = (c for c in code.co_consts if isinstance(c, types.CodeType))
    return set(code.co_names).union(*(_names(c) for c in inner))


def _code(code: types.CodeType, seen: tuple) -> list:
    constants = [
        _code(c, seen) if isinstance(c, types.CodeType) else describe(c, seen)
        for c in code.co_consts
    ]
    return [code.co_code.hex(), constants, code.co_names]


def data_fingerprint(population: Population) -> str:
    """A short digest of a population; of one on disk, that of its description and small arrays."""
    if not (population.is_on_disk and population.digest):
        return fingerprint(population)
    small = (population.offsets, population.counts, population.weights)
    return hashlib.sha256((population.digest + fingerprint(small)).encode()).hexdigest()[:16]


def fingerprint(tree: Tree) -> str:
    """A short digest of the shapes, types and bytes of all arrays in a tree.

    >>> fingerprint(np.zeros(2)) == fingerprint(np.zeros(2)) != fingerprint(np.ones(2))
    True
    """
    digest = hashlib.sha256()
    for path, leaf in jax.tree_util.tree_flatten_with_path(tree)[0]:
        array = np.asarray(leaf, order="C")
        digest.update(f"{jax.tree_util.keystr(path)}{array.dtype}{array.shape}".encode())
        digest.update(array.tobytes())
    return digest.hexdigest()[:16]

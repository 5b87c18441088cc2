"""A text of what a module of another library computes, to tell two modules apart."""

import functools
import hashlib
import inspect
import sys
import types
from collections.abc import Mapping

import jax
import numpy as np

_PLAIN = bool | int | float | complex | str | bytes | None
_INSTALLED = ("site-packages", "dist-packages")


class CodeReader:
    """Reads the code of layers: instructions, names, constants, defaults and closures.

    Functions of the user are followed into the functions and plain values that they read from their
    module; those of installed packages are not.

    >>> def scaled(factor):
    ...     return lambda w: factor * w
    >>> two, three = (CodeReader().read(scaled(factor)) for factor in (2.0, 3.0))
    >>> two == CodeReader().read(scaled(2.0)), two == three
    (True, False)
    """

    def __init__(self):
        self._seen: dict[
            int, tuple[int, object]
        ] = {}  # held, so that no other object gets the identity

    def layer(self, layer: object) -> str:
        """A layer: its forward pass, the methods of its class, and the functions that it holds."""
        kind = type(layer)
        forward = inspect.unwrap(getattr(kind, "forward", kind.__call__))
        return repr(
            [
                self._class(kind),
                self.read(forward),
                self.read(_held(getattr(layer, "__dict__", {}))),
            ]
        )

    def read(self, value: object) -> str:
        """Any value, the same in every process; a layer in it is only named."""
        if isinstance(value, _PLAIN):
            return repr(value)
        if isinstance(value, np.ndarray | np.generic | jax.Array):
            return _array(value)
        if isinstance(value, Mapping):
            return repr([(str(name), self.read(v)) for name, v in value.items()])
        if isinstance(value, list | tuple):
            return repr([self.read(v) for v in value])
        if isinstance(value, set | frozenset):
            return repr(sorted(self.read(v) for v in value))
        if isinstance(value, types.CodeType):
            return repr([value.co_code.hex(), value.co_names, self.read(value.co_consts)])
        if id(value) in self._seen:
            return f"seen {self._seen[id(value)][0]}"
        self._seen[id(value)] = len(self._seen), value
        if isinstance(value, types.FunctionType):
            return self._function(value)
        if isinstance(value, types.MethodType):
            return self.read(value.__func__)
        if isinstance(value, functools.partial):
            return self.read([value.func, value.args, value.keywords])
        if isinstance(value, property):
            return self.read(value.fget)
        if hasattr(value, "__wrapped__"):  # a jitted function, for example
            return self.read(value.__wrapped__)  # pyright: ignore[reportAttributeAccessIssue]
        return _name(value)

    def _function(self, fn: types.FunctionType) -> str:
        closed = [self.read(c.cell_contents) for c in fn.__closure__ or () if _is_filled(c)]
        known = {}
        if _is_users(fn.__module__):
            found = {name: fn.__globals__.get(name) for name in sorted(_names(fn.__code__))}
            known = {
                n: v for n, v in found.items() if isinstance(v, _PLAIN | np.ndarray | jax.Array)
                or _is_function(v)
            }  # fmt: skip
        parts = [fn.__code__, [fn.__defaults__, fn.__kwdefaults__], known]
        return repr([_name(fn), closed, *(self.read(part) for part in parts)])

    def _class(self, kind: type) -> str:
        methods = [
            (name, self.read(getattr(base, name)))
            for base in kind.__mro__
            if _is_users(base.__module__)
            for name, value in vars(base).items()
            if name == "__call__" or not name.startswith("__")
            if callable(getattr(base, name, None)) or isinstance(value, property)
        ]
        return repr([_name(kind), methods])


def _held(value: object) -> object:
    """Plain values and functions in containers, without parameters and other layers."""
    if isinstance(value, Mapping):
        return {name: _held(v) for name, v in value.items()}
    if isinstance(value, list | tuple):
        return [_held(v) for v in value]
    return value if isinstance(value, _PLAIN) or _is_function(value) else None


def _array(value: np.ndarray | np.generic | jax.Array) -> str:
    if jax.numpy.issubdtype(value.dtype, jax.dtypes.prng_key):
        value = jax.random.key_data(value)  # pyright: ignore[reportArgumentType]
    array = np.asarray(value, order="C")
    return f"{array.dtype}{array.shape}{hashlib.sha256(array.tobytes()).hexdigest()}"


def _is_function(value: object) -> bool:
    kinds = types.FunctionType | types.MethodType | functools.partial
    return isinstance(value, kinds) or (callable(value) and hasattr(value, "__wrapped__"))


def _name(value: object) -> str:
    named = value if hasattr(value, "__qualname__") else type(value)
    return f"{named.__module__}.{named.__qualname__}"  # pyright: ignore[reportAttributeAccessIssue]


def _names(code: types.CodeType) -> set[str]:
    inner = (c for c in code.co_consts if isinstance(c, types.CodeType))
    return set(code.co_names).union(*(_names(c) for c in inner))


def _is_filled(cell: types.CellType) -> bool:
    try:
        return cell.cell_contents is not cell
    except ValueError:  # a variable that is not assigned yet
        return False


def _is_users(module: str | None) -> bool:
    """Whether a module is no part of Python or of an installed package."""
    top = (module or "__main__").partition(".")[0]
    if top in sys.stdlib_module_names and top != "__main__":
        return False
    file = getattr(sys.modules.get(module or "__main__"), "__file__", None) or ""
    return not any(folder in file for folder in _INSTALLED)

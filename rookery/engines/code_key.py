"""A key of the code that a compiled program was traced from.

JAX caches a compiled program by the identity of its functions. A function may read more than its
arguments: globals, variables of an enclosing function, other functions. Someone who changes one of
them in a notebook and runs again would silently get the old program. A :class:`CodeKey` holds what
the functions read, and is an argument of the program: if it differs, JAX traces again.

Code of rookery, of the standard library and of installed packages counts as constant. What a
function under the user's own ``jax.jit`` reads is cached by that ``jit``, as always in JAX.
"""

import dataclasses
import dis
import functools
import hashlib
import sys
import types
from collections.abc import Iterable, Mapping

import equinox as eqx
import jax
import numpy as np

_PLAIN = bool | int | float | complex | str | bytes | None
_READERS = {"open", "input", "eval", "exec", "compile", "__import__"}
_INSIDE = set(
    "__future__ __main__ abc builtins collections copy dataclasses enum fractions functools "
    "itertools math numbers operator statistics string types typing".split()
)
_INSTALLED = ("site-packages", "dist-packages")


class CodeKey:
    """What some objects' functions read, to compare and to hash.

    >>> def scaled(factor):
    ...     return lambda w: factor * w
    >>> CodeKey([scaled(2.0)]) == CodeKey([scaled(2.0)])
    True
    >>> CodeKey([scaled(2.0)]) == CodeKey([scaled(3.0)])
    False

    Args:
        roots: functions, and modules whose fields and methods are or hold functions. Arrays and
            plain values in a module's fields are no part of the key: they are arguments of a
            program.
    """

    def __init__(self, roots: Iterable[object]):
        reader = _Reader()
        for root in roots:
            reader.read(root, is_field=True)
        self.digest = reader.digest.digest()
        self.same = reader.same  # held, so that no other object gets their identity

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, CodeKey)
            and self.digest == other.digest
            and all(a is b for a, b in zip(self.same, other.same, strict=True))
        )

    def __hash__(self) -> int:
        return hash(self.digest)


def fingerprint(roots: Iterable[object]) -> str | None:
    """A digest of trees whose arrays are arguments of a program, equal in every process.

    Shapes and types of arrays count, and so do all other values. None if something can be told
    apart by identity only, or if a function of the user's may read what is outside this process: a
    file, the clock, the environment.

    >>> fingerprint([{"lr": 0.1}]) == fingerprint([{"lr": 0.1}]) != fingerprint([{"lr": 0.2}])
    True
    >>> fingerprint([object()])
    """
    reader = _Reader(is_whole=True)
    for root in roots:
        reader.read(root, is_field=True)
    return None if reader.same or reader.looks_outside else reader.digest.hexdigest()


class _Reader:
    """Walks through objects in a fixed order.

    Attributes:
        digest: of everything that can be compared by its value.
        same: the objects that can only be compared by identity.
        looks_outside: whether a function may read what is outside this process.

    Args:
        is_whole: whether the digest has plain values of fields, and shapes of their arrays.
    """

    def __init__(self, *, is_whole: bool = False):
        self._is_whole, self.looks_outside = is_whole, False
        self.digest = hashlib.blake2b(digest_size=16)
        self.same: list[object] = []
        self._seen: dict[int, tuple[int, object]] = {}

    def read(self, value: object, *, is_field: bool = False) -> None:
        """Add a value; ``is_field`` leaves out what a compiled program has as an argument."""
        if isinstance(value, _PLAIN):
            if not is_field or self._is_whole:
                self._note(type(value).__name__, repr(value))
            return
        if isinstance(value, np.ndarray | np.generic | jax.Array) and is_field:
            if self._is_whole:
                is_weak = getattr(value, "weak_type", False)
                self._note("argument", f"{value.dtype}{value.shape}{is_weak}")
            return
        if id(value) in self._seen:
            self._note("seen", str(self._seen[id(value)][0]))
            return
        self._seen[id(value)] = len(self._seen), value
        match value:
            case np.ndarray() | np.generic():
                self._note("array", f"{value.dtype}{value.shape}")
                self.digest.update(np.ascontiguousarray(value).data if value.size else b"")
            case types.FunctionType():
                self._function(value)
            case types.MethodType():
                self._all("method", [value.__func__, value.__self__], is_field)
            case functools.partial():
                self._all("partial", [value.func, value.args, value.keywords], False)
            case types.CodeType():
                self._note("code", value.co_code.hex(), *value.co_names)
                self._all("constants", value.co_consts, False)
            case staticmethod() | classmethod():
                self._all("method", [value.__func__], False)
            case property():
                self._all("property", [value.fget], False)
            case type():
                self._class(value)
            case Mapping():
                self._all("keys", value.keys(), False)
                self._all("values", value.values(), is_field)
            case list() | tuple() | types.MappingProxyType():
                self._all(type(value).__name__, value, is_field)
            case set() | frozenset():
                self._note("set", *sorted(map(repr, value)))
            case _ if (wrapped := getattr(value, "__wrapped__", None)) is not None:
                self._all("wrapper", [wrapped], False)  # a jitted function, for example
            case CodeKey():
                self.same += value.same
                self._note("code key", value.digest.hex())
            case eqx.Module():
                self._all("module", [type(value), vars(value)], is_field)
            case _ if _is_users(type(value).__module__) or dataclasses.is_dataclass(value):
                self._all("object", [type(value), getattr(value, "__dict__", None)], False)
            case _:
                self._note("identity")
                self.same.append(value)

    def _function(self, fn: types.FunctionType) -> None:
        self.looks_outside |= _is_outside(fn.__module__)
        self._note("function", fn.__module__ or "", fn.__qualname__)
        cells = [cell.cell_contents for cell in fn.__closure__ or () if _is_filled(cell)]
        self._all("closure", cells, False)
        self._all("defaults", [fn.__defaults__, fn.__kwdefaults__], False)
        if _is_users(fn.__module__):
            self.looks_outside |= _imports(fn.__code__)
            self.read(fn.__code__)
            self._names(_names(fn.__code__), fn.__globals__)

    def _class(self, cls: type) -> None:
        self._note("class", cls.__module__, cls.__qualname__)
        self.looks_outside |= _is_outside(cls.__module__)
        for base in cls.__mro__:
            if _is_users(base.__module__):
                own = {n: v for n, v in vars(base).items() if not _is_machinery(n)}
                self._all("attributes", [own], False)

    def _names(self, names: list[str], space: Mapping[str, object]) -> None:
        """What code reads of a module, directly or as an attribute of another one of the user's."""
        for name in names:
            self.looks_outside |= name not in space and name in _READERS
            if name not in space or _is_machinery(name):
                continue
            value = space[name]
            self._note("name", name)
            if not isinstance(value, types.ModuleType):
                self.read(value)
            elif _is_outside(value.__name__):
                self.looks_outside = True
            elif _is_users(value.__name__) and id(value) not in self._seen:
                self._seen[id(value)] = len(self._seen), value
                self._names(names, vars(value))

    def _all(self, kind: str, values: Iterable[object], is_field: bool) -> None:
        self._note(kind)
        for value in values:
            self.read(value, is_field=is_field)
        self._note("end")

    def _note(self, *words: str) -> None:
        self.digest.update("\0".join(words).encode() + b"\1")


def _names(code: types.CodeType) -> list[str]:
    inner = [name for c in code.co_consts if isinstance(c, types.CodeType) for name in _names(c)]
    return sorted({*code.co_names, *inner})


def _imports(code: types.CodeType) -> bool:
    """Whether code imports when it is called."""
    return any(i.opname == "IMPORT_NAME" for i in dis.get_instructions(code)) or any(
        _imports(c) for c in code.co_consts if isinstance(c, types.CodeType)
    )


def _is_outside(module: str | None) -> bool:
    """Whether a module of the standard library may read what is outside this process."""
    top = (module or "__main__").partition(".")[0]
    return top in sys.stdlib_module_names and top not in _INSIDE


def _is_filled(cell: types.CellType) -> bool:
    try:
        return cell.cell_contents is not cell
    except ValueError:  # a variable that is not assigned yet
        return False


def _is_machinery(name: str) -> bool:
    return name.startswith("__") and name.endswith("__") and name not in ("__call__", "__init__")


@functools.lru_cache(10_000)
def _is_users(module: str | None) -> bool:
    """Whether a module is the user's own, whose globals may change."""
    top = (module or "__main__").partition(".")[0]
    if top == "rookery" or (top in sys.stdlib_module_names and top != "__main__"):
        return False
    file = getattr(sys.modules.get(module or "__main__"), "__file__", None) or ""
    return not any(folder in file for folder in _INSTALLED)

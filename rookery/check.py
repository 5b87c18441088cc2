"""Checks of arguments; every message has the argument's name, the value and what is wanted.

They return the value, so a constructor can write ``self.n = check.count("n", n)``.
"""

import difflib
import numbers
import reprlib
from collections.abc import Iterable, Mapping, Sequence
from inspect import Parameter
from types import NoneType, UnionType
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints, is_typeddict

import jax
import numpy as np
from jax.core import Tracer

T = TypeVar("T")

_IN_WORDS = {
    int: "a whole number",
    float: "a number",
    bool: "true or false",
    str: "a text",
    NoneType: "null",
}
_LISTS = (list, tuple, Sequence, Iterable)
_TABLES = (dict, Mapping)


def count(name: str, value: object, *, least: int = 1) -> int:
    """A whole number that is at least ``least``.

    >>> count("wait_for", 3)
    3
    >>> count("wait_for", 0)
    Traceback (most recent call last):
    ValueError: wait_for must be at least 1, got 0.
    """
    if isinstance(value, bool) or not isinstance(value, numbers.Integral):
        raise TypeError(f"{name} must be a whole number, got {value!r}.")
    if value < least:
        raise ValueError(f"{name} must be at least {least}, got {value}.")
    return int(value)


def positive(name: str, value: T) -> T:
    """A finite number above zero, or an array of them for a sweep.

    >>> positive("lr", 0.1)
    0.1
    >>> positive("lr", float("nan"))
    Traceback (most recent call last):
    ValueError: lr must be a finite number above 0, got nan.
    """
    number = _number(name, value)
    if number is not None and not np.all((number > 0) & np.isfinite(number)):
        raise ValueError(f"{name} must be a finite number above 0, got {value}.")
    return value


def positive_or_infinite(name: str, value: T) -> T:
    """A number above zero, or infinity, or an array of them for a sweep.

    >>> positive_or_infinite("gamma", float("inf"))
    inf
    """
    number = _number(name, value)
    if number is not None and not np.all(number > 0):
        raise ValueError(f"{name} must be a number above 0, or inf, got {value}.")
    return value


def not_negative(name: str, value: T) -> T:
    """A finite number that is zero or above, or an array of them for a sweep.

    >>> not_negative("damping", 0)
    0
    """
    number = _number(name, value)
    if number is not None and not np.all((number >= 0) & np.isfinite(number)):
        raise ValueError(f"{name} must be a finite number, 0 or above, got {value}.")
    return value


def fraction(name: str, value: T) -> T:
    """A number above 0 and at most 1, or an array of them for a sweep.

    >>> fraction("probability", 1.5)
    Traceback (most recent call last):
    ValueError: probability must be above 0 and at most 1, got 1.5.
    """
    number = _number(name, value)
    if number is not None and not np.all((number > 0) & (number <= 1)):
        raise ValueError(f"{name} must be above 0 and at most 1, got {value}.")
    return value


def decay(name: str, value: T) -> T:
    """A number that is at least 0 and below 1, or an array of them for a sweep.

    >>> decay("momentum", 1.0)
    Traceback (most recent call last):
    ValueError: momentum must be at least 0 and below 1, got 1.0.
    """
    number = _number(name, value)
    if number is not None and not np.all((number >= 0) & (number < 1)):
        raise ValueError(f"{name} must be at least 0 and below 1, got {value}.")
    return value


def _number(name: str, value: object) -> np.ndarray | None:
    if isinstance(value, Tracer):
        return None  # the numbers are not known while a sweep is traced
    if isinstance(value, bool) or not isinstance(value, numbers.Real | np.ndarray | jax.Array):
        raise TypeError(f"{name} must be a number, got {value!r}.")
    number = np.asarray(value)
    if not (np.issubdtype(number.dtype, np.floating) or np.issubdtype(number.dtype, np.integer)):
        raise TypeError(f"{name} must be a number, got an array of {number.dtype}.")
    return number


def distinct(what: str, names: Iterable[str]) -> None:
    """Raise if a name occurs twice.

    >>> distinct("column names", ["x", "y", "x"])
    Traceback (most recent call last):
    ValueError: column names must differ, got 'x' 2 times in x, y, x. Rename or remove all but one.
    """
    names = list(names)
    for name in names:
        if (times := names.count(name)) > 1:
            raise ValueError(
                f"{what} must differ, got {name!r} {times} times in {', '.join(names)}. Rename or "
                "remove all but one."
            )


def one_of(what: str, name: str, valid: Iterable[str]) -> str:
    """A name out of a list; otherwise an error with the nearest valid one.

    >>> one_of("kind of jobs", "iner", ["inner", "outer"])
    Traceback (most recent call last):
    ValueError: unknown kind of jobs 'iner'. Did you mean 'inner'? Valid: inner, outer.
    """
    valid = sorted(valid)
    if not isinstance(name, str):
        raise TypeError(f"{what} must be one of {', '.join(valid)}, got {name!r}.")
    if name in valid:
        return name
    near = difflib.get_close_matches(name, valid, n=1, cutoff=0.4)
    hint = f" Did you mean {near[0]!r}?" if near else ""
    raise ValueError(f"unknown {what} {name!r}.{hint} Valid: {', '.join(valid)}.")


def typed(name: str, value: object, kind: object) -> None:
    """Raise unless a value is of the kind that an annotation says.

    Numbers, texts, classes, lists, tables and ``TypedDict`` are checked, all that they hold
    included. Other annotations, such as those of functions, fit everything.

    >>> typed("rows", 3, int | None)
    >>> typed("rows", [3, "four"], list[int])
    Traceback (most recent call last):
    TypeError: rows[1] must be a whole number, got 'four'.
    """
    if wrong := _misfit(name, value, kind):
        raise TypeError(wrong)


def _misfit(name: str, value: object, kind: object) -> str:
    """What is wrong with a value; empty if nothing is."""
    origin, inner = get_origin(kind), get_args(kind)
    if origin in (Union, UnionType):
        is_fit = any(not _misfit(name, value, one) for one in inner)
    elif origin is Literal:
        is_fit = any(value == one and type(value) is type(one) for one in inner)
    elif is_typeddict(kind):
        is_fit = isinstance(value, Mapping)
        if isinstance(value, Mapping):
            for key, own in get_type_hints(kind).items():
                if key not in value and key in kind.__required_keys__:  # pyright: ignore[reportAttributeAccessIssue]
                    return f"{name} must have the key {key}, got {reprlib.repr(value)}."
                if key in value and (wrong := _misfit(f"{name}.{key}", value[key], own)):
                    return wrong
    elif kind in _LISTS or origin in _LISTS:
        is_fit = isinstance(value, list | tuple)
        if isinstance(value, list | tuple):
            is_fixed = origin is tuple and Ellipsis not in inner
            is_fit = not is_fixed or len(inner) == len(value)
            kinds = inner if is_fixed else inner[:1] * len(value)
            for i, (item, own) in enumerate(zip(value, kinds, strict=False)):
                if wrong := _misfit(f"{name}[{i}]", item, own):
                    return wrong
    elif kind in _TABLES or origin in _TABLES:
        is_fit = isinstance(value, Mapping)
        if isinstance(value, Mapping) and inner:
            for key, item in value.items():
                if wrong := _misfit(f"{name}.{key}", item, inner[1]):
                    return wrong
    else:
        is_fit = not isinstance(kind, type) or _is_instance(value, kind)
    return "" if is_fit else f"{name} must be {_in_words(kind)}, got {reprlib.repr(value)}."


def _is_instance(value: object, kind: type) -> bool:
    if kind in (Any, Parameter.empty) or getattr(kind, "_is_protocol", False):
        return True
    if isinstance(value, bool) and kind in (int, float):
        return False
    return isinstance(value, {int: numbers.Integral, float: numbers.Real}.get(kind, kind))


def _in_words(kind: object) -> str:
    origin, inner = get_origin(kind), get_args(kind)
    if origin in (Union, UnionType):
        return " or ".join(dict.fromkeys(map(_in_words, inner)))
    if origin is Literal:
        return " or ".join(map(repr, inner))
    if is_typeddict(kind) or kind in _TABLES or origin in _TABLES:
        return "a table"
    if kind in _LISTS or origin in _LISTS:
        return "a list"
    return _IN_WORDS.get(kind) or getattr(kind, "__name__", str(kind))  # pyright: ignore[reportCallIssue, reportArgumentType]

"""Checks of what a user passes in; every message says what was got and what to do."""

import difflib
import numbers
from collections.abc import Iterable
from typing import Any

import jax
import numpy as np
from jax.core import Tracer


def count(name: str, value: Any, *, least: int = 1) -> int:
    """A whole number that is at least ``least``."""
    if isinstance(value, bool) or not isinstance(value, numbers.Integral):
        raise TypeError(f"{name} must be a whole number, got {value!r}.")
    if value < least:
        raise ValueError(f"{name} must be at least {least}, got {value}.")
    return int(value)


def positive(name: str, value: Any) -> Any:
    """A finite number above zero; an array of them is let through to be swept over."""
    number = _number(name, value)
    if number is not None and not np.all((number > 0) & np.isfinite(number)):
        raise ValueError(f"{name} must be a finite number above 0, got {value}.")
    return value


def positive_or_infinite(name: str, value: Any) -> Any:
    """A number above zero, or infinity; an array of them is let through to be swept over."""
    number = _number(name, value)
    if number is not None and not np.all(number > 0):
        raise ValueError(f"{name} must be a number above 0, or inf, got {value}.")
    return value


def not_negative(name: str, value: Any) -> Any:
    """A finite number that is zero or above."""
    number = _number(name, value)
    if number is not None and not np.all((number >= 0) & np.isfinite(number)):
        raise ValueError(f"{name} must be a finite number, 0 or above, got {value}.")
    return value


def fraction(name: str, value: Any) -> Any:
    """A number above 0 and at most 1."""
    number = _number(name, value)
    if number is not None and not np.all((number > 0) & (number <= 1)):
        raise ValueError(f"{name} must be above 0 and at most 1, got {value}.")
    return value


def _number(name: str, value: Any) -> np.ndarray | None:
    if isinstance(value, Tracer):
        return None  # the numbers are not known while a sweep is traced
    if isinstance(value, bool) or not isinstance(value, numbers.Real | np.ndarray | jax.Array):
        raise TypeError(f"{name} must be a number, got {value!r}.")
    return np.asarray(value)


def one_of(what: str, name: str, valid: Iterable[str]) -> str:
    """A name out of a list; otherwise an error with the nearest valid one."""
    valid = sorted(valid)
    if name in valid:
        return name
    near = difflib.get_close_matches(name, valid, n=1, cutoff=0.4)
    hint = f" Did you mean {near[0]!r}?" if near else ""
    raise ValueError(f"unknown {what} {name!r}.{hint} Valid: {', '.join(valid)}.")

"""Confidence intervals of means, and the Student t distribution behind them."""

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import Generic, NamedTuple, TypeVar, overload

import numpy as np

_Value = TypeVar("_Value")


class Interval(NamedTuple, Generic[_Value]):
    """A mean over seeds and its 95 % confidence bounds: three numbers, or three arrays.

    >>> Interval(0.5, 0.4, 0.6).high
    0.6
    """

    mean: _Value
    low: _Value
    high: _Value


@overload
def interval(values: Sequence[float]) -> Interval[float]: ...
@overload
def interval(values: np.ndarray) -> Interval[np.ndarray]: ...
def interval(values: np.ndarray | Sequence[float]) -> Interval:
    """Mean over the first dimension ± Student's quantile times the standard error.

    A NaN makes the mean NaN: no seed is dropped silently. With one value the interval has no width.

    >>> interval([1.0, 2.0, 3.0]).high.round(3)
    np.float64(4.484)
    """
    values = np.asarray(values, float)
    n, mean = len(values), values.mean(0)
    if n == 1:
        return Interval(mean, mean, mean)
    half = student_quantile(n - 1) * values.std(0, ddof=1) / math.sqrt(n)
    return Interval(mean, mean - half, mean + half)


def student_cdf(t: float, df: int) -> float:
    """Distribution function of Student's t with ``df`` degrees of freedom.

    >>> student_cdf(0.0, df=3)
    0.5
    """
    tail = _incomplete_beta(df / 2, 0.5, df / (df + t * t), t * t / (df + t * t)) / 2
    return 1 - tail if t > 0 else tail


@lru_cache
def student_quantile(df: int) -> float:
    """Half the width of a 95 % interval, in standard errors.

    >>> round(student_quantile(2), 4)
    4.3027
    """
    low, high = 0.0, 16.0  # 12.7 for one degree of freedom, less for more
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if student_cdf(middle, df) < 0.975 else (low, middle)
    return high


def _incomplete_beta(a: float, b: float, x: float, rest: float) -> float:
    """The regularised incomplete beta function at x = 1 - rest, by its continued fraction."""
    if x == 0 or rest == 0:
        return float(rest == 0)
    if x > (a + 1) / (a + b + 2):  # the fraction of the reflected argument converges faster
        return 1 - _incomplete_beta(b, a, rest, x)
    scale = math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b)
    front = math.exp(scale + a * math.log(x) + b * math.log(rest)) / a
    c, d = 1.0, 1 / (1 - (a + b) * x / (a + 1))
    fraction = d
    for m in range(1, 300):
        even = m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m))
        odd = -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1))
        for term in (even, odd):
            c, d = 1 + term / c, 1 / (1 + term * d)
            fraction *= c * d
        if abs(c * d - 1) < 1e-15:
            break
    return front * fraction

"""Shamir's secret sharing: a secret in n shares, of which any t restore it and fewer tell nothing.

The secret is the constant term of a random polynomial of degree t - 1 over a prime field; a share
is its value at the holder's point. (A. Shamir. How to share a secret. CACM 22(11), 1979.)
"""

import secrets
from collections.abc import Mapping, Sequence
from functools import lru_cache

PRIME = 2**256 + 297
"""The first prime above all secrets of 32 bytes."""

SECRET_BYTES = 32
SHARE_BYTES = 33


def point(client: int) -> int:
    """The point of a client: above zero, where the secret is."""
    return client + 1


def split(secret: bytes, points: Sequence[int], threshold: int) -> list[bytes]:
    """The shares of a secret, one for each point.

    >>> shares = split(bytes(32), points=[1, 2, 3], threshold=2)
    >>> combine({1: shares[0], 3: shares[2]}) == bytes(32)
    True

    Args:
        secret: 32 bytes.
        points: of the holders: distinct and above zero.
        threshold: how many shares restore the secret.
    """
    if len(secret) != SECRET_BYTES:
        raise ValueError(f"a secret has {SECRET_BYTES} bytes, got {len(secret)}.")
    if len(set(points)) != len(points) or not all(0 < point < PRIME for point in points):
        raise ValueError(f"the holders' points must be distinct and above zero, got {points}.")
    if not 1 <= threshold <= len(points):
        raise ValueError(f"the threshold must be from 1 to {len(points)}, got {threshold}.")
    constant = int.from_bytes(secret, "big")
    polynomial = [constant, *(secrets.randbelow(PRIME) for _ in range(threshold - 1))]
    return [_value(polynomial, point).to_bytes(SHARE_BYTES, "big") for point in points]


def combine(shares: Mapping[int, bytes]) -> bytes:
    """The secret of as many shares as the threshold says, by point; with fewer it is a random one.

    Raises:
        ValueError: if the shares cannot be those of a secret.
    """
    values = [int.from_bytes(share, "big") for share in shares.values()]
    terms = zip(values, _at_zero(tuple(shares)), strict=True)
    constant = sum(value * factor for value, factor in terms) % PRIME
    if constant >> (8 * SECRET_BYTES):
        raise ValueError("the shares do not belong to one secret.")
    return constant.to_bytes(SECRET_BYTES, "big")


def _value(polynomial: Sequence[int], point: int) -> int:
    value = 0
    for coefficient in reversed(polynomial):
        value = (value * point + coefficient) % PRIME
    return value


@lru_cache(16)  # all secrets of an exchange are restored from the shares of the same holders
def _at_zero(points: tuple[int, ...]) -> list[int]:
    """The factors by which values at the points give the value at zero (Lagrange)."""
    factors = []
    for point in points:
        above, below = 1, 1
        for other in points:
            if other != point:
                above = above * other % PRIME
                below = below * (other - point) % PRIME
        factors.append(above * pow(below, -1, PRIME) % PRIME)
    return factors

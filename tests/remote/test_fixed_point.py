"""The arithmetic of secure aggregation: fixed-point integers and shared secrets."""

import itertools
import secrets

import numpy as np
import pytest

from rookery.remote import SecureAggregation
from rookery.remote.protocol import shamir

FIVE = range(1, 6)


@pytest.mark.parametrize("bits", [32, 64])
def test_integers_sum_as_real_numbers_do_and_wrap_around_nowhere(bits):
    secure = SecureAggregation(bits=bits)
    n, rng = 5, np.random.default_rng(0)
    edge = np.nextafter(secure.largest(n), 0)  # the largest reply, of every client
    rows = np.append(rng.normal(size=(n, 50)), np.full((n, 1), -np.floor(edge)), axis=1)
    encoded = np.stack([secure.encode([row], None, n).astype(object) for row in rows])
    total = encoded.sum(0) % 2**bits
    (got,) = secure.decode(total.astype(secure.dtype), [rows[0]])
    exact = np.rint(rows * secure.scale).astype(object).sum(0)
    assert (got * secure.scale == exact.astype(float)).all()
    np.testing.assert_allclose(got, rows.sum(0), rtol=0, atol=n / secure.scale / 2)


def test_integers_are_summed_exactly_and_leaves_keep_their_types():
    secure = SecureAggregation()
    leaves = [np.array([[-7, 2**40]]), np.array(0.25, np.float32), np.zeros((0, 3))]
    got = secure.decode(secure.encode(leaves, None, 3) * np.uint64(3), leaves)
    assert got[0].tolist() == [[-21, 3 * 2**40]] and float(got[1]) == 0.75
    assert [leaf.dtype for leaf in got] == [leaf.dtype for leaf in leaves]
    assert [leaf.shape for leaf in got] == [leaf.shape for leaf in leaves]


@pytest.mark.parametrize("value", [4096.0, -4096.0, np.nan, np.inf, 2**28, -(2**28)])
def test_what_does_not_fit_is_refused_and_the_error_does_not_tell_the_value(value):
    secure = SecureAggregation(bits=32)
    assert secure.largest(5) == 4096
    said = set()
    for factor in (1, 3):
        with pytest.raises(OverflowError, match=r"4096|NaN") as error:
            secure.encode([np.array([1, value * factor])], None, 5)
        said.add(str(error.value))
    assert len(said) == 1
    secure.encode([np.array([1, 4095.9])], None, 5)


def test_a_weight_of_zero_is_a_weight():
    secure = SecureAggregation()
    assert not secure.encode([np.ones(3)], 0.0, 3).any()


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"threshold": 0.5}, "above 0.5"),
        ({"threshold": 1.1}, "at most 1"),
        ({"bits": 48}, "32 or 64"),
        ({"bits": 32, "fraction_bits": 31}, "at most 30"),
        ({"fraction_bits": -1}, "fraction_bits"),
    ],
)
def test_settings_are_checked(wrong, said):
    with pytest.raises(ValueError, match=said):
        SecureAggregation(**wrong)


def test_two_thirds_are_rounded_up():
    assert [SecureAggregation().needed(n) for n in (3, 4, 5, 6, 10)] == [2, 3, 4, 4, 7]


def test_any_three_of_five_shares_restore_a_secret_and_two_do_not():
    secret = secrets.token_bytes(32)
    shares = dict(zip(FIVE, shamir.split(secret, FIVE, 3), strict=True))
    for some in itertools.combinations(FIVE, 3):
        assert shamir.combine({point: shares[point] for point in some}) == secret
    assert _or_none({point: shares[point] for point in (1, 2)}) != secret


def _or_none(shares):
    try:
        return shamir.combine(shares)
    except ValueError:  # a constant term that is no secret of 32 bytes
        return None


def test_two_shares_fit_every_secret():
    """Of three that are needed: the third share decides which secret it is."""
    one, two, _ = (int.from_bytes(s, "big") for s in shamir.split(bytes(32), [1, 2, 3], 3))
    for secret in (0, 1, 2**255):
        three = (secret - 3 * one + 3 * two) % shamir.PRIME  # third differences are zero
        shares = {i + 1: v.to_bytes(33, "big") for i, v in enumerate((one, two, three))}
        assert shamir.combine(shares) == secret.to_bytes(32, "big")


def test_the_field_is_prime_and_holds_every_secret():
    assert all(pow(base, shamir.PRIME - 1, shamir.PRIME) == 1 for base in (2, 3, 5, 7, 11))
    top = b"\xff" * 32
    assert shamir.combine(dict(zip(FIVE, shamir.split(top, FIVE, 5), strict=True))) == top


@pytest.mark.parametrize(("points", "threshold"), [([1, 1], 2), ([0, 1], 2), ([1, 2], 3), ([1], 0)])
def test_impossible_shares_are_refused(points, threshold):
    with pytest.raises(ValueError, match=r"points|threshold"):
        shamir.split(bytes(32), points, threshold)

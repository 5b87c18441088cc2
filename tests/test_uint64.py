import jax
import jax.numpy as jnp
import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from rookery import uint64
from rookery.uint64 import Counters

SIZES = (0, 1, 65535, 65536, 628_040, 2**31 - 1, 2**38 + 12345)
products = jax.jit(uint64.products, static_argnums=(0, 2))


@settings(max_examples=40, deadline=None)
@given(few=st.booleans(), times=st.lists(st.integers(0, 2**20), max_size=4))
def test_products_are_counted_exactly(few, times):
    sizes = (3, 0, 4095) if few else SIZES  # few: their products have one word
    counters = uint64.zeros(len(sizes))
    for t in times:
        counters = uint64.plus(counters, products(sizes, jnp.uint32(t), 2**20))
    assert uint64.read(counters) == [size * sum(times) % 2**64 for size in sizes]


@settings(max_examples=40, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 2**60), st.integers(0, 2**63)), min_size=1, max_size=5))
def test_sums_of_numbers_are_counted_exactly(numbers):
    sums = [sum(own) % 2**64 for own in zip(*numbers, strict=True)]
    assert uint64.read(uint64.total(wide(numbers))) == sums


@settings(max_examples=40, deadline=None)
@given(st.lists(st.integers(0, 2**64 - 1), min_size=2, max_size=2))
def test_a_sum_carries_into_the_high_word(numbers):
    a, b = (wide([number]) for number in numbers)
    assert uint64.read(uint64.plus(a, b)) == [sum(numbers) % 2**64]


def wide(numbers):
    whole = np.array(numbers, np.uint64)
    low, high = (whole % 2**32).astype(np.uint32), (whole >> np.uint64(32)).astype(np.uint32)
    return Counters(jnp.asarray(low), jnp.asarray(high))

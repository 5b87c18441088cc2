import jax
import jax.numpy as jnp
from hypothesis import given, settings
from hypothesis import strategies as st

from rookery import uint64

add = jax.jit(uint64.add, static_argnums=(1, 3))


@settings(max_examples=40, deadline=None)
@given(
    size=st.sampled_from([0, 1, 65535, 65536, 628_040, 2**31 - 1, 2**38 + 12345]),
    times=st.lists(st.integers(0, 2**20), max_size=4),
)
def test_products_are_counted_exactly(size, times):
    counter = uint64.zero()
    for t in times:
        counter = add(counter, size, jnp.uint32(t), 2**20)
    assert uint64.read(counter) == size * sum(times) % 2**64


@settings(max_examples=40, deadline=None)
@given(st.lists(st.integers(0, 2**60), min_size=1, max_size=5))
def test_sums_of_numbers_are_counted_exactly(numbers):
    counter = uint64.add_all(wide(2**40 + 7), jnp.stack([wide(n) for n in numbers]))
    assert uint64.read(counter) == (2**40 + 7 + sum(numbers)) % 2**64


def wide(number):
    return jnp.array([number % 2**32, number >> 32], jnp.uint32)

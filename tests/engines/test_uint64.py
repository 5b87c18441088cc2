import jax
import jax.numpy as jnp
from hypothesis import given, settings
from hypothesis import strategies as st

from rookery.engines import uint64

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
@given(st.lists(st.integers(0, 2**32 - 1), min_size=1, max_size=5))
def test_sums_of_numbers_are_counted_exactly(numbers):
    counter = uint64.add_all(uint64.zero(), jnp.array(numbers, jnp.uint32))
    assert uint64.read(counter) == sum(numbers)

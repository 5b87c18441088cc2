import jax
import jax.numpy as jnp
import pytest

from rookery import rng


def draws(key):
    """Everything that a program may ask of a key."""
    one, *more = jax.random.split(key, 3)
    folded = jax.vmap(jax.random.fold_in, (None, 0))(one, jnp.array([0, 7, 2**31 - 1]))
    return {
        "split": jnp.stack([jax.random.key_data(k) for k in (one, *more)]),
        "fold_in": jax.random.key_data(folded),
        "bits": [jax.random.bits(one, (3, 5), f"uint{w}") for w in (8, 16, 32, 64)],
        "batched": jax.vmap(lambda k: jax.random.bits(k, (2,)))(folded),
        "normal": [jax.random.normal(one, (7,), dtype) for dtype in ("float32", "float64")],
        "permutation": jax.random.permutation(more[0], 9),
        "in a loop": jax.lax.fori_loop(
            0, 3, lambda i, t: t + rng.below(jax.random.fold_in(more[1], i), (4,), 100), 
            jnp.zeros(4, jnp.int32),
        ),
    }  # fmt: skip


def test_quick_keys_give_the_same_bits():
    keys = jax.random.key(0), jax.random.key(2**31 + 5)
    for key in keys:
        want, got = jax.jit(draws)(key), jax.jit(lambda key: draws(rng.quick(key)))(key)
        for a, b in zip(jax.tree.leaves(want), jax.tree.leaves(got), strict=True):
            assert a.dtype == b.dtype
            assert a.tolist() == b.tolist()


def test_the_generator_of_a_quick_key_is_compiled_once():
    def twice(key):
        return jax.random.fold_in(jax.random.fold_in(rng.quick(key), 1), 2)

    lowered = jax.jit(twice).lower(jax.random.key(0))
    assert lowered.as_text().count('inlineable = "false"') >= 2
    text = lowered.compile().as_text()
    assert text is not None and text.count(" call(") == 2


@pytest.mark.parametrize("impl", ["rbg", "unsafe_rbg"])
def test_other_generators_are_left_alone(impl):
    key = jax.random.key(0, impl=impl)
    assert rng.quick(key) is key

"""Every oracle against finite differences and dense derivatives, on nested pytrees."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.flatten_util import ravel_pytree
from some_slow import some_slow

from rookery.problem import oracles
from rookery.problem.bilevel import Bilevel
from rookery.problem.composition import Composition, LocalComposition
from rookery.problem.minimax import Minimax
from rookery.problem.multisequence import MultiSequence
from rookery.problem.sample import Rows

N_ROWS = 6
close = functools.partial(np.testing.assert_allclose, rtol=1e-9, atol=1e-9)


def normal(seed, *shape, dtype=np.float64):
    return jnp.asarray(np.random.default_rng(seed).normal(size=shape).astype(dtype))


def data(dtype=np.float64):
    return {"a": normal(1, N_ROWS, 3, dtype=dtype), "b": normal(2, N_ROWS, dtype=dtype)}


def point(dtype=np.float64):
    """x and y, both nested, and a direction v shaped like y."""
    x = {"shift": normal(3, 3, dtype=dtype), "deep": (normal(4, 2, dtype=dtype),)}
    y = (normal(5, 3, dtype=dtype), {"m": normal(6, 2, 3, dtype=dtype)})
    v = (normal(7, 3, dtype=dtype), {"m": normal(8, 2, 3, dtype=dtype)})
    return x, y, v


def outer(x, y, row):
    u = row["a"] @ (y[0] + x["shift"]) + x["deep"][0] @ (y[1]["m"] @ row["a"])
    return jnp.sin(u) * row["b"] + jnp.sum(x["shift"] ** 3) * u / 5


def inner(x, y, row):
    """Strongly convex in y and far from quadratic."""
    u = row["a"] @ y[0] + x["deep"][0] @ (y[1]["m"] @ row["a"]) - row["b"] * x["shift"][0]
    ridge = jnp.sum(jnp.exp(x["shift"]) * y[0] ** 2) + jnp.sum(y[1]["m"] ** 2)
    return jnp.logaddexp(u, -u) + ridge / 2 + x["deep"][0] @ (y[1]["m"] @ x["shift"])


def split_levels(z, row):
    """A first layer with a pytree as its value."""
    return {"p": jnp.tanh(row["a"] * z["shift"]), "q": jnp.sum(z["deep"][0] ** 2) * row["b"]}


def join_levels(z, row):
    return (z["p"] * z["q"] + row["a"], jnp.cos(z["q"] * row["b"]))


def last_level(z, row):
    return row["a"] @ z[0] ** 2 + z[1] * row["b"]


def main_map(blocks, row):
    x, y = blocks
    return {"shift": x["shift"] * row["b"] + y[0], "deep": (y[1]["m"] @ row["a"],)}


def sequence_map(blocks, row):
    x, y = blocks
    return (jnp.sin(y[0]) + x["shift"], {"m": y[1]["m"] * row["b"]})


BILEVEL = Bilevel(outer, inner)
MINIMAX = Minimax(outer)
CHAIN = Composition((split_levels, join_levels, last_level))
LOCAL = LocalComposition(split_levels, lambda u, row: row["a"] @ u["p"] ** 3 + u["q"] ** 2)
SEQUENCES = MultiSequence(main_map, (sequence_map,))


def mean_over_rows(fn, *variables, rows=None):
    """The mean by a plain average, without the oracles' weights."""
    each = jax.vmap(lambda row: fn(*variables, row))(data() if rows is None else rows)
    return jax.tree.map(lambda leaf: jnp.mean(leaf, axis=0), each)


def flat(tree):
    return np.asarray(ravel_pytree(tree)[0])


def in_flat(fn, variables, wrt):
    """``fn`` as a function of its ``wrt``-th variable laid out as one vector."""
    _, unravel = ravel_pytree(variables[wrt])
    return jax.jit(
        lambda vector: ravel_pytree(
            fn(*variables[:wrt], unravel(vector), *variables[wrt + 1 :]),
        )[0]
    )


def test_values_are_plain_means():
    x, y, _ = point()
    sample = Rows(data())
    close(BILEVEL.outer_value(x, y, sample), mean_over_rows(outer, x, y))
    close(BILEVEL.inner_value(x, y, sample), mean_over_rows(inner, x, y))
    close(MINIMAX.value(x, y, sample), mean_over_rows(outer, x, y))


GRADIENTS = {
    "outer_grad_x": (BILEVEL.outer_grad_x, outer, 0),
    "outer_grad_y": (BILEVEL.outer_grad_y, outer, 1),
    "inner_grad_x": (BILEVEL.inner_grad_x, inner, 0),
    "inner_grad_y": (BILEVEL.inner_grad_y, inner, 1),
    "minimax_grad_x": (MINIMAX.grad_x, outer, 0),
    "minimax_grad_y": (MINIMAX.grad_y, outer, 1),
}


@pytest.mark.parametrize("name", GRADIENTS)
def test_gradients_match_finite_differences(name, differences):
    oracle, loss, wrt = GRADIENTS[name]
    x, y, _ = point()
    gradient = oracle(x, y, Rows(data()))
    assert jax.tree.structure(gradient) == jax.tree.structure((x, y)[wrt])
    mean = in_flat(functools.partial(mean_over_rows, loss), (x, y), wrt)
    close(flat(gradient), differences(mean, flat((x, y)[wrt]))[0])


def test_value_and_gradient_are_the_two_oracles_in_one():
    x, y, _ = point()
    sample = Rows(data())
    value, gradient = oracles.value_and_gradient(inner, (x, y), 1, sample)
    close(value, BILEVEL.inner_value(x, y, sample))
    close(flat(gradient), flat(BILEVEL.inner_grad_y(x, y, sample)))


def test_joint_oracles_are_the_single_ones():
    x, y, v = point()
    sample = Rows(data())
    g_y, g_xy, g_yy = BILEVEL.inner_derivatives(x, y, v, sample)
    close(flat(g_y), flat(BILEVEL.inner_grad_y(x, y, sample)), rtol=1e-12)
    close(flat(g_xy), flat(BILEVEL.inner_cross(x, y, v, sample)), rtol=1e-12)
    close(flat(g_yy), flat(BILEVEL.inner_hvp(x, y, v, sample)), rtol=1e-12)
    f_x, f_y = BILEVEL.outer_gradients(x, y, sample)
    close(flat(f_x), flat(BILEVEL.outer_grad_x(x, y, sample)), rtol=1e-12)
    close(flat(f_y), flat(BILEVEL.outer_grad_y(x, y, sample)), rtol=1e-12)


@pytest.mark.parametrize("name, wrt", [("inner_cross", 0), ("inner_hvp", 1)])
def test_second_derivatives_match_the_dense_ones(name, wrt, differences):
    x, y, v = point()
    sample = Rows(data())
    oracle = getattr(BILEVEL, name)
    product = jax.jit(lambda x, y, v: oracle(x, y, v, sample))(x, y, v)
    assert jax.tree.structure(product) == jax.tree.structure((x, y)[wrt])

    joined, unravel = ravel_pytree((x, y))
    x_size = flat(x).size
    dense = jax.jit(jax.hessian(lambda u: mean_over_rows(inner, *unravel(u))))(joined)
    part = slice(0, x_size) if wrt == 0 else slice(x_size, None)
    close(flat(product), dense[part, x_size:] @ flat(v))

    gradient = BILEVEL.inner_grad_x if wrt == 0 else BILEVEL.inner_grad_y
    moving = in_flat(lambda x, y: gradient(x, y, sample), (x, y), 1)
    close(flat(product), differences(moving, flat(y)) @ flat(v))


def test_hypergradient_is_the_derivative_of_the_outer_loss_at_the_inner_minimiser(differences):
    x, y, _ = point()
    _, to_y = ravel_pytree(y)
    y_size = flat(y).size
    inner_mean = functools.partial(mean_over_rows, inner)

    @jax.jit
    def minimiser(x):
        def newton(_, u):
            loss = lambda u: inner_mean(x, to_y(u))  # noqa: E731
            return u - jnp.linalg.solve(jax.hessian(loss)(u), jax.grad(loss)(u))

        return to_y(jax.lax.fori_loop(0, 30, newton, jnp.zeros(y_size)))

    y, sample = minimiser(x), Rows(data())
    assert np.linalg.norm(flat(BILEVEL.inner_grad_y(x, y, sample))) < 1e-13
    columns = [BILEVEL.inner_hvp(x, y, to_y(e), sample) for e in jnp.eye(y_size)]
    hessian = np.stack([flat(column) for column in columns], axis=1)
    v = np.linalg.solve(hessian, flat(BILEVEL.outer_grad_y(x, y, sample)))
    direct = flat(BILEVEL.outer_grad_x(x, y, sample))
    indirect = flat(BILEVEL.inner_cross(x, y, to_y(jnp.asarray(v)), sample))

    phi = in_flat(lambda x: mean_over_rows(outer, x, minimiser(x)), (x,), 0)
    close(direct - indirect, differences(phi, flat(x))[0])
    assert np.linalg.norm(indirect) > 0.1  # else the test would not see its sign


def test_layers_and_their_transposed_jacobians(differences):
    z, sample = point()[0], Rows(data())
    for n, layer in enumerate(CHAIN.layers):
        after = CHAIN.layer(n, z, sample)
        close(flat(after), flat(mean_over_rows(layer, z)))
        cotangent = jax.tree.map(lambda leaf: jnp.cos(leaf) + 1, after)
        jacobian = differences(in_flat(functools.partial(mean_over_rows, layer), (z,), 0), flat(z))
        pulled = CHAIN.layer_vjp(n, z, cotangent, sample)
        assert jax.tree.structure(pulled) == jax.tree.structure(z)
        close(flat(pulled), jacobian.T @ flat(cotangent))
        z = after


def test_layer_products_chain_to_the_gradient_of_the_composition(differences):
    x, sample = point()[0], Rows(data())
    levels = [x]
    for n in range(3):
        levels.append(CHAIN.layer(n, levels[-1], sample))
    gradient = jnp.ones(())
    for n in reversed(range(3)):
        gradient = CHAIN.layer_vjp(n, levels[n], gradient, sample)

    def composed(z):
        for layer in CHAIN.layers:
            z = mean_over_rows(layer, z)
        return z

    close(flat(gradient), differences(in_flat(composed, (x,), 0), flat(x))[0])


def test_local_composition_uses_one_sample_inside_and_another_outside(differences):
    x, inside = point()[0], data()
    outside = {"a": normal(9, 4, 3), "b": normal(10, 4)}

    def composed(w):
        u = mean_over_rows(LOCAL.inner, w, rows=inside)
        return mean_over_rows(LOCAL.outer, u, rows=outside)

    samples = Rows(inside), Rows(outside)
    close(LOCAL.value(x, *samples), composed(x))
    gradient = differences(in_flat(composed, (x,), 0), flat(x))[0]
    close(flat(LOCAL.gradient(x, *samples)), gradient)


def test_sequence_maps_are_plain_means():
    blocks = point()[:2]
    got = SEQUENCES.maps(blocks, Rows(data()))
    for block, fn in zip(got, (main_map, sequence_map), strict=True):
        close(flat(block), flat(mean_over_rows(fn, blocks)))


class Recording:
    """Rows in uneven blocks, and a note of what was asked of them."""

    def __init__(self, rows, cuts=(0, 1, 4, N_ROWS)):
        self.rows, self.cuts = rows, cuts
        self.averages = self.gradients = self.hessian_vectors = 0

    def average(self, fn, /):
        self.averages += 1
        parts = [
            fn(
                jax.tree.map(lambda a: a[start:stop], self.rows),  # noqa: B023
                jnp.full((stop - start,), 1 / N_ROWS, jnp.float64),
            )
            for start, stop in zip(self.cuts, self.cuts[1:], strict=False)
        ]
        return jax.tree.map(lambda *leaves: sum(leaves[1:], leaves[0]), *parts)

    def average_with_keys(self, fn, /):
        raise AssertionError("a loss without a key makes none")

    def pairs(self):
        raise AssertionError("these are losses of one row")

    batch = row_shape = pairs

    def charge(self, *, gradients=0, hessian_vectors=0):
        self.gradients += gradients
        self.hessian_vectors += hessian_vectors


def cotangent_of_first_layer(dtype=np.float64):
    return {"p": normal(11, 3, dtype=dtype), "q": normal(12, dtype=dtype)}


# per oracle: the call, the passes over the rows, and what it is billed (gradients, products)
ORACLES = {
    "outer_value": (lambda x, y, v, s: BILEVEL.outer_value(x, y, s), 1, 0, 0),
    "outer_grad_x": (lambda x, y, v, s: BILEVEL.outer_grad_x(x, y, s), 1, 1, 0),
    "inner_grad_y": (lambda x, y, v, s: BILEVEL.inner_grad_y(x, y, s), 1, 1, 0),
    "inner_hvp": (lambda x, y, v, s: BILEVEL.inner_hvp(x, y, v, s), 1, 0, 1),
    "inner_cross": (lambda x, y, v, s: BILEVEL.inner_cross(x, y, v, s), 1, 0, 1),
    "value_and_gradient": (
        lambda x, y, v, s: oracles.value_and_gradient(inner, (x, y), 1, s), 1, 1, 0,
    ),
    "minimax_grad_y": (lambda x, y, v, s: MINIMAX.grad_y(x, y, s), 1, 1, 0),
    "layer": (lambda x, y, v, s: CHAIN.layer(0, x, s), 1, 0, 0),
    "layer_vjp": (
        lambda x, y, v, s: CHAIN.layer_vjp(0, x, cotangent_of_first_layer(x["shift"].dtype), s),
        1, 1, 0,
    ),
    "local_value": (lambda x, y, v, s: LOCAL.value(x, s, s), 2, 0, 0),
    "inner_derivatives": (lambda x, y, v, s: BILEVEL.inner_derivatives(x, y, v, s), 1, 1, 2),
    "outer_gradients": (lambda x, y, v, s: BILEVEL.outer_gradients(x, y, s), 1, 2, 0),
    "local_gradient": (lambda x, y, v, s: LOCAL.gradient(x, s, s), 3, 2, 0),
    "maps": (lambda x, y, v, s: SEQUENCES.maps((x, y), s), 1, 1, 0),
}  # fmt: skip


@pytest.mark.parametrize("name", ORACLES)
def test_a_sample_may_come_in_blocks_and_is_billed_once(name):
    call, averages, gradients, products = ORACLES[name]
    sample = Recording(data())
    in_blocks = jax.jit(lambda *variables: call(*variables, sample))(*point())
    close(flat(in_blocks), flat(jax.jit(call)(*point(), Rows(data()))), rtol=1e-12)
    assert sample.averages == averages
    assert (sample.gradients, sample.hessian_vectors) == (gradients, products)


@pytest.mark.parametrize("dtype", some_slow([np.float32, np.float64]))
@pytest.mark.parametrize("name", ORACLES)
def test_types_of_the_inputs_are_kept(name, dtype):
    for sample in (Rows(data(dtype)), Recording(data(dtype))):  # the latter has float64 weights
        out = jax.eval_shape(lambda *variables: ORACLES[name][0](*variables, sample), *point(dtype))  # noqa: B023
        assert {leaf.dtype for leaf in jax.tree.leaves(out)} == {np.dtype(dtype)}


def test_one_handle_at_two_points_sees_the_same_rows():
    rng = np.random.default_rng(0)
    rows = {"H": jnp.asarray(rng.normal(size=(5, 3, 3))), "c": jnp.asarray(rng.normal(size=(5, 3)))}

    def quadratic(x, row):
        return x @ row["H"] @ x / 2 + row["c"] @ x

    drawn = jax.tree.map(lambda a: a[jnp.array([1, 3])], rows)
    sample, other = Rows(drawn), Rows(jax.tree.map(lambda a: a[:2], rows))
    x, step = normal(1, 3), normal(2, 3)
    here = oracles.gradient(quadratic, (x,), 0, sample)
    there = oracles.gradient(quadratic, (x + step,), 0, sample)
    H = drawn["H"].mean(0)
    close(there - here, (H + H.T) / 2 @ step)
    elsewhere = oracles.gradient(quadratic, (x + step,), 0, other)
    assert np.linalg.norm(elsewhere - there) > 0.1


class Counted:
    """A function that knows how often Python called it."""

    def __init__(self, fn):
        self.fn, self.calls = fn, 0

    def __call__(self, *args):
        self.calls += 1
        return self.fn(*args)


def trace(call):
    jax.jit(call).lower(*point(), Rows(data()))


@pytest.mark.parametrize("name", ["outer_value", "outer_grad_x", "outer_grad_y"])
def test_outer_loss_is_traced_once(name):
    loss = Counted(outer)
    problem = Bilevel(loss, inner)
    trace(lambda x, y, v, sample: getattr(problem, name)(x, y, sample))
    assert loss.calls == 1


@pytest.mark.parametrize("name", ["inner_value", "inner_grad_x", "inner_grad_y"])
def test_inner_loss_is_traced_once(name):
    loss = Counted(inner)
    problem = Bilevel(outer, loss)
    trace(lambda x, y, v, sample: getattr(problem, name)(x, y, sample))
    assert loss.calls == 1


@pytest.mark.parametrize("name", ["inner_hvp", "inner_cross", "inner_derivatives"])
def test_second_derivatives_trace_the_loss_once(name):
    loss = Counted(inner)
    problem = Bilevel(outer, loss)
    trace(lambda x, y, v, sample: getattr(problem, name)(x, y, v, sample))
    assert loss.calls == 1


def test_value_and_gradient_trace_the_loss_once():
    loss = Counted(inner)
    trace(lambda x, y, v, sample: oracles.value_and_gradient(loss, (x, y), 1, sample))
    assert loss.calls == 1


@pytest.mark.parametrize("name", ["value", "grad_x", "grad_y"])
def test_minimax_loss_is_traced_once(name):
    loss = Counted(outer)
    problem = Minimax(loss)
    trace(lambda x, y, v, sample: getattr(problem, name)(x, y, sample))
    assert loss.calls == 1


def test_layers_and_maps_are_traced_once():
    layer, main = Counted(split_levels), Counted(main_map)
    chain = Composition((layer, last_level))
    trace(lambda x, y, v, sample: chain.layer(0, x, sample))
    assert layer.calls == 1
    trace(lambda x, y, v, sample: chain.layer_vjp(0, x, cotangent_of_first_layer(), sample))
    assert layer.calls == 2
    trace(lambda x, y, v, sample: MultiSequence(main, (sequence_map,)).maps((x, y), sample))
    assert main.calls == 1


def test_local_composition_traces_inner_for_its_value_and_for_its_derivative():
    first, second = Counted(LOCAL.inner), Counted(LOCAL.outer)
    trace(lambda x, y, v, s: LocalComposition(first, second).gradient(x, s, s))
    assert (first.calls, second.calls) == (2, 1)  # the value must be whole before it is pulled back

"""What a round of FedMSA costs: exchanges, bytes, evaluations, memory; and that engines agree."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from arena import advance

import rookery as rk
from rookery import tree
from rookery.engines.engine import Program
from rookery.engines.rounds import many_rounds

SEQUENCES = rk.zoo.linear_sequences(n_clients=3, sizes=(2, 1))


@pytest.mark.parametrize(("K", "c"), [(1, 1), (3, 2)])
def test_costs_of_a_round(K, c):
    zoo, m, D = rk.zoo.quadratic_bilevel(n_clients=3, x_size=1, y_size=2), 3, (1 + 2 + 2) * 8
    algorithm = rk.FedMSA(outer_lr=0.01, inner_lr=0.1, local_steps=K, clients=c)
    _, (first, *later) = advance(zoo, algorithm, 3)
    assert (first.exchanges, first.messages) == (2, 2 * (m + c))
    assert (first.bytes_down, first.bytes_up) == (m * D + c * D, m * D + c * D)
    assert (first.gradients, first.hessian_vectors) == (3 * m, 2 * m)
    for ledger in later:
        assert (ledger.exchanges, ledger.messages) == (2, 2 * (m + c))
        assert (ledger.bytes_down, ledger.bytes_up) == (m * 2 * D + c * D, m * D + c * D)
        evaluations = 2 * m + 2 * (K - 1) * c
        assert (ledger.gradients, ledger.hessian_vectors) == (3 * evaluations, 2 * evaluations)


@pytest.mark.slow
def test_known_maps_are_not_evaluated_again():
    """``renewal=None`` leaves out the previous blocks, ``fresh=False`` the previous iterate."""
    zoo = rk.zoo.quadratic_bilevel(n_clients=3, x_size=1, y_size=2, rows=4, noise=0.3)
    m, c, K, D = 3, 2, 3, (1 + 2 + 2) * 8
    algorithm = rk.FedMSA(
        outer_lr=0.01,
        inner_lr=0.1,
        local_steps=K,
        clients=c,
        renewal=None,
        fresh=False,
        batch_size=2,
        momentum_batch=3,
        first_batch=3,
    )
    state, ledgers = advance(zoo, algorithm, 2)
    for ledger, steps in zip(ledgers, (1, K), strict=True):
        assert (ledger.exchanges, ledger.messages) == (2, 2 * (m + c))
        assert (ledger.bytes_down, ledger.bytes_up) == (m * D + c * D, m * D + c * D)
        rows = 3 * m + 2 * steps * c
        assert (ledger.gradients, ledger.hessian_vectors) == (3 * rows, 2 * rows)
    assert all(np.abs(leaf).max() > 0 for leaf in state.variables)


def test_u_goes_down_in_exchange_b_to_those_who_were_not_asked_in_a():
    D = 3 * 8
    algorithm = rk.FedMSA(
        outer_lr=0.01,
        inner_lr=0.1,
        local_steps=2,
        clients=rk.participation.Fixed((0, 1)),
        momentum_clients=rk.participation.Fixed((1, 2)),
    )
    _, (first, later) = advance(SEQUENCES, algorithm, 2)
    assert (first.bytes_down, later.bytes_down) == (2 * D + 2 * D + D, 2 * 2 * D + 2 * D + D)
    assert first.bytes_up == later.bytes_up == 4 * D


@pytest.mark.slow
def test_a_round_that_keeps_a_later_iterate_asks_one_client_for_it():
    algorithm = rk.FedMSA(
        outer_lr=0.01, inner_lr=0.1, local_steps=4, clients=2, output=rk.parts.RandomIterate()
    )
    _, ledgers = advance(SEQUENCES, algorithm, 8)
    extra = [ledger.exchanges - 2 for ledger in ledgers]
    assert extra[0] == 0
    assert set(extra) == {0, 1}
    D = 3 * 8
    for ledger, more in zip(ledgers, extra, strict=True):
        assert (ledger.messages, ledger.bytes_up) == (2 * (5 + more), (5 + more) * D)
    assert {ledger.bytes_down for ledger in ledgers[1:]} == {8 * D}


# ---- memory


def wide_inner(x, y, row):
    return jnp.sum((y @ row["a"] - row["b"]) ** 2) / 2 + jnp.exp(x[0]) * jnp.sum(y**2) / 2


def wide_outer(x, y, row):
    return jnp.sum((y @ row["a"] - row["b"]) ** 2) / 2


@pytest.mark.slow
def test_a_million_inner_parameters_take_a_fixed_number_of_copies_of_the_blocks():
    """However many local steps and rows: fifty of each would show."""
    m, c, K, rows, size = 3, 1, 50, 50, 1000
    problem = rk.Bilevel(wide_outer, wide_inner, outer_split="train")
    rng = np.random.default_rng(0)
    data = {name: rng.normal(size=(m, rows, size)).astype(np.float32) for name in "ab"}
    algorithm = rk.FedMSA(outer_lr=1e-3, inner_lr=1e-4, local_steps=K, clients=c)
    x, y = jnp.zeros(1, jnp.float32), jnp.zeros((size, size), jnp.float32)
    state = algorithm.init(problem, x, y)

    def rounds(population, state, key, n):
        program = Program(problem, population, rk.delays.Clock(), rk.aggregate.Mean())
        return many_rounds(program, algorithm, 1, 2, state, key, 0, n)

    arguments = (rk.Population.stacked(data), state, jax.random.key(0), jnp.int32(2))
    compiled = jax.jit(rounds).lower(*arguments).compile()
    analysis = compiled.memory_analysis()
    assert analysis is not None
    D = tree.nbytes((state.variables, state.added))
    assert analysis.output_size_in_bytes < 3.1 * D  # u, its predecessor and h
    assert analysis.temp_size_in_bytes < (2 * m + c + 5.5) * D  # as docs/design.md says
    end, _, (done, is_finite) = compiled(*arguments)
    assert (int(done), bool(is_finite)) == (2, True)
    assert float(jnp.linalg.norm(end.variables[1])) > 0

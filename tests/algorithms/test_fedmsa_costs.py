"""What a round of FedMSA costs: exchanges, bytes, evaluations, memory; and that engines agree."""

import numpy as np
import pytest
from arena import advance, assert_close

import rookery as rk
from rookery.algorithms.fedmsa import MSAState

SEQUENCES = rk.zoo.linear_sequences(n_clients=3, sizes=(2, 1))


@pytest.mark.parametrize(("K", "c"), [(1, 1), (3, 2)])
def test_costs_of_a_round(K, c):
    zoo, m, D = rk.zoo.quadratic_bilevel(n_clients=3, x_size=1, y_size=2), 3, (1 + 2 + 2) * 8
    algorithm = rk.FedMSA(0.01, 0.1, K, clients=c)
    _, (first, *later) = advance(zoo, algorithm, 3)
    assert (first.exchanges, first.messages) == (2, 2 * (m + c))
    assert (first.bytes_down, first.bytes_up) == (m * D + c * D, m * D + c * D)
    assert (first.gradients, first.hessian_vectors) == (3 * m, 2 * m)
    for ledger in later:
        assert (ledger.exchanges, ledger.messages) == (2, 2 * (m + c))
        assert (ledger.bytes_down, ledger.bytes_up) == (m * 2 * D + c * D, m * D + c * D)
        evaluations = 2 * m + 2 * (K - 1) * c
        assert (ledger.gradients, ledger.hessian_vectors) == (3 * evaluations, 2 * evaluations)


def test_u_goes_down_in_exchange_b_to_those_who_were_not_asked_in_a():
    D = 3 * 8
    algorithm = rk.FedMSA(0.01, 0.1, 2, clients=rk.Fixed((0, 1)), momentum_clients=rk.Fixed((1, 2)))
    _, (first, later) = advance(SEQUENCES, algorithm, 2)
    assert (first.bytes_down, later.bytes_down) == (2 * D + 2 * D + D, 2 * 2 * D + 2 * D + D)
    assert first.bytes_up == later.bytes_up == 4 * D


def test_a_round_that_keeps_a_later_iterate_asks_one_client_for_it():
    algorithm = rk.FedMSA(0.01, 0.1, 4, clients=2, output=rk.RandomIterate())
    _, ledgers = advance(SEQUENCES, algorithm, 8)
    extra = [ledger.exchanges - 2 for ledger in ledgers]
    assert extra[0] == 0
    assert set(extra) == {0, 1}
    D = 3 * 8
    for ledger, more in zip(ledgers, extra, strict=True):
        assert (ledger.messages, ledger.bytes_up) == (2 * (5 + more), (5 + more) * D)
    assert {ledger.bytes_down for ledger in ledgers[1:]} == {8 * D}


# ---- engines


@pytest.mark.parametrize("case", ["bilevel", "composition"])
def test_engines_agree(case):
    if case == "bilevel":
        zoo = rk.zoo.quadratic_bilevel(n_clients=3, x_size=1, y_size=2, rows=3, noise=0.3)
        algorithm = rk.FedMSA(
            rk.Decay(0.05, 0.9), (0.1, rk.PowerDecay(0.1, 0.5)), 3, 0.4, 2, 2, 2, 1,
            inner_radius=(np.inf, 0.05), warm_up=rk.BilevelWarmUp(adjoint=rk.FedIHGPSum(2, 5.0)),
        )  # fmt: skip
    else:
        zoo = rk.zoo.linear_chain(n_clients=3, sizes=(1, 2, 2), rows=3, noise=0.3)
        algorithm = rk.FedMSA(0.05, 0.1, 3, clients=2, batch_size=2, output=rk.RandomIterate())
    clock = rk.Clock(rk.LogNormalDelay(0.1), bandwidth=1e4, seed=3)
    eager, eager_books = advance(zoo, algorithm, 4, rk.Eager(), 5, clock)
    compiled, compiled_books = advance(zoo, algorithm, 4, rk.Compiled(), 5, clock)
    assert isinstance(eager, MSAState)
    assert_close(eager, compiled, rtol=1e-12, atol=1e-13)
    for a, b in zip(eager_books, compiled_books, strict=True):
        assert a.values()[:-1] == b.values()[:-1]
        assert a.seconds == pytest.approx(b.seconds, rel=1e-12)

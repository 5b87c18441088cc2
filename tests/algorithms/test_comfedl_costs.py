"""What ComFedL is billed, on its kinds of problems and with its weightings."""

import pytest
from arena import advance
from some_slow import some_slow

import rookery as rk

NOISY = rk.zoo.quadratic_losses(n_clients=4, size=2, rows=4, noise=0.3)
ROWS = rk.zoo.cubic_maml(n_clients=3, size=2, rows=5, noise=0.1)
W, NUMBER = 2 * 8, 8  # bytes


@pytest.mark.parametrize(
    ("weighting", "exchanges", "down", "up"),
    [
        (rk.parts.PrintedWeights(), (1, 1), (W, W), (W, W)),
        (rk.parts.ShiftedWeights(), (2, 2), (W + NUMBER,) * 2, (W + NUMBER,) * 2),
        (rk.parts.NormalisedWeights(), (2, 2), (W + NUMBER,) * 2, (W + NUMBER,) * 2),
        (
            rk.parts.NormalisedWeights(stale_scalar=True),
            (2, 1),
            (W + NUMBER,) * 2,
            (W + 2 * NUMBER, W + NUMBER),
        ),
    ],
)
def test_ledger_with_a_gamma(weighting, exchanges, down, up):
    algorithm = rk.ComFedL(
        lr=0.1, local_steps=3, gamma=0.5, weighting=weighting, clients=2, batch_size=2
    )
    _, ledgers = advance(NOISY, algorithm, 2)
    assert tuple(ledger.exchanges for ledger in ledgers) == exchanges
    assert tuple(ledger.bytes_down for ledger in ledgers) == tuple(2 * b for b in down)
    assert tuple(ledger.bytes_up for ledger in ledgers) == tuple(2 * b for b in up)
    assert all(ledger.gradients == 2 * 3 * 2 for ledger in ledgers)


@pytest.mark.parametrize(
    ("settings", "gradients", "products"),
    [
        ({"batch_size": 2, "outer_batch_size": 3}, 2 + 3, 2),
        ({"batch_size": 2}, 2 + 2, 2),
        ({"batch_size": 2, "shared_batch": True}, 2 + 2, 2),
        ({"batch_size": 2, "outer_batch_size": 3, "hessian": rk.parts.FirstOrder()}, 2 + 3, 0),
        ({"batch_size": 2, "outer_batch_size": 3, "hessian": rk.parts.HessianFree()}, 2 + 3 + 4, 0),
    ],
)
def test_ledger_of_maml(settings, gradients, products):
    _, (ledger,) = advance(ROWS, rk.ComFedL(lr=0.1, local_steps=2, clients=2, **settings), 1)
    assert ledger.exchanges == 1
    assert ledger.bytes_down == ledger.bytes_up == 2 * W
    assert ledger.gradients == 2 * 2 * gradients
    assert ledger.hessian_vectors == 2 * 2 * products


@pytest.mark.parametrize(
    ("weighting", "level"),
    some_slow(
        [
            (rk.parts.NormalisedWeights(stale_scalar=True, batch_size=3), 3 + 3),
            (rk.parts.ShiftedWeights(batch_size=3), 3),
            (rk.parts.NormalisedWeights(batch_size=4), 4),
            (rk.parts.NormalisedWeights(), 5),
        ]
    ),
)
def test_ledger_of_a_level_of_damaml(weighting, level):
    """A loss after adaptation costs a gradient per row."""
    algorithm = rk.ComFedL(
        lr=0.1, local_steps=2, gamma=0.5, weighting=weighting, clients=2, batch_size=2
    )
    _, (ledger,) = advance(ROWS, algorithm, 1)
    assert ledger.gradients == 2 * (level + 2 * (2 + 2))
    assert ledger.hessian_vectors == 2 * 2 * 2


def test_ledger_of_a_composition():
    zoo = rk.zoo.robust_quadratic(n_clients=3, size=2, rows=5, noise=0.1)
    algorithm = rk.ComFedL(lr=0.1, local_steps=2, clients=2, batch_size=2, outer_batch_size=3)
    _, (ledger,) = advance(zoo, algorithm, 1)
    assert (ledger.exchanges, ledger.bytes_down, ledger.bytes_up) == (1, 2 * W, 2 * W)
    assert (ledger.gradients, ledger.hessian_vectors) == (2 * 2 * (2 + 3), 0)

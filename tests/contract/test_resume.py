"""A run of every algorithm goes on from a checkpoint with the same bits and the same ledger."""

import equinox as eqx
import jax
import pytest
from golden import prepared
from instances import INSTANCES, OPTIMISED

from rookery.runner.checkpoint import Checkpoint, load_all, save

CASES = OPTIMISED | {name: next(iter(some.values())) for name, some in INSTANCES.items()}
CASES |= {  # what others than the first instance keep
    f"{name}: {which}": INSTANCES[name][which]
    for name, which in (("ShroFBO", "compressed, error feedback"), ("BRFedBi", "cached momenta"))
}


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(CASES))
def test_a_run_goes_on_exactly_from_a_checkpoint(name, tmp_path):
    """Jobs in flight, memories of clients and states of optimisers are all in the state."""
    runner, first = prepared(*CASES[name])

    def after(state, rounds):
        ledgers = []
        for round in rounds:
            (done,) = runner.advance([state], [jax.random.key(7)], round, [1])
            state, ledgers = done.state, [*ledgers, done.ledgers[0]]
        return state, ledgers

    middle, costs = after(first, range(2))
    save(tmp_path, Checkpoint(2, middle, costs[0] + costs[1]))
    (found,), warnings = load_all(tmp_path, like=first)
    assert not warnings
    assert found.ledger == costs[0] + costs[1]
    want, got = (after(state, range(2, 4)) for state in (middle, found.state))
    assert eqx.tree_equal(got[0], want[0])
    assert got[1] == want[1]
    assert not eqx.tree_equal(middle, want[0])

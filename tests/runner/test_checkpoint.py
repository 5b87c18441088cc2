import jax
import jax.numpy as jnp
import numpy as np

from rookery.program.ledger import Ledger
from rookery.runner.checkpoint import KEPT, Checkpoint, load_all, save

STATE = {
    "x": (jnp.arange(3.0), jnp.float32(2.5)),
    "low": jnp.array([1.5, -2.0], jnp.bfloat16),
    "key": jax.random.key(5),
    "n": jnp.int32(7),
}


def test_every_kind_of_leaf_comes_back_as_it_was(tmp_path):
    ledger = Ledger(exchanges=3, bytes_down=2**53 + 1, seconds=0.1)
    save(tmp_path, Checkpoint(12, STATE, ledger))
    (found,), warnings = load_all(tmp_path, STATE)
    assert not warnings
    assert (found.round, found.ledger) == (12, ledger)
    assert jax.random.key_data(found.state["key"]).tolist() == [0, 5]
    for name in ("x", "low", "n"):
        jax.tree.map(np.testing.assert_array_equal, found.state[name], STATE[name])
        for got, want in zip(*map(jax.tree.leaves, (found.state[name], STATE[name])), strict=True):
            assert got.dtype == want.dtype


def test_only_the_newest_are_kept_and_no_temporary_file_stays(tmp_path):
    for round in (1, 2, 10, 100):
        save(tmp_path, Checkpoint(round, STATE, Ledger()))
    names = sorted(p.name for p in tmp_path.iterdir())
    assert names == ["round-000000010.safetensors", "round-000000100.safetensors"]
    assert len(names) == KEPT


def test_a_state_of_another_shape_is_not_taken(tmp_path):
    save(tmp_path, Checkpoint(1, {"x": jnp.zeros(3)}, Ledger()))
    found, warnings = load_all(tmp_path, {"x": jnp.zeros(4)})
    assert found == []
    assert "wanted float64[4]" in warnings[0]
    found, warnings = load_all(tmp_path, {"z": jnp.zeros(3)})
    assert found == [] and "not this algorithm's state" in warnings[0]


def test_no_checkpoint_is_no_error(tmp_path):
    assert load_all(tmp_path, STATE) == ([], [])

"""The numbers of every contract instance are those that were recorded."""

import json

import numpy as np
import pytest
from golden import FILE, golden_run
from instances import INSTANCES

GOLDEN = json.loads(FILE.read_text())


@pytest.mark.slow
@pytest.mark.parametrize("name", GOLDEN)
def test_a_run_gives_the_recorded_numbers(name):
    algorithm, which = name.split(": ", 1)
    got = golden_run(*INSTANCES[algorithm][which])
    seconds = slice(-1, None)  # a float; all others are counts
    for ours, theirs in zip(got["ledgers"], GOLDEN[name]["ledgers"], strict=True):
        assert ours[:-1] == theirs[:-1]
        np.testing.assert_allclose(
            *([float.fromhex(v) for v in x[seconds]] for x in (ours, theirs)), rtol=1e-10
        )
    for ours, theirs in zip(got["solution"], GOLDEN[name]["solution"], strict=True):
        assert np.all(np.isfinite(ours))
        np.testing.assert_allclose(ours, theirs, rtol=1e-10, atol=1e-10)


def test_every_instance_is_recorded():
    assert set(GOLDEN) == {f"{name}: {which}" for name, some in INSTANCES.items() for which in some}

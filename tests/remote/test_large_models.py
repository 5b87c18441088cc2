"""Large models: few copies of them, and means without a stack of all replies."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from world import QUICK, clean, go, same

from rookery.program.aggregate import Mean
from rookery.remote import Faults, Policy
from rookery.remote.server import federation
from rookery.remote.server.policy import is_finite

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "long_lives.py"


@pytest.mark.parametrize(
    ("faults", "policy"),
    [(Faults(), QUICK), (Faults(crashes={3: 2}), Policy(wait_for=5.0, min_replies=2))],
    ids=["all reply", "one is missing"],
)
def test_a_mean_in_blocks_is_the_mean_of_a_stack(monkeypatch, faults, policy):
    stacked = go(faults=faults, policy=policy)
    blocks = []

    def counted(mean, rows, weights):
        blocks.append(rows.shape)
        return really(mean, rows, weights)

    really = Mean.__call__
    monkeypatch.setattr(Mean, "__call__", counted)
    monkeypatch.setattr(federation, "_BLOCK", 8)  # less than one number of every client
    got = go(faults=faults, policy=policy)
    assert (5, 1) in blocks, "two numbers are two blocks"
    assert same(got, stacked) and got.history.rows == stacked.history.rows
    assert same(got, clean("FedAvg")) == (not faults.crashes)


def test_every_block_of_a_reply_is_looked_at():
    reply = np.zeros(200_000, np.float32)
    assert is_finite([reply, np.arange(3)])
    for place in (0, 65_536, 199_999):
        broken = reply.copy()
        broken[place] = np.nan
        assert not is_finite([broken])


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="Linux alone tells")
def test_a_model_and_two_clients_take_six_copies():
    command = [sys.executable, str(SCRIPT), "copies", "100"]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    assert 3 < json.loads(done.stdout)["copies"] < 6.5  # the peak varies by 20 MB from run to run

"""Processes that compute one run together give the numbers of one process."""

import socket
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from two_processes import runs, states

PROGRAM = Path(__file__).with_name("two_processes.py")


def together(what, out=Path()) -> list[str]:
    """What two processes on this machine print; they are killed if they do not end."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        address = f"127.0.0.1:{free.getsockname()[1]}"
    processes = [
        subprocess.Popen(
            [sys.executable, PROGRAM, address, str(number), what, out],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for number in range(2)
    ]
    try:
        printed = [process.communicate(timeout=400) for process in processes]
    finally:
        for process in processes:
            process.kill()
    assert [process.returncode for process in processes] == [0, 0], printed
    return [out for out, _ in printed]


@pytest.mark.slow
@pytest.mark.parametrize(("what", "n"), [("run", 1), ("sweep", 2)])
def test_two_processes_agree_with_one(what, n, tmp_path):
    leaves, ledgers = states(None, 3, runs()[:n])
    together(what, tmp_path / "out")
    for number in range(2):
        for data in ("replicated", "by client"):
            got = np.load(tmp_path / f"out-{number}-{data}.npz")
            np.testing.assert_array_equal(got["ledgers"], ledgers)
            for i, want in enumerate(leaves):
                np.testing.assert_allclose(got[str(i)], want, 1e-12)


@pytest.mark.slow
def test_processes_that_want_different_rounds_are_told():
    for printed in together("different rounds"):
        assert "want different rounds" in printed and "[[0, 1], [0, 1]" not in printed

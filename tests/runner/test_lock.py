"""Two processes cannot write to one run's directory."""

import errno
import os
import signal
import subprocess
import sys

import pytest

import rookery as rk
from rookery.runner import lock

ZOO = rk.zoo.quadratic_losses(n_clients=2, size=2, rows=1)

HOLDER = """
import sys
from pathlib import Path
from rookery.runner.lock import locked
with locked(Path(sys.argv[1]), print):
    print("held", flush=True)
    sys.stdin.read()
"""


def go(directory, **settings):
    population = rk.Population.stacked(ZOO.data)
    return rk.run(
        rk.FedAvg(lr=0.1, local_steps=1),
        ZOO.problem,
        population,
        ZOO.start,
        rounds=2,
        directory=directory,
        **settings,
    )


def test_a_directory_in_which_another_process_works_is_refused_and_left_alone(tmp_path):
    go(tmp_path)
    before = (tmp_path / "history.jsonl").read_bytes()
    pipe = subprocess.PIPE
    holder = subprocess.Popen([sys.executable, "-c", HOLDER, tmp_path], stdin=pipe, stdout=pipe)
    try:
        assert holder.stdout is not None and holder.stdout.readline() == b"held\n"
        with pytest.raises(ValueError, match=rf"process {holder.pid} .*{tmp_path}"):
            go(tmp_path, overwrite=True)
        assert (tmp_path / "history.jsonl").read_bytes() == before
    finally:
        holder.send_signal(signal.SIGKILL)  # which ends the lock too
        holder.communicate()
    assert go(tmp_path).rounds == 2


class Second:
    """A tracker that tries to begin a second run in the same directory."""

    def __init__(self, directory):
        self.directory, self.refused = directory, 0

    def start(self, title, configuration):
        pass

    def log(self, row):
        with pytest.raises(ValueError, match=f"process {os.getpid()} "):
            go(self.directory)
        self.refused += 1

    def finish(self, status):
        pass


def test_a_directory_is_locked_until_the_run_has_ended(tmp_path):
    second = Second(tmp_path)
    go(tmp_path, tracker=second)
    assert second.refused == 2  # before the first round, and at the end
    with lock.locked(tmp_path, print):
        pass


def test_a_file_system_without_locks_is_told_of(tmp_path, monkeypatch):
    def flock(*_):
        raise OSError(errno.ENOLCK, "no locks available")

    said = []
    monkeypatch.setattr(lock.fcntl, "flock", flock)
    with lock.locked(tmp_path, said.append):
        assert "cannot be locked" in said[0] and str(tmp_path) in said[0]

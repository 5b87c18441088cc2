"""Signals end a run with a checkpoint, and what is written is on the disk."""

import os
import signal

import pytest

import rookery as rk
from rookery.runner.atomic_file import make_directory
from rookery.runner.history import HistoryFile
from rookery.runner.interrupt import Interrupt, Terminated

ZOO = rk.zoo.scalar_bilevel()
ALGORITHM = rk.FedNest(outer_lr=0.05, inner_lr=0.3)


def go(directory, **settings):
    population = rk.Population.stacked(ZOO.data)
    evaluate = [rk.metrics.OfSolution(lambda x, y: {"x": x[0]})]
    return rk.run(
        ALGORITHM, ZOO.problem, population, ZOO.start, rounds=8, evaluate=evaluate,
        evaluate_every=2, checkpoint_every=8, directory=directory, **settings,
    )  # fmt: skip


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_a_run_with_a_checkpoint_and_it_resumes(tmp_path, number):
    whole = go(tmp_path / "whole")

    def send(snapshot):
        if snapshot.round == 4:
            os.kill(os.getpid(), number)

    before = signal.getsignal(number)
    with pytest.raises(KeyboardInterrupt) as raised:
        go(tmp_path / "ended", callback=send, callback_every=1)
    assert isinstance(raised.value, Terminated) == (number == signal.SIGTERM)
    assert signal.getsignal(number) is before
    (kept,) = (tmp_path / "ended" / "checkpoints").iterdir()
    assert kept.name == "round-000000004.safetensors"
    assert go(tmp_path / "ended").history.rows == whole.history.rows


def test_a_second_signal_does_not_wait():
    with pytest.raises(Terminated), Interrupt() as interrupt:
        os.kill(os.getpid(), signal.SIGTERM)
        assert interrupt.asked is Terminated
        os.kill(os.getpid(), signal.SIGTERM)


@pytest.mark.skipif(os.name != "posix", reason="directories are flushed on POSIX systems only")
def test_rows_and_the_names_of_new_files_are_flushed_to_the_disk(tmp_path, monkeypatch):
    synced = []

    def fsync(descriptor, really=os.fsync):
        synced.append(os.readlink(f"/proc/self/fd/{descriptor}"))
        really(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)
    make_directory(tmp_path / "a" / "b")
    assert sorted(synced) == [str(tmp_path), str(tmp_path / "a")]
    synced.clear()
    file = HistoryFile(tmp_path / "history.jsonl")
    for _ in range(2):
        file.append({"round": 0})
    assert synced == [str(file.path), str(tmp_path), str(file.path)]
    synced.clear()
    file.rewrite([{"round": 0}])
    assert synced == [f"{file.path}.tmp", str(tmp_path)]

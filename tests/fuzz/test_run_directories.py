"""A damaged run directory is resumed exactly, or refused with a plain error."""

import errno
import json
import os
import random
import shutil
from pathlib import Path

import numpy as np
import pytest
from mutations import damage_file
from outcome import outcome_of

import rookery as rk
from rookery.runner import history
from rookery.runner.history import HistoryFile

ZOO = rk.zoo.quadratic_losses(n_clients=3, size=2)
MEASURED = ("history.jsonl", "per_client.jsonl")


def loss(x, row):
    return ZOO.problem.loss(x, row)


def go(directory, rounds, **settings):
    return rk.run(
        rk.FedAvg(lr=0.1, local_steps=2),
        ZOO.problem,
        rk.Population.stacked(ZOO.data),
        ZOO.start,
        rounds=rounds,
        evaluate=[rk.metrics.OnClients(losses={"loss": loss}, split="train", per_client=True)],
        evaluate_every=2,
        keep="best:loss/mean:min",
        directory=directory,
        **settings,
    )


@pytest.fixture(scope="module")
def directories(tmp_path_factory):
    """A run of four rounds, and the same of eight."""
    folder = tmp_path_factory.mktemp("whole")
    go(folder / "four", 4)
    go(folder / "eight", 8)
    return folder / "four", folder / "eight"


def files_of(directory: Path) -> list[Path]:
    return sorted(p for p in directory.rglob("*") if p.is_file() and p.stat().st_size)


def content(directory: Path) -> list[bytes]:
    """All that a run is judged by."""
    return [(directory / name).read_bytes() for name in (*MEASURED, "solution.safetensors")]


def check(directories, tmp_path, seeds) -> tuple[int, int]:
    """Damage a directory and resume it; returns how often it was refused, and how often exact."""
    four, eight = directories
    refused = 0
    for seed in seeds:
        chance, own = random.Random(seed), tmp_path / str(seed)
        shutil.copytree(four, own)
        files = files_of(own)
        path = files[seed % len(files)]
        kind = damage_file(path, chance)
        try:
            go(own, 8)
        except (ValueError, OSError) as error:
            assert str(own) in str(error), f"{seed}: {kind} of {path.name}: {error}"
            refused += 1
        else:
            assert content(own) == content(eight), f"{seed}: {kind} of {path.name}"
        shutil.rmtree(own)
    return refused, len(list(seeds)) - refused


def test_a_damaged_directory_is_resumed_exactly_or_refused(directories, tmp_path):
    refused, exact = check(directories, tmp_path, range(12))
    assert refused >= 1 and exact > 5


@pytest.mark.slow
def test_many_damaged_directories_are_resumed_exactly_or_refused(directories, tmp_path):
    refused, exact = check(directories, tmp_path, range(1000, 1400))
    assert refused > 20 and exact > 200


def test_a_run_without_its_configuration_is_refused(directories, tmp_path):
    own = shutil.copytree(directories[0], tmp_path / "own")
    (own / "config.json").unlink()
    with pytest.raises(ValueError, match=r"without its config\.json"):
        go(own, 8)
    go(own, 8, overwrite=True)
    assert content(own) == content(directories[1])


def test_a_checkpoint_of_another_seed_is_not_taken(directories, tmp_path):
    own = shutil.copytree(directories[0], tmp_path / "own")
    go(tmp_path / "other", 6, seed=1)
    for path in (tmp_path / "other" / "checkpoints").iterdir():
        shutil.copy(path, own / "checkpoints")
    go(own, 8)
    assert content(own) == content(directories[1])


@pytest.mark.parametrize("name", MEASURED)
def test_a_row_that_is_there_twice_is_dropped(directories, tmp_path, name):
    own = shutil.copytree(directories[0], tmp_path / "own")
    lines = (own / name).read_bytes().splitlines(keepends=True)
    (own / name).write_bytes(b"".join([*lines, lines[-1]]))
    go(own, 8)
    assert content(own) == content(directories[1])


@pytest.mark.parametrize("name", MEASURED)
def test_a_history_deleted_while_the_run_writes_it_is_written_again(directories, tmp_path, name):
    def callback(snapshot):
        if snapshot.round == 4:
            (tmp_path / "own" / name).unlink()

    go(tmp_path / "own", 8, callback=callback, callback_every=4)
    assert content(tmp_path / "own") == content(directories[1])


@pytest.mark.parametrize("name", ["lock", "history.jsonl.tmp", "checkpoints"])
def test_a_symbolic_link_in_a_directory_is_not_followed(directories, tmp_path, name):
    own, elsewhere = shutil.copytree(directories[0], tmp_path / "own"), tmp_path / "elsewhere"
    if name == "checkpoints":
        (own / name).rename(elsewhere)
    else:
        (own / name).unlink(missing_ok=True)
        elsewhere.write_text("untouched")
    before = sorted(elsewhere.iterdir()) if elsewhere.is_dir() else elsewhere.read_text()
    (own / name).symlink_to(elsewhere)
    with pytest.raises(ValueError, match="is a symbolic link"):
        go(own, 8)
    assert before == (sorted(elsewhere.iterdir()) if elsewhere.is_dir() else elsewhere.read_text())


def test_the_directory_itself_may_be_a_link(directories, tmp_path):
    (tmp_path / "link").symlink_to(shutil.copytree(directories[0], tmp_path / "own"))
    go(tmp_path / "link", 8)
    assert content(tmp_path / "own") == content(directories[1])


@pytest.mark.parametrize("after", [0, 6])
def test_a_full_or_read_only_disk_loses_nothing(directories, tmp_path, monkeypatch, after):
    code = errno.EROFS if after == 0 else errno.ENOSPC
    own, writes = shutil.copytree(directories[0], tmp_path / "own"), []

    def fails(descriptor):
        writes.append(descriptor)
        if len(writes) > after:
            raise OSError(code, os.strerror(code))

    with monkeypatch.context() as broken:
        broken.setattr(history.os, "fsync", fails)
        with pytest.raises(OSError, match=str(tmp_path)) as caught:
            go(own, 8)
    assert caught.value.errno == code
    assert not list(own.rglob("*.tmp"))
    go(own, 8)
    assert content(own) == content(directories[1])


@pytest.mark.slow
@pytest.mark.skipif(os.name != "posix" or os.getuid() != 0, reason="mounting needs root")
def test_a_disk_that_is_really_full(directories, tmp_path):
    import subprocess

    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(disk)])
    if mounted.returncode:
        pytest.skip("this machine does not allow mounting")
    try:
        shutil.copytree(directories[0], disk / "own")
        before = {p: p.read_bytes() for p in files_of(disk / "own") if p.name in MEASURED}
        with (disk / "filler").open("wb", buffering=0) as filler, pytest.raises(OSError):
            while True:
                filler.write(bytes(512))
        with pytest.raises(OSError, match="No space left"):
            go(disk / "own", 8)
        for path, was in before.items():
            assert path.read_bytes().startswith(was)
        (disk / "filler").unlink()
        go(disk / "own", 8)
        assert content(disk / "own") == content(directories[1])
        subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=True)
        with pytest.raises(OSError, match="Read-only"):
            go(disk / "own", 12)
        assert content(disk / "own") == content(directories[1])
    finally:
        subprocess.run(["umount", str(disk)], check=True)


def test_rows_of_a_wrong_kind_count_as_broken(tmp_path):
    path = tmp_path / "history.jsonl"
    costs = dict.fromkeys(("exchanges", "messages", "bytes_down", "bytes_up"), 0)
    costs |= dict.fromkeys(("gradients", "hessian_vectors", "seconds"), 0)
    good = json.dumps({"round": 0, **costs, "loss": None})
    for bad in ("[1]", "3", "{}", '{"round": "a"}', good.replace("null", '"x"'), '{"round": 0}'):
        path.write_text(f"{good}\n{bad}\n{good}\n")
        rows, warning = HistoryFile(path).read()
        assert len(rows) == 1 and warning is not None and "line 2 is broken" in warning
    path.write_text(f"{good}\n{good}\n")
    assert np.isnan(HistoryFile(path).read()[0]["loss"]).all()


EXPERIMENT = """
title = "two"
[task]
name = "quadratic"
n_clients = 3
rows = 4
noise = 0.1
[algorithm]
name = "FedNest"
outer_lr = 0.05
inner_lr = 0.1
batch_size = 2
[clock]
delay = { name = "LogNormalDelay", median = 1.0 }
[run]
rounds = 4
evaluate_every = 2
keep = "best:distance_x:min"
[curves.FedNest]
[curves.AFBO]
algorithm = { name = "AFBO", outer_lr = 0.01, inner_lr = 0.02 }
[plot]
metrics = ["distance_x"]
"""


@pytest.mark.slow
def test_the_command_resumes_damaged_directories_exactly_or_refuses(tmp_path):
    file = tmp_path / "config.toml"
    file.write_text(EXPERIMENT)
    longer = ("--set", "run.rounds=8")
    assert outcome_of("run", file, "--out", tmp_path / "four").code == 0
    assert outcome_of("run", file, "--out", tmp_path / "eight", *longer).code == 0
    want = json.loads((tmp_path / "eight" / "results.json").read_text())
    codes = []
    for seed in range(130):
        chance, own = random.Random(seed), shutil.copytree(tmp_path / "four", tmp_path / "own")
        files = [p for p in files_of(own) if p.parent.name in ("seed-0", "checkpoints")]
        path = files[seed % len(files)]
        kind = damage_file(path, chance)
        got = outcome_of("run", file, "--out", own, *longer)
        codes.append(got.code)
        assert got.code in (0, 2), f"{seed}, {kind} of {path}: {got.said}"
        assert got.is_deliberate, f"{seed}, {kind} of {path}: {got.said}"
        if got.code == 0:
            have = json.loads((own / "results.json").read_text())
            assert have["curves"] == want["curves"], f"{seed}, {kind} of {path}"
        shutil.rmtree(own)
    assert codes.count(2) > 5 and codes.count(0) > 40

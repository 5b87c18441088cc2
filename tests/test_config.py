"""Experiment files: what they build and how they fail."""

from typing import Any

import jax
import numpy as np
import pytest

import rookery as rk
from rookery.experiment import config

BASE = """
[data]
name = "digits"
holdout = 100

[partition]
name = "shards"
clients = 5
shards_per_client = 2

[task]
name = "hyper_representation"
hidden = 8

[algorithm]
name = "FedNest"
outer_lr = 0.01
inner_lr = 0.02
inner_steps = [1, 2, 3, 1, 2]
ihgp = { name = "FedIHGP", terms = 4, lipschitz = { name = "PowerIteration", every = 3 } }
clients = { name = "WithReplacement", n = 4 }

[clock]
delay = { name = "Stragglers", delay = { name = "LogNormalDelay", median = 0.1 }, clients = [1] }

[run]
rounds = 3
seeds = [0, 1]
"""


def algorithms(experiment) -> list[Any]:
    return [curve.algorithm for curve in experiment.curves]


def write(tmp_path, text):
    path = tmp_path / "config.toml"
    path.write_text(text)
    return path


def test_a_file_builds_the_objects_of_the_python_api(tmp_path):
    experiment = config.load(write(tmp_path, BASE))
    (curve,) = experiment.curves
    power = rk.parts.PowerIteration(every=3)
    assert curve.algorithm == rk.FedNest(
        outer_lr=0.01,
        inner_lr=0.02,
        inner_steps=(1, 2, 3, 1, 2),
        ihgp=rk.parts.FedIHGP(terms=4, lipschitz=power),
        clients=rk.participation.WithReplacement(4),
    )
    assert curve.clock == rk.delays.Clock(rk.delays.Stragglers(rk.delays.LogNormalDelay(0.1), (1,)))
    task = curve.task()
    assert task.population.n_clients == 5
    assert int(task.population.counts.sum()) == 1437 - 100
    evaluations: Any = task.evaluate
    assert {"accuracy", "holdout_accuracy"} <= {n for e in evaluations for n in e.metrics}


def test_curves_change_what_they_name_and_keep_the_rest(tmp_path):
    text = (
        BASE
        + """
[curves.sum]
algorithm = { ihgp = { name = "FedIHGPSum", terms = 2 } }
[curves.iid]
partition = { name = "iid", clients = 5 }
[curves.fast]
algorithm = { ihgp = { terms = 9 } }
"""
    )
    experiment = config.load(write(tmp_path, text))
    total, iid, fast = experiment.curves
    summed, _, longer = algorithms(experiment)
    assert summed.ihgp == rk.parts.FedIHGPSum(
        terms=2
    )  # another name: nothing of the old table stays
    assert iid.tables["partition"] == {"name": "iid", "clients": 5}
    assert longer.ihgp == rk.parts.FedIHGP(terms=9, lipschitz=rk.parts.PowerIteration(every=3))
    assert total.needs() == fast.needs() != iid.needs()


def test_overrides_reach_every_curve_and_the_run(tmp_path):
    text = BASE + "[curves.a]\n[curves.b]\nalgorithm = { inner_lr = 0.5 }\n"
    overrides = ["algorithm.outer_lr=0.2", "run.rounds=9", "algorithm.ihgp.terms=7"]
    experiment = config.load(write(tmp_path, text), overrides)
    assert experiment.run["rounds"] == 9
    assert [a.outer_lr for a in algorithms(experiment)] == [0.2, 0.2]
    assert [a.inner_lr for a in algorithms(experiment)] == [0.02, 0.5]
    assert all(a.ihgp.terms == 7 for a in algorithms(experiment))


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("outer_lr", "outer_rl", r"key in \[algorithm\] 'outer_rl'. Did you mean 'outer_lr'"),
        ("[task]", "[taks]", "unknown table 'taks'. Did you mean 'task'"),
        ('"FedNest"', '"FedNets"', "unknown algorithm 'FedNets'. Did you mean 'FedNest'"),
        ('"FedIHGP"', '"FedIHPG"', "unknown algorithm.ihgp 'FedIHPG'. Did you mean 'FedIHGP'"),
        ('"digits"', '"digit"', "unknown data set 'digit'. Did you mean 'digits'"),
        ('"shards"', '"shard"', "unknown partition 'shard'. Did you mean 'shards'"),
        ("rounds = 3", "rounds = 3\nsedes = [1]", r"unknown key in \[run\] 'sedes'. Did you mean"),
        ("rounds = 3", "", r"\[run\] needs the key rounds"),
        ("outer_lr = 0.01\n", "", r"\[algorithm\] needs the key outer_lr"),
        ("outer_lr = 0.01", 'outer_lr = "big"', "outer_lr must be a number, got 'big'"),
        ("outer_lr = 0.01", "outer_lr = -1.0", "outer_lr must be a finite number above 0, got -1"),
        ("clients = 5\n", "", "partition.clients must be a whole number"),
        ("seeds = [0, 1]", "seeds = [-1]", "run.seeds must be at least 0, got -1"),
        ("[run]", "[run", "is not valid TOML"),
        ("hidden = 8", "hiden = 8", r"unknown key in \[task\] 'hiden'. Did you mean 'hidden'"),
    ],
)
def test_mistakes_are_named_with_the_nearest_valid_name(tmp_path, old, new, message):
    assert old in BASE
    with pytest.raises(ValueError, match=message):
        config.load(write(tmp_path, BASE.replace(old, new, 1)))


def test_missing_files_and_bad_overrides(tmp_path):
    with pytest.raises(FileNotFoundError, match="there is no file"):
        config.load(tmp_path / "nothing.toml")
    path = write(tmp_path, BASE)
    with pytest.raises(ValueError, match="cannot read 'rounds'"):
        config.load(path, ["rounds"])
    with pytest.raises(ValueError, match="unknown table 'algoritm'"):
        config.load(path, ["algoritm.outer_lr=0.1"])
    with pytest.raises(ValueError, match=r"unknown key in \[algorithm\] 'lr'"):
        config.load(path, ["algorithm.lr=0.1"])


@pytest.mark.parametrize("name", ["hyper_cleaning", "hyper_representation"])
def test_a_dry_run_has_the_sizes_of_the_real_one(tmp_path, name):
    task = BASE.replace('name = "hyper_representation"\nhidden = 8', f'name = "{name}"')
    (curve,) = config.load(write(tmp_path, task)).curves
    real, blank = curve.task(), curve.task(is_blank=True)
    for a, b in zip(jax.tree.leaves(real.start(0)), jax.tree.leaves(blank.start(0)), strict=True):
        assert a.shape == b.shape and a.dtype == b.dtype
    for a, b in zip(real.population.counts, blank.population.counts, strict=True):
        np.testing.assert_array_equal(a, b)
    assert not np.any(blank.population.data["inputs"])


def test_a_curve_is_tuned_over_what_it_has():
    declared = {"grid": {"a.lr": [1, 2], "b.lr": [3, 4]}, "without": {"plain": ["a.lr"]}}
    assert config.tuning_grid(declared, "plain") == [{"b.lr": 3}, {"b.lr": 4}]
    assert len(config.tuning_grid(declared, "other")) == 4


@pytest.mark.parametrize(
    ("without", "message"), [({"x": ["a.lr"]}, "curve in"), ({"FedNest": ["c.lr"]}, "a.lr")]
)
def test_without_names_curves_and_keys_of_the_grid(without, message):
    tune = {"grid": {"a.lr": [1]}, "metric": "loss", "goal": "min", "without": without}
    tables = {
        "task": {"name": "quadratic"},
        "algorithm": {"name": "FedNest", "outer_lr": 0.1, "inner_lr": 0.1},
        "run": {"rounds": 1},
        "tune": tune,
    }
    with pytest.raises(ValueError, match=message):
        config.build(tables)

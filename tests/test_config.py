"""Experiment files: what they build and how they fail."""

import sys
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import numpy as np
import optax
import pytest

import rookery as rk
from rookery.clients import datasets
from rookery.experiment import config
from rookery.experiment.registry import make_stop_rules
from rookery.experiment.task_loader import TaskLoader
from rookery.experiment.tuning_file import tuning_content, write_tuning
from rookery.program.algorithm import numbers_to_arrays
from rookery.runner.search import Trial
from rookery.runner.tune import Tuning

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
    task = TaskLoader().load(curve)
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
    assert total.task_key == fast.task_key != iid.task_key


def test_a_table_names_an_optimiser_where_a_step_size_stands(tmp_path):
    inner = (
        '{ name = "optax:sgd", learning_rate = { name = "Decay", lr = 0.1, factor = 0.9 }, '
        "momentum = 0.9, keep = true }"
    )
    text = BASE.replace("outer_lr = 0.01", 'outer_lr = { name = "optax:adam", learning_rate = 1 }')
    text = text.replace("inner_lr = 0.02", f"inner_lr = {inner}")
    text = text.replace("WithReplacement", "Proportional")  # no client twice, since they keep
    experiment = config.load(write(tmp_path, text), ["algorithm.outer_lr.b1=0.8"])
    (made,) = algorithms(experiment)
    Optimiser, decay = rk.parts.Optimiser, rk.parts.Decay(0.1, 0.9)
    assert made.outer_lr == Optimiser(optax.adam, learning_rate=1.0, b1=0.8)
    assert made.inner_lr == Optimiser(optax.sgd, learning_rate=decay, momentum=0.9, keep=True)
    # a grid over a number inside differs in array leaves alone: one program
    trials = [
        experiment.curves[0].changed({"algorithm.outer_lr.learning_rate": lr}).algorithm
        for lr in (0.1, 0.2)
    ]
    parts = [eqx.partition(numbers_to_arrays(one), eqx.is_array) for one in trials]
    assert eqx.tree_equal(parts[0][1], parts[1][1])
    assert jax.tree.leaves(parts[0][0]) != jax.tree.leaves(parts[1][0])


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ('{ name = "optax:adam", learning_rat = 1.0 }', "learning_rate"),
        ('{ name = "optax:adm", learning_rate = 1.0 }', "Did you mean 'adam'"),
        ('{ name = "optax:adam", learning_rate = 1.0, keep = 1 }', "keep must be True or False"),
        ('{ name = "fractions:Fraction", numerator = 1, keep = true }', "keep is for optimisers"),
    ],
)
def test_a_wrong_optimiser_in_a_file_is_found(tmp_path, table, message):
    text = BASE.replace("outer_lr = 0.01", f"outer_lr = {table}")
    with pytest.raises(ValueError, match=message):
        config.load(write(tmp_path, text))


def test_a_table_names_a_private_algorithm(tmp_path):
    text = (
        BASE.split("[algorithm]")[0]
        + """
[algorithm]
name = "Private"
clip = { name = "QuantileClip", start = { name = "Clip", inner = 1.0, outer = 0.5 }, noise = 5.0 }
noise = { name = "Distributed", multiplier = 2.0 }
algorithm = { name = "FedNest", outer_lr = 0.01, inner_lr = 0.02, clients = 3 }

[run]
rounds = 3
"""
    )
    overrides = ["algorithm.algorithm.outer_lr=0.5"]
    (algorithm,) = algorithms(config.load(write(tmp_path, text), overrides))
    assert (algorithm.name, algorithm.noise.multiplier) == ("PrivateFedNest", 2.0)
    assert (algorithm.clip.start.outer, algorithm.algorithm.outer_lr) == (0.5, 0.5)


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
        ('"digits"', '"digit"', "unknown data 'digit'. Did you mean 'digits'"),
        ('"shards"', '"shard"', "unknown partition 'shard'. Did you mean 'shards'"),
        ("rounds = 3", "rounds = 3\nsedes = [1]", r"unknown key in \[run\] 'sedes'. Did you mean"),
        ("rounds = 3", "", r"\[run\] needs the key rounds"),
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
    real, blank = TaskLoader().load(curve), TaskLoader(is_blank=True).load(curve)
    for a, b in zip(jax.tree.leaves(real.start(0)), jax.tree.leaves(blank.start(0)), strict=True):
        assert a.shape == b.shape and a.dtype == b.dtype
    for a, b in zip(real.population.counts, blank.population.counts, strict=True):
        np.testing.assert_array_equal(a, b)
    assert not np.any(blank.population.data["inputs"])


def test_a_curve_is_tuned_over_what_it_has():
    declared = {"grid": {"a.lr": [1, 2], "b.lr": [3, 4]}, "without": {"plain": ["a.lr"]}}
    assert config.tuning_grid(declared, "plain") == {"b.lr": [3, 4]}
    assert config.tuning_grid(declared, "other") == declared["grid"]


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


def test_every_committed_choice_belongs_to_its_experiment():
    """Renaming a setting changes what a choice was made for: then its file must be renamed too."""
    files = sorted((Path(__file__).parent.parent / "experiments").glob("*/*.toml"))
    tuned = [one for one in (config.load(path, (), "required") for path in files) if one.tune]
    assert len(files) > 30 and len(tuned) > 15
    for experiment in tuned:
        for curve in experiment.curves:
            for key, value in experiment.choices[curve.label].items():
                table = curve.tables
                for part in key.split("."):
                    table = table[part]
                assert table == value


def test_an_override_goes_over_a_choice(tmp_path):
    path = write(tmp_path, BASE + TUNE)
    tuning = Tuning(
        {"algorithm.outer_lr": [0.3, 0.4], "algorithm.inner_lr": [0.6]},
        "accuracy",
        "max",
        [Trial({"algorithm.outer_lr": 0.3, "algorithm.inner_lr": 0.6}, [1.0])],
    )
    plain = config.load(path)
    write_tuning(path, tuning_content(plain.tune or {}, plain.digest, {"FedNest": tuning}))
    chosen, changed = (
        config.load(path, overrides, "required") for overrides in ([], ["algorithm.inner_lr=0.9"])
    )
    assert [(a.outer_lr, a.inner_lr) for a in algorithms(chosen)] == [(0.3, 0.6)]
    assert [(a.outer_lr, a.inner_lr) for a in algorithms(changed)] == [(0.3, 0.9)]
    assert changed.choices == {"FedNest": {"algorithm.outer_lr": 0.3}}


@pytest.mark.parametrize(
    ("own", "before", "after", "is_valid"),
    [
        ("seeds = [5]", "seeds = [0, 1]", "seeds = [0, 1, 2]", True),
        ("seeds = [5]", "seeds = [0, 1]", "", True),
        ("", "seeds = [0, 1]", "seeds = [0, 1, 2]", False),
        ("rounds = 2", "rounds = 3", "rounds = 4", True),
        ("", "rounds = 3", "rounds = 4", False),
        ("", "rounds = 3", 'rounds = 3\nkeep = "best:accuracy:max"\ncheckpoint_every = 1', True),
        ("seeds = [5]", "rounds = 3", "rounds = 3\nevaluate_every = 1", False),  # may end a run
    ],
)
def test_a_choice_depends_on_what_its_trials_used(tmp_path, own, before, after, is_valid):
    text = BASE + TUNE.replace("[tune]", f"[tune]\n{own}")
    path, trial = write(tmp_path, text), {"algorithm.outer_lr": 0.3, "algorithm.inner_lr": 0.6}
    plain, grid = config.load(path), {"algorithm.outer_lr": [0.3], "algorithm.inner_lr": [0.6]}
    tuning = Tuning(grid, "accuracy", "max", [Trial(trial, [1.0])])
    write_tuning(path, tuning_content(plain.tune or {}, plain.digest, {"FedNest": tuning}))
    write(tmp_path, text.replace(before, after))
    if is_valid:
        assert config.load(path, (), "required").choices == {"FedNest": trial}
    else:
        with pytest.raises(ValueError, match="made for other settings"):
            config.load(path, (), "required")


TUNE = """
[tune]
metric = "accuracy"
goal = "max"
[tune.grid]
"algorithm.outer_lr" = [0.3, 0.4]
"algorithm.inner_lr" = [0.6]
"""


def test_curves_share_their_data_and_their_task(tmp_path, monkeypatch):
    text = (
        BASE
        + """
[curves.a]
[curves.slow]
clock = { delay = { name = "ConstantDelay", value = 1.0 } }
[curves.iid]
partition = { name = "iid", clients = 5 }
"""
    )
    reads, load = [], datasets.load
    monkeypatch.setattr(datasets, "load", lambda *a, **k: (reads.append(a), load(*a, **k))[1])
    loader = TaskLoader()
    a, slow, iid = (loader.load(curve) for curve in config.load(write(tmp_path, text)).curves)
    assert a is slow and a is not iid
    assert len(reads) == 1


OWN = '''
import numpy as np
import rookery as rk
from rookery.clients.datasets import Dataset
from rookery.tasks.task import Task

def Half(*, lr):
    """FedAvg with half the step."""
    return rk.FedAvg(lr=lr / 2)

def tiny_quadratic(size: int = 2):
    """Quadratic losses."""
    zoo = rk.zoo.quadratic_losses(n_clients=3, size=size, rows=1, dtype=np.float32)
    return Task(zoo.problem, rk.Population.stacked(zoo.data), lambda seed: zoo.start, ())

def noise(rows: int = 60):
    """Random rows."""
    rng = np.random.default_rng(0)
    def some(n):
        return {"inputs": rng.normal(size=(n, 4)).astype(np.float32),
                "labels": (np.arange(n) % 3).astype(np.int32)}
    return Dataset("noise", some(rows), some(9), ())

SIZE = 3
'''


def own_tables(module):
    return {
        "task": {"name": f"{module}:tiny_quadratic", "size": 3},
        "algorithm": {"name": f"{module}:Half", "lr": 0.2},
        "run": {"rounds": 2},
    }


def test_names_of_the_users_own_modules(tmp_path):
    (tmp_path / "own_module_1.py").write_text(OWN)
    (curve,) = config.build(own_tables("own_module_1"), path=tmp_path / "config.toml").curves
    assert curve.algorithm == rk.FedAvg(lr=0.1)
    assert TaskLoader().load(curve).start(0)[0].shape == (3,)
    assert str(tmp_path) not in sys.path


def test_a_data_set_of_the_users_own(tmp_path):
    (tmp_path / "own_module_2.py").write_text(OWN)
    text = BASE.replace('name = "digits"', 'name = "own_module_2:noise"\nrows = 300')
    (curve,) = config.load(write(tmp_path, text)).curves
    assert int(TaskLoader().load(curve).population.counts.sum()) == 200
    with pytest.raises(ValueError, match=r"key in \[data\] 'row'. Did you mean 'rows'"):
        config.load(write(tmp_path, text.replace("rows = 300", "row = 300")))


@pytest.mark.parametrize(
    ("name", "error", "message"),
    [
        ("nothing_there:Half", ValueError, "there is no module 'nothing_there'"),
        ("own_module_3:Haf", ValueError, "'Haf'. Did you mean 'Half'"),
        ("own_module_3:SIZE", ValueError, "SIZE"),
    ],
)
def test_mistakes_in_the_users_own_names(tmp_path, monkeypatch, name, error, message):
    monkeypatch.delitem(sys.modules, "own_module_3", raising=False)
    (tmp_path / "own_module_3.py").write_text(OWN)
    tables = {**own_tables("own_module_3"), "algorithm": {"name": name, "lr": 0.2}}
    with pytest.raises(error, match=message):
        config.build(tables, path=tmp_path / "config.toml")


def test_two_modules_of_one_name_are_told_apart(tmp_path):
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "own_module_4.py").write_text(OWN)
    config.build(own_tables("own_module_4"), path=tmp_path / "a" / "config.toml")
    with pytest.raises(ValueError, match="own_module_4' beside the experiment file is hidden by"):
        config.build(own_tables("own_module_4"), path=tmp_path / "b" / "config.toml")


def test_entry_points_of_installed_packages(tmp_path, monkeypatch):
    (tmp_path / "own_module_5.py").write_text(OWN)
    info = tmp_path / "own-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: own\nVersion: 1\n")
    (info / "entry_points.txt").write_text(
        "[rookery.algorithms]\nhalf = own_module_5:Half\n"
        "[rookery.tasks]\ntiny = own_module_5:tiny_quadratic\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    tables = {**own_tables(""), "task": {"name": "tiny"}, "algorithm": {"name": "half", "lr": 1.0}}
    (curve,) = config.build(tables).curves
    assert curve.algorithm == rk.FedAvg(lr=0.5)
    with pytest.raises(ValueError, match=r"'haf'. Did you mean 'half'"):
        config.build({**tables, "algorithm": {"name": "haf", "lr": 1.0}})


def test_rules_that_stop_a_run_are_tables_of_run(tmp_path):
    plateau = 'stop = { name = "Plateau", metric = "loss", patience = 3, goal = "min" }'
    budget = '{ name = "Budget", bytes = 1e6 }'
    one = config.load(write(tmp_path, f"{BASE}{plateau}\nkeep = 'best:loss:min'\n"))
    want = rk.stop.Plateau("loss", 3, goal="min")
    assert make_stop_rules(one.run["stop"]) == (want,)
    several = config.load(write(tmp_path, f"{BASE}growth_limit = inf\nstop = [{budget}]\n"))
    assert make_stop_rules(several.run["stop"]) == (rk.stop.Budget(bytes=1e6),)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('stop = "plateau"', r"\[run.stop\] must be a table with a name"),
        ('stop = { name = "Plato", metric = "f", patience = 1 }', "Did you mean 'Plateau'"),
        ('stop = { name = "Plateau", metric = "f" }', r"\[run.stop\] needs the key patience"),
        ('stop = { name = "Plateau", metric = "f", patience = 0 }', "patience must be at least 1"),
        ('keep = "accuracy"', "keep must be"),
        ("growth_limit = 0", "run.growth_limit must be"),
    ],
)
def test_a_bad_rule_is_found_when_the_file_is_read(tmp_path, line, message):
    with pytest.raises(ValueError, match=message):
        config.load(write(tmp_path, BASE + line + "\n"))

"""Tasks on natural clients: names of clients and classes, tokens, images."""

import re
import tomllib
from pathlib import Path

import numpy as np
import pytest

import rookery as rk
from rookery.cli.main import main
from rookery.clients import datasets, partition
from rookery.experiment import config
from rookery.experiment.costs import trace_costs
from rookery.experiment.task_loader import TaskLoader

FRACTIONS = {"train": 0.8, "validation": 0.2}


def natural(like, **settings):
    dataset = datasets.stand_in(like, n_owners=4, rows=20, **settings)
    return dataset, partition.split(partition.natural(dataset.owners), fractions=FRACTIONS)


TASKS = {
    "adversarial": {},
    "auc": {"positive": 1},
    "classification": {},
    "fair_classification": {},
    "hyper_cleaning": {},
    "hyper_representation": {"hidden": 3},
    "loss_tuning": {},
    "maml": {"adapt_lr": 0.1},
    "partial_auc": {"positive": 1},
    "regularisation": {},
}


@pytest.mark.parametrize(("name", "settings"), TASKS.items(), ids=TASKS)
def test_every_task_knows_its_clients_by_name(name, settings):
    dataset, parts = natural("heart_disease", seed=14)  # both classes everywhere
    population = getattr(rk.tasks, name)(dataset, parts, **settings).population
    assert population.names == dataset.owner_names
    in_two = ("negative", "positive") if "auc" in name else ("healthy", "ill")
    assert population.classes == {"labels": in_two}
    for client in range(4):  # the rows of a client are those of its owner
        inputs = [population.rows(client, split)["inputs"] for split in population.splits]
        mine = dataset.train["inputs"][dataset.owners == client]
        got = np.concatenate(inputs)
        assert {row.tobytes() for row in got} <= {row.tobytes() for row in mine}


def test_clients_that_mix_owners_have_no_names():
    dataset, _ = natural("heart_disease")
    mixed = partition.split(partition.iid(len(dataset.train["labels"]), 4), fractions=FRACTIONS)
    assert rk.tasks.classification(dataset, mixed).population.names is None
    half = [rows for own in partition.natural(dataset.owners) for rows in np.array_split(own, 2)]
    twice = partition.split(half, fractions=FRACTIONS)
    assert rk.tasks.classification(dataset, twice).population.names is None


def test_the_next_character_is_learnt_from_tokens_and_every_role_has_a_record():
    """In the stand-in the label is the last token, which softmax regression can copy."""
    dataset = datasets.stand_in("shakespeare", n_owners=4, rows=200)
    parts = partition.split(partition.natural(dataset.owners), fractions=FRACTIONS)
    task = rk.tasks.classification(dataset, parts)
    assert task.start(0)[0][0]["w"].shape == (80 * 80, 80)
    result = rk.run(
        rk.FedAvg(lr=5.0, local_steps=10), task.problem, task.population, task.start(0), rounds=5,
        evaluate=task.evaluate,
    )  # fmt: skip
    first, last = result.history["accuracy"][[0, -1]]
    print(f"next character: accuracy {first:.2f} before, {last:.2f} after 5 rounds")
    assert last > 0.25 > first
    each = result.per_client.last("accuracy/each")
    assert tuple(each) == dataset.owner_names
    assert np.mean(list(each.values())) == pytest.approx(result.history.last("accuracy/mean"))


def test_tasks_that_cannot_take_tokens_say_so():
    dataset, parts = natural("shakespeare")
    for name in ("adversarial", "hyper_representation"):
        with pytest.raises(TypeError, match=rf"{name} needs inputs that are real numbers"):
            getattr(rk.tasks, name)(dataset, parts)


def test_images_are_vectors_of_a_hyper_representation():
    dataset = datasets.stand_in("femnist", n_owners=4, rows=20).hold_out(5)
    parts = partition.split(partition.natural(dataset.owners), fractions=FRACTIONS)
    task = rk.tasks.hyper_representation(dataset, parts, hidden=3)
    task.problem.check(task.start(0), task.population.example)
    assert task.start(0)[0]["w"].shape == (784, 3)
    assert task.start(0)[1]["w"].shape == (3, 62)


TABLES = {
    "partition": {"name": "natural"},
    "task": {"name": "classification"},
    "algorithm": {"name": "FedAvg", "lr": 0.1},
    "run": {"rounds": 1},
}


@pytest.mark.parametrize(
    ("name", "clients", "n"),
    [("femnist", 3, 3), ("shakespeare", 3, 3), ("heart_disease", None, 4), ("villages", None, 44)],
)
def test_a_dry_run_needs_no_files(name, clients, n):
    dealt = {"name": "natural", "least": 30, **({} if clients is None else {"clients": clients})}
    tables = {**TABLES, "data": {"name": name}, "partition": dealt}
    (curve,) = config.build(tables).curves
    task = TaskLoader(is_blank=True).load(curve)
    assert task.population.n_clients == n
    ledgers = trace_costs(curve, task, rounds=1)
    inputs, classes = datasets.blank_like(name), datasets.blank_like(name).n_classes
    n_in = np.prod(inputs.train["inputs"].shape[1:]) * max(len(inputs.vocabulary), 1)
    assert ledgers[0].bytes_up == n * 4 * classes * (n_in + 1)


def test_the_experiment_of_the_guide_is_valid():
    page = Path(__file__).parents[2] / "docs" / "guide" / "natural-clients.md"
    found = re.findall(r"```toml\n(.*?)```", page.read_text(), flags=re.DOTALL)
    for curve in config.build(tomllib.loads(found[0])).curves:
        assert TaskLoader(is_blank=True).load(curve).population.n_clients == 44


def test_the_command_shows_clients_and_classes_by_name(tmp_path, capsys):
    file = tmp_path / "penguins.toml"
    file.write_text(
        '[data]\nname = "rookery.clients.datasets:stand_in"\nlike = "penguins"\nn_owners = 3\n'
        '[partition]\nname = "natural"\n[task]\nname = "classification"\n'
        '[algorithm]\nname = "FedAvg"\nlr = 0.1\n[run]\nrounds = 1\n'
    )
    main(["data", str(file)])
    said = capsys.readouterr().out
    assert all(word in said for word in ("owner 0", "owner 2", "Adelie", "Gentoo"))


def test_a_file_names_a_stand_in_and_deals_it_by_owner():
    data = {"name": "rookery.clients.datasets:stand_in", "like": "penguins", "n_owners": 5}
    curve = config.build({**TABLES, "data": data}).curves[0]
    assert TaskLoader().load(curve).population.names == tuple(f"owner {i}" for i in range(5))
    fewer = curve.changed({"partition.clients": 2, "data.holdout": 3})
    assert TaskLoader().load(fewer).population.n_clients == 2


@pytest.mark.parametrize(
    ("tables", "message"),
    [
        ({"data": {"name": "digits"}}, "no natural owners"),
        ({"data": {"name": "villages"}, "partition": {"name": "iid"}}, "partition.clients"),
        ({"data": {"name": "villages"}, "partition": {"name": "natural", "clients": 0}}, "clients"),
        ({"data": {"name": "villages"}, "partition": {"name": "natural", "most": 2}}, "'most'"),
    ],
)
def test_mistakes_in_a_natural_partition_are_named(tables, message):
    with pytest.raises((ValueError, TypeError), match=message):
        (curve,) = config.build({**TABLES, **tables}).curves
        TaskLoader(is_blank=True).load(curve)

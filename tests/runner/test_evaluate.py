import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import rookery as rk

DATA = np.array([1.0, 3.0, 10.0, 20.0, 0.0])
POPULATION = rk.Population.from_parts(
    DATA, {"train": [np.array([0])] * 2, "test": [np.array([0, 1]), np.array([2, 3, 4])]}
)


def scaled(x, y, row):
    return x * row


def step_towards_data(client, x, y):
    sample = client.draw("train", None, client.key)
    return x + sample.average(lambda rows, w: jnp.dot(w, rows)), y


def measure(evaluation):
    numbers = evaluation((jnp.asarray(2.0), jnp.asarray(0.0)), POPULATION, jax.random.key(0))
    return {name: float(value) for name, value in numbers.items()}


def test_server_data_is_averaged():
    assert measure(rk.metrics.OnServer({"m": scaled}, DATA)) == {
        "m": pytest.approx(2 * DATA.mean())
    }


def test_clients_are_averaged_each_on_its_own_rows():
    got = measure(rk.metrics.OnClients(scores={"s": scaled}, losses={"l": scaled}))
    assert got == pytest.approx({
        "s/mean": 12, "s/worst": 4, "s/worst10": 4, "s/variance": 64,
        "l/mean": 12, "l/worst": 20, "l/worst10": 20, "l/variance": 64,
    })  # fmt: skip


def test_the_worst_tenth_of_the_clients():
    data = np.random.default_rng(0).permutation(np.arange(35.0))
    clients = rk.Population.from_parts(data, {"test": [np.array([i]) for i in range(35)]})
    evaluation = rk.metrics.OnClients(scores={"s": scaled}, losses={"l": scaled})
    got = evaluation((jnp.asarray(1.0), jnp.asarray(0.0)), clients, jax.random.key(0))
    assert float(got["s/worst10"]) == pytest.approx(np.mean([0, 1, 2]))
    assert float(got["l/worst10"]) == pytest.approx(np.mean([34, 33, 32]))
    assert float(got["s/variance"]) == pytest.approx(np.var(data))


def test_metrics_after_adaptation():
    evaluation = rk.metrics.OnClients(
        scores={"s": scaled}, adapt=step_towards_data, label="adapted "
    )
    got = measure(evaluation)
    assert (got["adapted s/mean"], got["adapted s/worst"]) == pytest.approx((18, 6))
    assert len(got) == 4


def test_two_evaluations_of_one_name_are_refused():
    with pytest.raises(ValueError, match="s cannot be a score and a loss"):
        rk.metrics.OnClients(scores={"s": scaled}, losses={"s": scaled})
    zoo = rk.zoo.scalar_bilevel()
    same = rk.metrics.OfSolution(lambda x, y: {"m": x[0]})
    with pytest.raises(ValueError, match="two evaluations give"):
        rk.run(
            rk.FedNest(outer_lr=0.1, inner_lr=0.1),
            zoo.problem,
            rk.Population.stacked(zoo.data),
            zoo.start,
            rounds=1,
            evaluate=[same, same],
        )


def test_every_client_s_value_is_kept_by_name_and_survives_a_resume(tmp_path):
    zoo = rk.zoo.quadratic_bilevel(n_clients=3)
    population = rk.Population.stacked(zoo.data, names=["Lund", "Oslo", "Bergen"])

    def error(x, y, row):
        return zoo.problem.outer(x, y, row)

    evaluation = rk.metrics.OnClients(losses={"error": error}, split="train", per_client=True)

    def go(rounds, directory=None):
        return rk.run(
            rk.FedNest(outer_lr=0.05, inner_lr=0.1), zoo.problem, population, zoo.start,
            rounds=rounds, evaluate=[evaluation], evaluate_every=2, directory=directory,
        )  # fmt: skip

    whole = go(6)
    last = whole.per_client.last("error/each")
    assert set(last) == {"Lund", "Oslo", "Bergen"}
    assert max(last.values()) == pytest.approx(whole.history.last("error/worst"), rel=1e-12)
    assert whole.per_client.of("error/each", "Oslo")[0] == [0, 2, 4, 6]
    assert not any("each" in name for name in whole.history.names)
    go(3, tmp_path)
    resumed = go(6, tmp_path)
    assert resumed.per_client.rows == whole.per_client.rows
    lines = (tmp_path / "per_client.jsonl").read_text().splitlines()
    assert [json.loads(line) for line in lines] == whole.per_client.rows


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (
            lambda metrics: metrics.OnClients({"m": scaled}, "train"),
            "losses of OnClients .*'train'",
        ),
        (lambda metrics: metrics.OnClients({"m": 3}), "scores of OnClients: 'm' .* got 3"),
        (lambda metrics: metrics.OnServer(scaled, DATA), "metrics of OnServer .*<function scaled"),
    ],
)
def test_metrics_that_are_no_functions_by_name(make, said, wrong_types):
    with pytest.raises(TypeError, match=said):
        make(rk.metrics)


def test_a_split_that_clients_lack_is_found_before_the_run(tmp_path):
    zoo = rk.zoo.scalar_bilevel()
    with pytest.raises(ValueError, match=r"OnClients .*'test'.*: train"):
        rk.run(
            rk.FedNest(outer_lr=0.1, inner_lr=0.1), zoo.problem, rk.Population.stacked(zoo.data),
            zoo.start, rounds=1, evaluate=[rk.metrics.OnClients({"m": scaled})],
            directory=tmp_path / "run",
        )  # fmt: skip
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    "evaluate, said",
    [
        (None, "got None. Leave it out"),
        (rk.metrics.OnServer({"m": scaled}, DATA), "got OnServer. Put it into a list"),
        ([scaled], r"evaluate has <function scaled .* no evaluation"),
    ],
    ids=["None", "no list", "a function"],
)
def test_what_is_no_list_of_evaluations(evaluate, said, wrong_types):
    zoo = rk.zoo.scalar_bilevel()
    with pytest.raises(TypeError, match=said):
        rk.run(
            rk.FedNest(outer_lr=0.1, inner_lr=0.1), zoo.problem, rk.Population.stacked(zoo.data),
            zoo.start, rounds=1, evaluate=evaluate,
        )  # fmt: skip

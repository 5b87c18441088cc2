"""FedBN: leaves that stay on the clients, against a run of every client by hand."""

from contextlib import closing
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import rookery as rk
from rookery.engines.engine import Program
from rookery.problem import OverBatch, batch_norm
from rookery.program.algorithm import first_state

RANDOM = np.random.default_rng(5)
DATA = {"input": RANDOM.normal(1.0, 2.0, size=(3, 4, 2)), "target": RANDOM.normal(size=(3, 4))}
POPULATION = rk.Population.stacked(DATA, weights=[1.0, 2.0, 3.0])
START: Any = {
    "norm": {name: np.asarray(leaf) for name, leaf in batch_norm.init(2).items()},
    "out": np.array([0.5, -0.25]),
}

TWO = rk.participation.Fixed((0, 2))


def loss(w, rows, weights):
    hidden, follow = batch_norm.by_batch(rows["input"], weights, w["norm"])
    return jnp.vdot(weights, (hidden @ w["out"] - rows["target"]) ** 2) / 2 + follow


PROBLEM = rk.SingleLevel(OverBatch(loss))


def numpy_gradient(w, i):
    rows, targets = DATA["input"][i], DATA["target"][i]
    mean, square = rows.mean(0), (rows**2).mean(0)
    plain = (rows - mean) / np.sqrt(square - mean**2 + 1e-5)
    hidden = w["norm"]["scale"] * plain + w["norm"]["shift"]
    error = (hidden @ w["out"] - targets) / len(rows)
    norm = {
        "scale": w["out"] * (error @ plain),
        "shift": w["out"] * error.sum(),
        "mean": w["norm"]["mean"] - mean,
        "square": w["norm"]["square"] - square,
    }
    return {"norm": norm, "out": error @ hidden}


def fedbn_round(models, cohort, lr, steps, mu=0.0):
    """Algorithm 1 of the paper: every client's model, all parts but the norm averaged."""
    weights = {0: 1.0, 1: 2.0, 2: 3.0}
    for i in cohort:
        centre = w = models[i]
        for _ in range(steps):
            g = numpy_gradient(w, i)
            w = jax.tree.map(lambda a, b, c: a - lr * (b + mu * (a - c)), w, g, centre)
        models[i] = w
    total = sum(weights[i] for i in cohort)
    out = sum(weights[i] * models[i]["out"] for i in cohort) / total
    return {i: {**model, "out": out} for i, model in models.items()}


def close(got, wanted):
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, 1e-12, 1e-14), got, wanted)


def run(algorithm, rounds=3):
    return rk.run(algorithm, PROBLEM, POPULATION, start=(START,), rounds=rounds)


@pytest.mark.parametrize(
    ("algorithm", "cohort", "mu"),
    [
        (rk.FedAvg(lr=0.2, local_steps=2, own="norm"), (0, 1, 2), 0.0),
        (
            rk.FedProx(
                lr=0.2, local_steps=2, mu=0.5, own=["norm"], clients=rk.participation.Fixed((0, 2))
            ),
            (0, 2),
            0.5,
        ),
    ],
    ids=["FedAvg", "FedProx, two clients"],
)
def test_every_client_has_the_model_that_fedbn_gives_it(algorithm, cohort, mu):
    result = run(algorithm)
    models: dict[int, Any] = dict.fromkeys(range(3), START)
    for _ in range(3):
        models = fedbn_round(models, cohort, 0.2, 2, mu)
    for i in range(3):
        (w,) = algorithm.client_solution(result.state, i)
        close(w, models[i])
    if 1 not in cohort:  # who never took part has what it began with
        close(models[1]["norm"], START["norm"])
    (w,) = result.solution
    close(
        w["norm"],
        jax.tree.map(
            lambda a, b, c: (a + 2 * b + 3 * c) / 6, *(m["norm"] for m in models.values())
        ),
    )


@pytest.mark.slow
def test_own_leaves_are_neither_sent_nor_billed_and_engines_agree():
    algorithm = rk.FedAvg(lr=0.2, local_steps=2, clients=2, own="norm")
    ready = Program(PROBLEM, POPULATION, rk.delays.Clock(), rk.aggregate.Mean())
    got = []
    for engine in (rk.Compiled(), rk.Eager(), rk.remote.Remote()):
        with closing(engine.prepare(ready, [algorithm])) as runner:
            state = first_state(algorithm, PROBLEM, 3, (START,))
            got += runner.advance([state], [jax.random.key(1)], 0, [2])
    for one in got:
        close(one.state, got[0].state)
        assert [(a.bytes_down, a.bytes_up) for a in one.ledgers] == [(2 * 16, 2 * 16)] * 2


def test_evaluations_on_clients_use_their_own_leaves():
    def mean(w, row):
        return w["norm"]["mean"][0]

    evaluations = [
        rk.metrics.OnClients(scores={"m": mean}, split="train", per_client=True),
        rk.metrics.OnServer({"s": mean}, DATA["target"][0]),
    ]
    algorithm = rk.FedAvg(lr=0.5, own="norm")
    result = rk.run(algorithm, PROBLEM, POPULATION, start=(START,), rounds=1, evaluate=evaluations)
    own = DATA["input"].mean(1)[:, 0] / 2  # one step of size 1/2 from zero
    each = result.per_client.last("m/each")
    np.testing.assert_allclose(list(each.values()), own, rtol=1e-12)
    assert result.history.last("s") == pytest.approx(np.average(own, weights=[1, 2, 3]))


def test_a_run_leaves_the_personal_model_of_every_client(tmp_path):
    named = rk.Population.stacked(DATA, weights=[1.0, 2.0, 3.0], names=["Oslo", "Bergen", "Bodø"])
    algorithm = rk.FedAvg(lr=0.2, own="norm")

    def go(population, folder, algorithm=algorithm):
        directory = tmp_path / folder
        rk.run(algorithm, PROBLEM, population, (START,), rounds=1, directory=directory)
        return directory

    for directory, last in ((go(named, "named"), "Bodø"), (go(POPULATION, "plain"), "client 2")):
        models: Any = fedbn_round(dict.fromkeys(range(3), START), range(3), 0.2, 1)
        close(rk.load_solution(directory, like=(START,), client=0)[0], models[0])
        close(rk.load_solution(directory, like=(START,), client=last)[0], models[2])
        mean = np.average([m["norm"]["mean"] for m in models.values()], axis=0, weights=[1, 2, 3])
        close(rk.load_solution(directory, like=(START,))[0]["norm"]["mean"], mean)
    directory = tmp_path / "named"
    with pytest.raises(ValueError, match="unknown client 'Olso'"):
        rk.load_solution(directory, like=(START,), client="Olso")
    with pytest.raises(ValueError, match="client must be below 3"):
        rk.load_solution(directory, like=(START,), client=3)
    with pytest.raises(ValueError, match="client needs which='last'"):
        rk.load_solution(directory, like=(START,), which="best", client=0)
    shared = go(named, "shared", rk.FedAvg(lr=0.2))
    assert not (shared / "own.safetensors").exists()
    with pytest.raises(FileNotFoundError, match="the run had no own="):
        rk.load_solution(shared, like=(START,), client=0)


def test_nothing_changes_without_own_leaves():
    one, other = (rk.FedAvg(lr=0.2, local_steps=2, own=own) for own in ((), []))
    close(run(one, 1).solution, run(other, 1).solution)
    assert rk.FedAvg(lr=0.1).own == ()


def test_mistakes_are_named():
    with pytest.raises(ValueError, match="'nrom', which is not in the model"):
        run(rk.FedAvg(lr=0.1, own="nrom"))
    with pytest.raises(ValueError, match="nothing to share"):
        run(rk.FedAvg(lr=0.1, own=("norm", "out")))
    with pytest.raises(ValueError, match="WithReplacement"):
        rk.FedAvg(lr=0.1, own="norm", clients=rk.participation.WithReplacement(2))
    three: Any = 3
    with pytest.raises(TypeError, match="own must be names"):
        rk.FedAvg(lr=0.1, own=three)
    for algorithm in (rk.QFedAvg, rk.Scaffold):
        with pytest.raises(TypeError, match="own"):
            algorithm(lr=0.1, own="norm")  # pyright: ignore[reportCallIssue]


def distance(w, row):
    return (w["a"] - row["t"]) ** 2 / 2 + (w["b"] - 3 * row["t"]) ** 2 / 2


PAIR: Any = ({"a": np.array(0.0), "b": np.array(0.0)},)
TARGETS = rk.Population.stacked({"t": np.array([[-2.0], [0.25], [3.25]])})


def test_own_leaves_stay_in_their_set():
    def box(w):
        return jax.tree.map(lambda leaf: jnp.clip(leaf, -1.0, 1.0), w)

    algorithm = rk.FedAvg(lr=0.1, local_steps=3, own="b")
    problem = rk.SingleLevel(distance, project=box)
    result = rk.run(algorithm, problem, TARGETS, PAIR, rounds=100)
    for i, b in enumerate([-1.0, 0.75, 1.0]):
        close(algorithm.client_solution(result.state, i), ({"a": result.solution[0]["a"], "b": b},))
    assert 0 < result.solution[0]["a"] < 1


def test_a_set_that_ties_own_leaves_to_others_is_refused():
    problem = rk.SingleLevel(distance, project=optax.projections.projection_l2_ball)
    with pytest.raises(ValueError, match=r"project\['w'\] moves one part.*set for each"):
        rk.run(rk.FedAvg(lr=0.1, own="b"), problem, TARGETS, PAIR, rounds=1)

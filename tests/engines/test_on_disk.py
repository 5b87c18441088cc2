"""Populations on disk: the numbers of the population in memory, bit for bit."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import rookery as rk
from rookery.clients.population_file import PopulationWriter
from rookery.engines import streamed
from rookery.engines.engine import AbstractEngine
from rookery.runner import metrics

N_CLIENTS = 300


def squares(w, example):
    return 0.5 * (example["input"] @ w - example["target"]) ** 2


PROBLEM = rk.SingleLevel(squares)
START = (jnp.zeros(3),)


@pytest.fixture(scope="module")
def in_memory():
    rng = np.random.default_rng(0)
    sizes = rng.integers(4, 9, N_CLIENTS)
    rows = {
        "input": rng.normal(size=(int(sizes.sum()), 3)),
        "target": rng.normal(size=int(sizes.sum())),
    }
    parts = rk.partition.given_sizes(int(sizes.sum()), sizes)
    cut = rk.partition.split(parts, fractions={"train": 0.7, "test": 0.3})
    return rk.Population.from_parts(rows, cut, weights=rng.uniform(1, 2, N_CLIENTS))


@pytest.fixture(scope="module")
def on_disk(in_memory, tmp_path_factory):
    path = tmp_path_factory.mktemp("population") / "rows"
    in_memory.save(path)
    return rk.Population.open(path)


EVALUATE = [
    rk.metrics.OnClients(losses={"loss": squares}, per_client=True),
    rk.metrics.OfSolution(lambda w: {"size": jnp.linalg.norm(w)}),
]
SMALL: AbstractEngine = rk.Compiled(window_bytes=4_000)  # a few rounds


def scaffold():
    return rk.Scaffold(
        lr=0.1, local_steps=2, clients=rk.participation.Proportional(5), batch_size=2
    )


def leaves_equal(a, b):
    pairs = zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True)
    return all(np.array_equal(np.asarray(x), np.asarray(y)) for x, y in pairs)


def run(population, rounds=12, engine: AbstractEngine = SMALL, algorithm=None, **settings):
    algorithm = scaffold() if algorithm is None else algorithm
    return rk.run(
        algorithm, PROBLEM, population, START, rounds=rounds, engine=engine, evaluate_every=5,
        **settings,
    )  # fmt: skip


@pytest.fixture(scope="module")
def reference(in_memory):
    return run(in_memory, evaluate=EVALUATE, seed=3)


@pytest.mark.slow
def test_numbers_ledgers_memory_and_evaluations_are_those_in_memory(
    on_disk, reference, monkeypatch
):
    windows = []
    read = streamed.StreamedRunner._read
    monkeypatch.setattr(
        streamed.StreamedRunner, "_read", lambda *a: windows.append(a[3]) or read(*a)
    )
    monkeypatch.setattr(metrics, "BLOCK_BYTES", 7_000)  # several blocks of clients
    result = run(on_disk, evaluate=EVALUATE, seed=3)
    assert 2 < len(set(windows)) < 12  # several windows of several rounds
    assert leaves_equal(result.state, reference.state)
    assert result.history.rows == reference.history.rows
    assert result.per_client.rows == reference.per_client.rows
    assert result.ledger == reference.ledger


def test_a_resumed_run_continues_with_the_same_numbers(on_disk, reference, tmp_path):
    run(on_disk, rounds=7, evaluate=EVALUATE, seed=3, directory=tmp_path / "run")
    result = run(on_disk, evaluate=EVALUATE, seed=3, directory=tmp_path / "run")
    assert leaves_equal(result.state, reference.state)
    assert result.history.rows == reference.history.rows


@pytest.mark.slow
def test_runs_of_a_sweep_share_the_windows(in_memory, on_disk):
    runs = [rk.Run(scaffold(), START, seed) for seed in (0, 1)]
    both = [
        rk.sweep(runs, PROBLEM, population, rounds=4, engine=SMALL)
        for population in (in_memory, on_disk)
    ]
    for a, b in zip(*both, strict=True):
        assert leaves_equal(a.state, b.state)


def test_the_eager_engine_reads_one_client_after_another(in_memory, on_disk):
    algorithm = rk.FedAvg(lr=0.1, clients=rk.participation.Fixed([7, 200]), batch_size=2)
    a, b = (
        run(population, rounds=2, engine=rk.Eager(), algorithm=algorithm)
        for population in (in_memory, on_disk)
    )
    assert leaves_equal(a.state, b.state)


@pytest.mark.slow
def test_a_draw_by_the_state_is_known_one_round_ahead(in_memory, on_disk):
    algorithm = rk.DRFA(lr=0.1, ascent_lr=0.01, local_steps=2, clients=3, batch_size=2)
    a, b = (run(p, rounds=3, algorithm=algorithm) for p in (in_memory, on_disk))
    assert leaves_equal(a.state, b.state)


def test_what_needs_everybody_says_so(on_disk):
    with pytest.raises(
        ValueError, match=r"FedBuff cannot run with a population on disk.*fed\.poll"
    ):
        run(on_disk, algorithm=rk.FedBuff(lr=0.1, buffer_size=2))

    class Largest(rk.metrics.AbstractEvaluation):
        def __call__(self, solution, population, key):
            return {"largest": jnp.max(population.data["target"])}

    with pytest.raises(ValueError, match=r"Largest reads the rows of all clients"):
        run(on_disk, evaluate=[Largest()])


def test_a_folder_gives_back_what_was_saved(in_memory, on_disk):
    assert on_disk.is_on_disk
    assert not on_disk.in_memory().is_on_disk
    assert leaves_equal(on_disk, in_memory)
    assert (on_disk.splits, on_disk.largest) == (in_memory.splits, in_memory.largest)


def test_parts_are_written_one_after_another(tmp_path):
    table = {
        "who": ["a", "b", "a"],
        "kind": ["x", "y", "y"],
        "v": [[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]],
    }
    table["v"] = np.array(table["v"])
    first = rk.Population.from_table(table, client="who", encode={"kind": ["y", "x"]})
    second = rk.Population.from_table({**table, "who": ["c", "d", "c"]}, client="who",
                                      encode={"kind": ["y", "x"]})  # fmt: skip
    rk.Population.save_joined(tmp_path / "p", iter([first, second]))
    joined, again = rk.Population.joined([first, second]), rk.Population.open(tmp_path / "p")
    assert leaves_equal(again, joined)
    assert (again.names, again.classes) == (joined.names, joined.classes)


def test_damage_and_foreign_files_are_found(in_memory, tmp_path):
    path = tmp_path / "p"
    in_memory.save(path)
    with pytest.raises(ValueError, match="exists already"):
        in_memory.save(path)
    file = path / "field-0.npy"
    good = file.read_bytes()
    file.write_bytes(good[:-5] + b"\x00" + good[-4:])
    rk.Population.open(path, verify=False)
    with pytest.raises(ValueError, match=r"field-0.npy is damaged.*digest differs"):
        rk.Population.open(path)
    file.write_bytes(good[:-8])
    with pytest.raises(ValueError, match=r"field-0.npy is damaged.*bytes of rows"):
        rk.Population.open(path, verify=False)
    np.save(file, np.zeros(3))
    with pytest.raises(ValueError, match=r"field-0.npy is damaged.*description says"):
        rk.Population.open(path, verify=False)
    file.unlink()
    with pytest.raises(ValueError, match=r"field-0.npy is damaged"):
        rk.Population.open(path, verify=False)
    (path / "population.json").write_text('{"content": "{}", "sha256": "0"}')
    with pytest.raises(ValueError, match=r"population.json is damaged: its digest differs"):
        rk.Population.open(path)
    with pytest.raises(ValueError, match=r"is no population"):
        rk.Population.open(tmp_path)


def test_nothing_is_left_of_a_population_that_cannot_be_saved(tmp_path):
    bad = rk.Population.stacked(np.array([[1.0], [np.nan]]))
    with pytest.raises(ValueError, match="NaN"):
        bad.save(tmp_path / "p")
    assert not list(tmp_path.iterdir())
    with (
        pytest.raises(TypeError, match="the rows have a set"),
        PopulationWriter(tmp_path / "q") as w,
    ):
        w.append({1, 2})

"""Side by side gives what one after another gives."""

import numpy as np
import pytest

import rookery as rk
from rookery.engines import compiled
from rookery.runner.run_state import DivergenceWarning
from rookery.runner.sweep import structure


def runs_and_zoo(dtype=np.float64, directory=None):
    zoo = rk.zoo.quadratic_bilevel(n_clients=4, rows=3, noise=0.2, dtype=dtype)
    runs = [
        rk.Run(
            rk.FedNest(
                outer_lr=lr,
                inner_lr=0.1,
                ihgp=ihgp(terms=3, lipschitz=5.0),
                clients=2,
                batch_size=2,
            ),
            zoo.start,
            seed,
            None if directory is None else directory / f"{ihgp.__name__}-{lr}-{seed}",
        )
        for ihgp in (rk.parts.FedIHGP, rk.parts.FedIHGPSum)
        for lr in (0.02, 0.05)
        for seed in (0, 1, 2)
    ]
    return runs, zoo


def size(x, y):
    return {"size": (x @ x) ** 0.5}


def go(runs, zoo, **kwargs):
    kwargs = {"rounds": 7, "evaluate": [rk.metrics.OfSolution(size)], "evaluate_every": 3, **kwargs}
    return rk.sweep(runs, zoo.problem, rk.Population.stacked(zoo.data), **kwargs)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("dtype", "tolerance"),
    [(np.float64, 1e-12), pytest.param(np.float32, 1e-6, marks=pytest.mark.slow)],
)
def test_a_sweep_equals_its_single_runs_and_compiles_once_per_structure(dtype, tolerance):
    runs, zoo = runs_and_zoo(dtype)
    assert len({str(structure(one.algorithm, one.start)) for one in runs}) == 2
    before = compiled.programs_compiled()
    together = go(runs, zoo)
    assert compiled.programs_compiled() - before == 2  # twelve runs, two programs
    for one, result in zip(runs, together, strict=True):
        (alone,) = go([one], zoo)
        np.testing.assert_allclose(
            result.history["size"], alone.history["size"], rtol=tolerance, atol=tolerance
        )
        assert result.ledger == alone.ledger
        assert result.history["round"].tolist() == [0, 3, 6, 7]


@pytest.mark.slow
def test_small_batches_give_the_same_with_one_program_for_all_batches():
    runs, zoo = runs_and_zoo()
    together = go(runs[:5], zoo)
    before = compiled.programs_compiled()
    in_turn = go(runs[:5], zoo, batch=3)  # three, and two with padding
    assert compiled.programs_compiled() - before == 1
    for a, b in zip(together, in_turn, strict=True):
        np.testing.assert_allclose(a.history["size"], b.history["size"], rtol=1e-12)
        assert a.ledger == b.ledger


@pytest.mark.slow
def test_one_run_that_diverges_leaves_the_others_alone():
    runs, zoo = runs_and_zoo()
    wild = rk.Run(
        rk.FedNest(
            outer_lr=1e200,
            inner_lr=0.1,
            ihgp=rk.parts.FedIHGPSum(terms=3, lipschitz=5.0),
            clients=2,
            batch_size=2,
        ),
        zoo.start,
    )
    with pytest.warns(DivergenceWarning, match="diverged in round"):
        results = go([wild, runs[6], runs[7]], zoo, guard=None)
    assert [r.status for r in results] == ["diverged", "finished", "finished"]
    assert results[0].rounds < 7
    np.testing.assert_allclose(
        results[1].history["size"], go([runs[6]], zoo)[0].history["size"], rtol=1e-12
    )


@pytest.mark.slow
def test_an_interrupted_sweep_goes_on_from_the_round_that_all_runs_have(tmp_path):
    runs, zoo = runs_and_zoo(directory=tmp_path)
    runs = runs[:3]
    whole = [r.history.rows for r in go(runs, zoo, rounds=9)]
    # as if the kill had come while the last checkpoints were being written
    (tmp_path / "FedIHGP-0.02-1" / "checkpoints" / "round-000000009.safetensors").unlink()
    assert [r.history.rows for r in go(runs, zoo, rounds=9)] == whole


@pytest.mark.slow
def test_a_run_ends_at_the_last_measurement_within_its_seconds(tmp_path):
    zoo = rk.zoo.quadratic_bilevel(n_clients=4)
    clock = rk.delays.Clock(rk.delays.LogNormalDelay(1.0), seed=3)
    ihgp = rk.parts.FedIHGP(
        terms=6, lipschitz=5.0
    )  # of random length, so that runs differ in their seconds

    def one(seed, directory=None):
        return rk.Run(
            rk.FedNest(outer_lr=0.05, inner_lr=0.1, ihgp=ihgp), zoo.start, seed, directory
        )

    def run(seeds, seconds, **kwargs):
        runs = [one(seed, kwargs.pop(f"directory{seed}", None)) for seed in seeds]
        settings = {"rounds": 40, "evaluate_every": 1, "clock": clock, "seconds": seconds}
        return go(runs, zoo, **settings, **kwargs)

    whole = run([0, 1], None)
    cut = run([0, 1], 290.0)
    assert [r.rounds for r in whole] == [40, 40]
    assert cut[0].rounds != cut[1].rounds
    for long, short in zip(whole, cut, strict=True):
        seconds = long.history["seconds"]
        n = int(np.argmax(seconds > 290.0))
        assert seconds[n - 1] <= 290.0 < seconds[n]
        assert short.status == "finished"
        assert short.rounds == short.history["round"][-1] == long.history["round"][n - 1]
        assert [*short.history] == [*long.history][:n]
        assert short.ledger.seconds == short.history["seconds"][-1]
    # it is over when it is opened again, and goes on if it may take longer
    there = {"directory0": tmp_path / "run"}
    for seconds, wanted in ((290.0, cut[0]), (290.0, cut[0]), (None, whole[0])):
        (again,) = run([0], seconds, **there)
        assert again.rounds == wanted.rounds
        assert again.history["round"].tolist() == wanted.history["round"].tolist()
        assert again.ledger.seconds == pytest.approx(wanted.ledger.seconds)
    with pytest.raises(ValueError, match="seconds=290"):
        run([0], 290.0, **there)
    with pytest.raises(ValueError, match="seconds must be a finite number above 0, got 0"):
        run([0], 0)

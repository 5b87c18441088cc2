import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from rich.console import Console

import rookery as rk
from rookery.runner.run_state import DivergenceWarning

ZOO = rk.zoo.quadratic_bilevel(n_clients=3)
POPULATION = rk.Population.stacked(ZOO.data)
ALGORITHM = rk.FedNest(
    outer_lr=0.05, inner_lr=0.1, ihgp=rk.parts.FedIHGP(terms=3, lipschitz=5.0), clients=2
)
WILD = rk.FedNest(outer_lr=1e3, inner_lr=1e3)


def distance(x, y):
    return {"distance": jnp.linalg.norm(x - jnp.asarray(ZOO.solution()[0]))}


def go(algorithm=ALGORITHM, rounds=12, **kwargs):
    kwargs = {"evaluate": [rk.metrics.OfSolution(distance)], "evaluate_every": 5, **kwargs}
    return rk.run(algorithm, ZOO.problem, POPULATION, ZOO.start, rounds=rounds, **kwargs)


def test_history_has_the_start_every_evaluation_and_the_end():
    result = go()
    assert result.status == "finished"
    assert result.history["round"].tolist() == [0, 5, 10, 12]
    assert result.history.last("exchanges") == result.ledger.exchanges
    assert result.history["distance"][-1] < result.history["distance"][0]


def test_the_seed_decides_the_numbers():
    a, b, c = go(seed=1), go(seed=1), go(seed=2)
    assert a.history.rows == b.history.rows != c.history.rows


def test_a_run_directory_holds_configuration_history_checkpoints_and_summary(tmp_path):
    result = go(directory=tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    assert config["run"]["algorithm"]["name"] == "FedNest"
    series = {"name": "FedIHGP", "terms": 3, "lipschitz": 5.0, "fresh": True}
    assert config["run"]["algorithm"]["ihgp"] == series
    assert config["versions"]["jax"] == jax.__version__
    lines = (tmp_path / "history.jsonl").read_text().splitlines()
    assert [json.loads(line) for line in lines] == result.history.rows
    assert json.loads((tmp_path / "summary.json").read_text())["status"] == "finished"
    assert len(list((tmp_path / "checkpoints").iterdir())) == 2


def test_more_rounds_go_on_from_the_checkpoint_with_the_same_numbers(tmp_path):
    go(directory=tmp_path, rounds=10)
    longer = go(directory=tmp_path, rounds=20)
    assert longer.history.rows == go(rounds=20).history.rows


def test_a_broken_history_line_is_noticed_and_computed_again(tmp_path, capsys):
    whole = go(directory=tmp_path, rounds=20, checkpoint_every=10).history.rows
    for newest in sorted((tmp_path / "checkpoints").iterdir())[1:]:
        newest.unlink()
    path = tmp_path / "history.jsonl"
    path.write_bytes(path.read_bytes()[:-20])
    again = go(directory=tmp_path, rounds=20, checkpoint_every=10, console=Console(width=400))
    assert "line 5 is broken" in capsys.readouterr().out
    assert again.history.rows == whole
    assert [json.loads(line) for line in path.read_text().splitlines()] == whole


@pytest.mark.parametrize("damage", ["truncated", "flipped", "empty"])
def test_a_damaged_checkpoint_is_noticed_and_the_one_before_is_used(tmp_path, capsys, damage):
    whole = go(directory=tmp_path, rounds=20).history.rows
    newest = sorted((tmp_path / "checkpoints").iterdir())[-1]
    content = bytearray(newest.read_bytes())
    if damage == "flipped":
        content[-3] ^= 1
    newest.write_bytes({"truncated": content[:-9], "flipped": content, "empty": b""}[damage])
    again = go(directory=tmp_path, rounds=20, console=Console(width=400))
    said = capsys.readouterr().out
    assert "is damaged" in said and "Resuming from round 15" in said
    assert again.history.rows == whole


def test_a_directory_of_another_run_is_refused(tmp_path):
    go(directory=tmp_path)
    with pytest.raises(ValueError, match="holds a run with another algorithm"):
        go(rk.FedNest(outer_lr=0.01, inner_lr=0.1), directory=tmp_path)
    with pytest.raises(ValueError, match="holds a run with another seed"):
        go(directory=tmp_path, seed=3)
    fresh = go(rk.FedNest(outer_lr=0.01, inner_lr=0.1), directory=tmp_path, overwrite=True)
    assert fresh.rounds == 12


def test_divergence_stops_the_run_with_a_status(tmp_path, capsys):
    with pytest.warns(DivergenceWarning, match="x") as warned:
        result = go(
            WILD,
            rounds=500,
            directory=tmp_path,
            console=Console(width=400),
            growth_limit=None,
            guard=None,
        )
    assert [str(w.message) for w in warned] == [result.message]
    assert warned[0].filename == __file__  # the line that called rk.run
    assert result.status == "diverged"
    assert result.rounds < 500
    assert np.isnan(result.history["distance"][-1])
    assert result.history["round"][-1] == result.rounds
    assert f"in round {result.rounds}:" in result.message and "lipschitz" in result.message
    assert result.message in capsys.readouterr().out
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert (summary["status"], summary["message"]) == ("diverged", result.message)
    assert summary["last"]["distance"] is None


def test_bad_arguments():
    with pytest.raises(ValueError, match="rounds must be at least 1, got 0"):
        go(rounds=0)
    with pytest.raises(ValueError, match="outer must return one floating-point number"):
        problem = rk.Bilevel(lambda x, y, row: x, ZOO.problem.inner, outer_split="train")
        rk.run(ALGORITHM, problem, POPULATION, ZOO.start, rounds=1)
    with pytest.raises(ValueError, match="outer cannot be evaluated on one example"):
        rk.run(ALGORITHM, ZOO.problem, POPULATION, (np.zeros(2), np.zeros(4)), rounds=1)
    with pytest.raises(ValueError, match=r"Bilevel.*'validation'.*: train\."):
        problem = rk.Bilevel(ZOO.problem.outer, ZOO.problem.inner)
        rk.run(ALGORITHM, problem, POPULATION, ZOO.start, rounds=1)


@pytest.mark.usefixtures("wrong_types")
def test_arguments_of_another_kind():
    on: Any = ZOO.problem, ZOO.data, ZOO.start
    with pytest.raises(TypeError, match=r"population must be .* got dict\. .*from_parts"):
        rk.run(ALGORITHM, *on, rounds=1)
    algorithm: Any = type(ALGORITHM)
    with pytest.raises(TypeError, match=r"algorithm must be .* got <class"):
        rk.run(algorithm, ZOO.problem, POPULATION, ZOO.start, rounds=1)


PROGRAM = Path(__file__).parent / "killed_program.py"


def start_program(directory):
    environment = {**os.environ, "JAX_ENABLE_X64": "1"}
    return subprocess.Popen([sys.executable, str(PROGRAM), str(directory)], env=environment)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    directory = tmp_path_factory.mktemp("undisturbed")
    assert start_program(directory).wait(timeout=300) == 0
    return directory


@pytest.mark.slow
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT, signal.SIGTERM])
def test_killed_at_a_random_moment_and_resumed_it_is_the_same_bit_for_bit(
    tmp_path, undisturbed, how
):
    """The random moment differs from test run to test run on purpose; the outcome must not."""
    whole = (undisturbed / "history.jsonl").read_bytes()
    history = tmp_path / "history.jsonl"
    child = start_program(tmp_path)
    deadline = time.monotonic() + 200
    checkpoint = tmp_path / "checkpoints" / "round-000000020.safetensors"
    while child.poll() is None and time.monotonic() < deadline and not checkpoint.exists():
        time.sleep(0.01)
    time.sleep(random.uniform(0, 1.0))
    child.send_signal(how)
    child.wait(timeout=60)
    assert child.returncode != 0, "the program ended before it could be stopped"
    assert history.read_bytes() != whole
    assert start_program(tmp_path).wait(timeout=300) == 0
    assert history.read_bytes() == whole
    last = sorted((tmp_path / "checkpoints").iterdir())[-1].name
    for name in (f"checkpoints/{last}", "solution.safetensors", "best.safetensors"):
        assert (tmp_path / name).read_bytes() == (undisturbed / name).read_bytes()


def test_fewer_rounds_than_a_directory_holds_are_refused(tmp_path):
    go(directory=tmp_path, rounds=10)
    with pytest.raises(ValueError, match="10 rounds, more than rounds=5"):
        go(directory=tmp_path, rounds=5)


def test_a_diverged_run_started_again_stays_diverged_without_work(tmp_path):
    with pytest.warns(DivergenceWarning):
        first = go(WILD, rounds=500, directory=tmp_path, guard=None)
    history = (tmp_path / "history.jsonl").read_bytes()
    with pytest.warns(DivergenceWarning):
        second = go(WILD, rounds=500, directory=tmp_path, guard=None)
    assert (first.status, first.rounds) == (second.status, second.rounds)
    assert first.message == second.message
    assert (tmp_path / "history.jsonl").read_bytes() == history


def test_two_runs_cannot_share_a_directory(tmp_path):
    runs = [rk.Run(ALGORITHM, ZOO.start, seed, tmp_path) for seed in (0, 1)]
    with pytest.raises(ValueError, match="two runs cannot share a directory"):
        rk.sweep(runs, ZOO.problem, POPULATION, rounds=1)


def test_two_problems_of_one_name_are_told_apart(tmp_path):
    def problem(factor):
        outer = ZOO.problem.outer
        return rk.Bilevel(
            lambda x, y, row: factor * outer(x, y, row), ZOO.problem.inner, outer_split="train"
        )

    rk.run(ALGORITHM, problem(1.0), POPULATION, ZOO.start, rounds=1, directory=tmp_path)
    with pytest.raises(ValueError, match="holds a run with another problem"):
        rk.run(ALGORITHM, problem(2.0), POPULATION, ZOO.start, rounds=1, directory=tmp_path)


@pytest.mark.parametrize("cut", ["a line", "within a line"])
def test_a_history_that_ends_before_the_checkpoint_is_noticed_and_completed(tmp_path, capsys, cut):
    whole = go(directory=tmp_path, rounds=20).history.rows
    path = tmp_path / "history.jsonl"
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(lines[:-1]) if cut == "a line" else b"".join(lines)[:-9])
    again = go(directory=tmp_path, rounds=20, console=Console(width=400))
    assert "changed rows since the checkpoint of round 20" in capsys.readouterr().out
    assert again.history.rows == whole


def test_a_longer_run_has_no_row_that_it_would_not_have_measured(tmp_path):
    go(directory=tmp_path, rounds=12)
    assert go(directory=tmp_path, rounds=20).history.rows == go(rounds=20).history.rows


@pytest.mark.slow
def test_a_seed_added_to_a_finished_sweep_leaves_the_others_alone(tmp_path):
    def runs(seeds):
        return [rk.Run(ALGORITHM, ZOO.start, s, tmp_path / f"{s}") for s in seeds]

    rk.sweep(runs((0, 1)), ZOO.problem, POPULATION, rounds=4, evaluate_every=2)
    checkpoints = [sorted((tmp_path / f"{s}" / "checkpoints").iterdir()) for s in (0, 1)]
    results = rk.sweep(runs((0, 1, 2)), ZOO.problem, POPULATION, rounds=4, evaluate_every=2)
    assert [r.rounds for r in results] == [4, 4, 4]
    assert checkpoints == [sorted((tmp_path / f"{s}" / "checkpoints").iterdir()) for s in (0, 1)]
    assert all(len(r.history) == 3 for r in results)


def test_overwriting_removes_what_a_run_wrote_and_nothing_else(tmp_path):
    go(directory=tmp_path, rounds=5)
    (tmp_path / "package.json").write_text("{}")
    go(directory=tmp_path, rounds=5, seed=9, overwrite=True)
    assert (tmp_path / "package.json").exists()


def test_a_metric_cannot_take_the_name_of_a_cost():
    with pytest.raises(ValueError, match="a metric cannot be called exchanges"):
        go(evaluate=[rk.metrics.OfSolution(lambda x, y: {"exchanges": x[0]})])


@pytest.mark.slow
def test_numpy_settings_are_told_apart(tmp_path):
    go(rk.FedNest(outer_lr=np.float32(0.05), inner_lr=0.1), directory=tmp_path, rounds=1)
    with pytest.raises(ValueError, match="another algorithm"):
        go(rk.FedNest(outer_lr=np.float32(0.01), inner_lr=0.1), directory=tmp_path, rounds=1)


def test_a_start_with_a_function_in_it_says_what_to_do():
    zoo = rk.zoo.scalar_bilevel()
    start = ({"w": zoo.start[0], "activation": np.tanh}, zoo.start[1])
    with pytest.raises(TypeError, match=r"x\['activation'\], tanh.*equinox.partition"):
        rk.run(
            rk.FedNest(outer_lr=0.1, inner_lr=0.1),
            zoo.problem,
            rk.Population.stacked(zoo.data),
            start,
            rounds=1,
        )

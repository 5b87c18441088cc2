"""The command as a user meets it: what it says, what it writes, its exit code."""

import contextlib
import io
import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from unittest import mock

import pytest

import rookery as rk
from rookery.cli import demo, entry
from rookery.cli.main import main
from rookery.experiment import config
from rookery.report.comparison import Comparison, Curve
from rookery.report.statistics import interval
from rookery.report.tables import plus_minus
from rookery.runner.batch_loop import BatchLoop
from rookery.runner.history import History

SMALL = """
title = "small"
[data]
name = "digits"
holdout = 200
[partition]
name = "shards"
clients = 6
[task]
name = "hyper_representation"
hidden = 6
[algorithm]
name = "FedNest"
outer_lr = 0.05
inner_lr = 0.05
clients = 3
batch_size = 8
ihgp = { name = "FedIHGPSum", terms = 2, lipschitz = 4.0 }
[run]
rounds = 4
seeds = [0, 1]
evaluate_every = 2
[tune]
metric = "holdout_accuracy"
goal = "max"
unseen = "accuracy"
rounds = 2
[tune.grid]
"algorithm.outer_lr" = [0.01, 0.05]
"algorithm.inner_lr" = [0.05]
[plot]
target = 0.05
"""


@dataclass
class Done:
    """What a command has said, and its exit code."""

    returncode: int
    stdout: str
    stderr: str


def rookery(*arguments, cwd, **environment):
    """The command in this process: a fresh one would spend its time on imports."""
    out, err, code = io.StringIO(), io.StringIO(), 0
    with (
        contextlib.chdir(cwd),
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
        mock.patch.dict(os.environ, {"COLUMNS": "200", **environment}),
    ):
        try:
            main([str(argument) for argument in arguments])
        except SystemExit as ended:
            code = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
    return Done(code, out.getvalue(), err.getvalue())


@pytest.fixture(scope="module")
def tuned_and_run(tmp_path_factory):
    """A folder in which an experiment was tuned and run."""
    folder = tmp_path_factory.mktemp("tuned_and_run")
    (folder / "small.toml").write_text(SMALL)
    early = rookery("run", "small.toml", cwd=folder)
    assert early.returncode == 2
    assert "rookery tune small.toml" in " ".join(early.stderr.split())
    tuned = rookery("tune", "small.toml", cwd=folder)
    assert tuned.returncode == 0, tuned.stderr
    ran = rookery("run", "small.toml", "--out", "out", cwd=folder)
    assert ran.returncode == 0, ran.stderr
    return folder, tuned.stdout, ran.stdout


@pytest.mark.slow
def test_tune_writes_the_grid_and_the_choice(tuned_and_run):
    folder, said, _ = tuned_and_run
    kept = json.loads((folder / "small.tuning.json").read_text())["curves"]["FedNest"]
    assert len(kept["tried"]) == 2
    best = max(kept["tried"], key=lambda t: t["mean"])
    assert kept["choice"] == best["setting"]
    assert f"{best['mean']:.5g}" in said


def test_run_writes_runs_results_picture_and_page(tuned_and_run):
    folder, _, said = tuned_and_run
    assert "reached" in said  # the table of costs to the target
    assert (folder / "out" / "curves.png").stat().st_size > 10_000
    assert "<html" in (folder / "out" / "report.html").read_text()
    results = json.loads((folder / "out" / "results.json").read_text())
    assert set(results["curves"]["FedNest"]) == {"0", "1"}
    assert results["curves"]["FedNest"]["0"]["round"] == [0, 2, 4]
    choice = json.loads((folder / "small.tuning.json").read_text())["curves"]["FedNest"]["choice"]
    config = json.loads((folder / "out" / "FedNest" / "seed-0" / "config.json").read_text())
    assert config["run"]["algorithm"]["outer_lr"] == choice["algorithm.outer_lr"]


def test_the_same_command_again_goes_on_and_ends_with_the_same_numbers(tuned_and_run):
    folder, _, _ = tuned_and_run
    before = (folder / "out" / "results.json").read_text()
    again = rookery("run", "small.toml", "--out", "out", cwd=folder)
    assert again.returncode == 0
    assert "Resuming from round 4" in again.stdout
    assert (folder / "out" / "results.json").read_text() == before


@pytest.mark.slow
def test_what_is_set_by_hand_goes_over_what_was_chosen(tuned_and_run):
    folder, _, _ = tuned_and_run
    by_hand = ("--set", "algorithm.outer_lr=0.3", "run.rounds=1", "--set", "run.seeds=[0]")
    done = rookery("run", "small.toml", "--out", "by-hand", *by_hand, cwd=folder)
    assert done.returncode == 0, done.stderr
    config = json.loads((folder / "by-hand" / "FedNest" / "seed-0" / "config.json").read_text())
    assert config["run"]["algorithm"]["outer_lr"] == 0.3


def test_a_choice_made_for_other_settings_is_refused(tuned_and_run):
    folder, _, _ = tuned_and_run
    (folder / "other.toml").write_text(SMALL.replace("hidden = 6", "hidden = 7"))
    (folder / "other.tuning.json").write_text((folder / "small.tuning.json").read_text())
    done = rookery("run", "other.toml", cwd=folder)
    assert done.returncode == 2
    assert "was made for other settings" in " ".join(done.stderr.split())


def test_report_reads_runs(tuned_and_run):
    folder, _, _ = tuned_and_run
    done = rookery("report", "out", "-o", "page.html", "--latex", "--markdown", cwd=folder)
    assert done.returncode == 0, done.stderr
    assert "FedNest" in (folder / "page.html").read_text()
    last = json.loads((folder / "out" / "results.json").read_text())["curves"]["FedNest"]
    value = plus_minus(interval([last[seed]["holdout_accuracy"][-1] for seed in "01"]))
    assert " ± " in value and value in done.stdout
    tex, md = ((folder / f"tables.{suffix}").read_text() for suffix in ("tex", "md"))
    assert f"| {value} |" in md and "**small" in md
    assert f"& ${value.replace('±', chr(92) + 'pm')}$ &" in tex and "holdout\\_accuracy" in tex


def test_a_file_says_when_to_stop_and_what_to_keep(tuned_and_run):
    folder, _, _ = tuned_and_run
    rule = '{name = "Target", metric = "holdout_accuracy", at_least = 0.0}'  # met by the start
    settings = ("--set", f"run.stop={rule}", "run.keep=best:holdout_accuracy:max", "run.seeds=[0]")
    done = rookery("run", "small.toml", "--out", "stopped", *settings, cwd=folder)
    assert done.returncode == 0, done.stderr
    run = folder / "stopped" / "FedNest" / "seed-0"
    summary = json.loads((run / "summary.json").read_text())
    assert (summary["status"], summary["rounds"]) == ("stopped", 0)
    assert summary["message"].startswith("Target: holdout_accuracy is ")
    assert summary["best"]["value"] == summary["last"]["holdout_accuracy"]
    names = {path.name for path in run.glob("*.safetensors")}
    assert names == {"solution.safetensors", "best.safetensors"}
    wrong = rookery(
        "run", "small.toml", "--out", "o", "--set", "run.keep=best:f:max", cwd=folder
    )  # fmt: skip
    assert wrong.returncode == 2 and "unknown metric in keep 'f'" in wrong.stderr


def test_show_tells_the_cost_and_a_run_agrees(tuned_and_run):
    folder, _, _ = tuned_and_run
    shown = rookery("show", "small.toml", cwd=folder)
    assert shown.returncode == 0, shown.stderr
    T, N, rounds = 1, 2, 4
    costs = shown.stdout.split("cost of a round")[1]
    row = next(line for line in costs.splitlines() if "│ FedNest" in line)
    cells = [cell.strip() for cell in row.strip("│").split("│")]
    assert cells[1] == str(2 * T + N + 3)
    results = json.loads((folder / "out" / "results.json").read_text())
    run = results["curves"]["FedNest"]["0"]
    assert run["exchanges"][-1] == rounds * (2 * T + N + 3)
    assert float(cells[3]) == pytest.approx(run["bytes_up"][-1] / rounds / 1e6, rel=1e-5)


def test_list_is_short_and_a_filter_tells_more(tuned_and_run):
    folder, _, _ = tuned_and_run
    names = json.loads(rookery("list", "--json", cwd=folder).stdout)
    assert "FedNest" in names["algorithm"]
    assert "mnist" in names["data"]
    short = rookery("list", cwd=folder, COLUMNS="80").stdout
    assert "FedNest" in short and len(short.splitlines()) < 60
    tasks = rookery("list", "tasks", cwd=folder).stdout
    assert names["task"]["quadratic"] in tasks and "SCGD" not in tasks
    matching = rookery("list", "fed*", cwd=folder).stdout
    assert names["algorithm"]["FedNest"] in matching and "SCGD" not in matching
    nothing = rookery("list", "Nothing*", cwd=folder)
    assert nothing.returncode == 2 and "Nothing*" in nothing.stderr


def test_data_shows_who_holds_what(tuned_and_run):
    folder, _, _ = tuned_and_run
    done = rookery("data", "small.toml", "--out", "who.png", cwd=folder)
    assert done.returncode == 0, done.stderr
    lines = [line for line in done.stdout.splitlines() if line.startswith((" client ", " all"))]
    rows = {line.rsplit(None, 12)[0].strip(): line.split()[-12:] for line in lines}
    assert len([name for name in rows if name[-1].isdigit()]) == 6
    train, validation, *labels = map(int, rows["all"])
    assert train + validation == sum(labels) == 1437 - 200
    assert (folder / "who.png").read_bytes().startswith(b"\x89PNG")


def test_help_teaches(tuned_and_run):
    folder, _, _ = tuned_and_run
    for command in ("demo", "run", "compare", "tune", "show", "data", "report", "list"):
        text = rookery(command, "--help", cwd=folder)
        assert text.returncode == 0
        assert len(text.stdout) > 200


def test_version(tuned_and_run):
    folder, _, _ = tuned_and_run
    assert rookery("--version", cwd=folder).stdout == f"rookery {rk.__version__}\n"


def test_run_says_which_tuned_values_it_uses_and_tune_warns_of_an_edge(tuned_and_run):
    folder, tuned, ran = tuned_and_run
    kept = json.loads((folder / "small.tuning.json").read_text())["curves"]["FedNest"]["choice"]
    assert "Tuned values from small.tuning.json" in ran
    line = next(line for line in ran.splitlines() if line.startswith("  FedNest:"))
    for key, value in kept.items():
        assert f"{key} = {value}" in line
    warnings = [line for line in tuned.splitlines() if line.startswith("Warning:")]
    assert len(warnings) == 1  # a grid of one value has no edge
    assert "algorithm.outer_lr" in warnings[0] and "[0.01, 0.05]" in warnings[0]


def test_tune_records_an_unseen_metric_and_gives_the_regret(tuned_and_run):
    folder, tuned, _ = tuned_and_run
    kept = json.loads((folder / "small.tuning.json").read_text())["curves"]["FedNest"]
    means = {str(one["setting"]): fmean(one["unseen"]) for one in kept["tried"]}
    assert all(len(one["unseen"]) == 2 for one in kept["tried"])  # one per seed
    regret = max(means.values()) - means[str(kept["choice"])]
    assert kept["regret"] == pytest.approx(regret, abs=1e-12)
    assert f"FedNest: regret {regret:.3g}," in tuned


def test_the_unseen_metric_cannot_be_the_one_that_chooses(tmp_path):
    path = tmp_path / "small.toml"
    path.write_text(SMALL.replace('unseen = "accuracy"', 'unseen = "holdout_accuracy"'))
    with pytest.raises(ValueError, match="unseen in"):
        config.load(path)


OWN = '''
import jax.numpy as jnp
import numpy as np
import rookery as rk
from rookery.tasks.task import Task

class Slow(rk.AbstractAlgorithm):
    """Gradient descent with a step of its own."""
    lr: float

    def check(self, problem, n_clients):
        """Anything goes."""

    def init(self, problem, x):
        return x

    def round(self, fed, problem, state, key):
        cohort = fed.sample(rk.participation.Everyone(), key)
        (x,) = (fed.broadcast(cohort, state),)
        return state - self.lr * fed.mean(fed.map(gradient, x, key=key, problem=problem))

    def solution(self, state):
        return (state,)

def gradient(client, x, *, problem):
    return problem.gradient(x, client.draw("train", None, client.key))

def centre(*, clients: int = 3):
    """The mean of the clients' points."""
    zoo = rk.zoo.quadratic_losses(n_clients=clients, size=2, rows=1, dtype=np.float32)
    def size(x):
        return {"size": jnp.linalg.norm(x)}
    population = rk.Population.stacked(zoo.data)
    return Task(zoo.problem, population, lambda seed: zoo.start, (rk.metrics.OfSolution(size),))
'''
OWN_FILE = """
title = "own"
[task]
name = "own_cli_module:centre"
clients = 4
[algorithm]
name = "own_cli_module:Slow"
lr = 0.1
[curves.one]
[curves.two]
algorithm = { lr = 0.2 }
[run]
rounds = 2
evaluate_every = 1
[tune]
metric = "size"
goal = "min"
[tune.grid]
"algorithm.lr" = [0.01, 0.1, 0.3]
"""


@pytest.mark.slow
def test_a_file_with_the_users_own_task_and_algorithm(tmp_path):
    (tmp_path / "own_cli_module.py").write_text(OWN)
    (tmp_path / "own.toml").write_text(OWN_FILE)
    shown = rookery("show", "own.toml", cwd=tmp_path)
    assert shown.returncode == 0, shown.stderr
    assert "Not tuned yet" in shown.stdout
    differing = next(
        line for line in shown.stdout.splitlines() if "algorithm.lr" in line and "│" in line
    )
    assert [cell.strip() for cell in differing.strip("│").split("│")] == [
        "algorithm.lr",
        "0.1",
        "0.2",
    ]
    for command in (["tune"], ["run", "--out", "a"], ["compare", "--out", "b"]):
        done = rookery(command[0], "own.toml", *command[1:], cwd=tmp_path)
        assert done.returncode == 0, done.stderr
    for out in "ab":
        results = json.loads((tmp_path / out / "results.json").read_text())
        assert set(results["curves"]) == {"one", "two"}


def test_the_command_is_a_program(tmp_path):
    command = [sys.executable, "-m", "rookery.cli.entry", "run", "nothing.toml"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=300)
    assert done.returncode == 2
    assert "nothing.toml" in done.stderr and "Traceback" not in done.stderr


def test_control_c_while_the_command_is_loaded_is_no_traceback(monkeypatch):
    class Interrupted:
        def find_spec(self, name, *_):
            if name == "rookery.cli.main":
                raise KeyboardInterrupt

    monkeypatch.delitem(sys.modules, "rookery.cli.main")
    monkeypatch.setattr(sys, "meta_path", [Interrupted(), *sys.meta_path])
    with pytest.raises(SystemExit) as ended:
        entry.main()
    assert ended.value.code == 130


def test_control_c_while_an_extension_is_loaded_is_no_traceback(monkeypatch):
    class Loading:
        def find_spec(self, name, *_):
            if name == "rookery.cli.main":  # jaxlib, in here, has an error of its own for it
                handlers.append(signal.getsignal(signal.SIGINT))
                raise KeyboardInterrupt

    handlers = []
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        monkeypatch.delitem(sys.modules, "rookery.cli.main")
        monkeypatch.setattr(sys, "meta_path", [Loading(), *sys.meta_path])
        with pytest.raises(SystemExit):
            entry.main()
        assert handlers == [signal.SIG_DFL]  # the process ends, and nothing is raised
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    finally:
        signal.signal(signal.SIGINT, before)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("run", "nothing.toml"), "there is no file nothing.toml"),
        (("run", "small.toml", "--set", "algorithm.outer_rl=1"), "key in [algorithm] 'outer_rl'"),
        (("run", "small.toml", "--set", "run.rounds=ten"), "run.rounds must be a whole number"),
        (("run", "small.toml", "--set", "run.seeds=3"), "run.seeds must be a list"),
        (
            ("run", "small.toml", "--set", "task.hidden=x"),
            "hidden in [task] must be a whole number",
        ),
        (("run", "small.toml", "--set", "algorithm.outer_lr=big"), "must be a number, got 'big'"),
        (("run", "small.toml", "--set", "algorithm.clients=99"), "there are only 6"),
        (("report", "empty"), "empty holds no run"),
        (("report", "old"), "was written in format 0 (rookery 0.0.1)"),
        (("report", "broken"), "config.json is damaged"),
    ],
)
def test_mistakes_end_with_a_clear_message_and_no_traceback(tuned_and_run, arguments, message):
    folder, _, _ = tuned_and_run
    (folder / "empty").mkdir(exist_ok=True)
    for name, text in (
        ("old", json.dumps({"format": 0, "versions": {"rookery": "0.0.1"}})),
        ("broken", "{"),
    ):
        (folder / name).mkdir(exist_ok=True)
        (folder / name / "config.json").write_text(text)
    done = rookery(*arguments, cwd=folder)
    assert done.returncode == 2, done.stdout + done.stderr
    assert message in " ".join(done.stderr.split())
    assert "Traceback" not in done.stderr


def test_a_missing_data_set_says_what_to_get(tuned_and_run):
    folder, _, _ = tuned_and_run
    (folder / "mnist.toml").write_text(SMALL.replace('"digits"', '"mnist"').split("[tune]")[0])
    done = rookery("run", "mnist.toml", cwd=folder, ROOKERY_DATA=str(folder / "empty"))
    assert done.returncode == 2
    said = " ".join(done.stderr.split())
    assert "train-images-idx3-ubyte.gz" in said and "yann.lecun.com" in said


@pytest.mark.slow
def test_compare_joins_files_and_varies_a_setting(tuned_and_run):
    folder, _, _ = tuned_and_run
    plain = SMALL.split("[tune]")[0]
    (folder / "sum.toml").write_text(plain + '[curves."sum"]\n')
    (folder / "random.toml").write_text(
        plain + '[curves."random"]\nalgorithm = { ihgp = { name = "FedIHGP", terms = 2, '
        "lipschitz = 4.0 } }\n"
    )
    done = rookery(
        "compare", "sum.toml", "random.toml", "--vary", "algorithm.outer_lr=[0.01,0.05]",
        "--set", "run.rounds=2", "--out", "both", cwd=folder,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    results = json.loads((folder / "both" / "results.json").read_text())
    assert set(results["curves"]) == {
        f"{name}, outer_lr={lr}" for name in ("sum", "random") for lr in (0.01, 0.05)
    }


def test_a_metric_that_nobody_measures_is_found_out_before_the_runs(tuned_and_run):
    folder, _, _ = tuned_and_run
    (folder / "typo.toml").write_text(SMALL.replace('"holdout_accuracy"', '"holdout_acuracy"'))
    done = rookery("tune", "typo.toml", cwd=folder)
    assert done.returncode == 2
    said = " ".join(done.stderr.split())
    assert "metric 'holdout_acuracy'. Did you mean 'holdout_accuracy'?" in said
    assert "round 1" not in done.stdout


@pytest.mark.slow
def test_a_comparison_says_how_often_it_compiled_and_keeps_its_precision(tmp_path):
    file = Path(__file__).parent.parent / "examples" / "compare_quadratic.toml"
    done = rookery(
        "compare", file, "--vary", "algorithm.outer_lr=[0.05,0.1,0.2]",
        "--set", "run.rounds=2", "run.seeds=[0,1]", "--out", "out", cwd=tmp_path,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "Runs: 12. Programs compiled for them: 2." in done.stdout
    assert "seed by seed" in done.stdout
    config = json.loads((tmp_path / "out/FedNest-outer_lr=0.05/seed-0/config.json").read_text())
    assert config["run"]["float"] == "float64"


@pytest.mark.slow
def test_control_c_leaves_a_run_that_goes_on(tuned_and_run):
    folder, _, _ = tuned_and_run
    (folder / "long.toml").write_text(
        SMALL.split("[tune]")[0].replace("rounds = 4", "rounds = 1000000")
    )
    command = [sys.executable, "-m", "rookery.cli.main", "run", "long.toml", "--out", "long"]
    for expected in ("Interrupted after round", "Resuming from round"):
        running = subprocess.Popen(command, cwd=folder, text=True, stdout=subprocess.PIPE)
        newest = 0
        for _ in range(600):  # until it has a checkpoint that it had not before
            time.sleep(0.1)
            kept = [
                int(p.stem.split("-")[-1]) for p in (folder / "long").rglob("round-*.safetensors")
            ]
            newest, before = max(kept, default=0), newest
            if newest > before > 0:
                break
        running.send_signal(signal.SIGINT)
        said, _ = running.communicate(timeout=60)
        assert running.returncode == 130
        assert expected in said


def test_the_demo_files_are_valid():
    files = sorted((Path(rk.__file__).parent / "demo").glob("*.toml"))
    assert [len(config.load(file).curves) for file in files] == [5, 3]


def runs_of(name, *ends, cost=100.0):
    """A curve whose seeds go straight from 0 to these accuracies."""

    def row(i, end):
        costs = {"exchanges": i * cost, "seconds": i * cost, "bytes_up": i * 1e6, "bytes_down": 0}
        return {"round": i, **costs, "accuracy": i * end}

    return Curve(name, [History([row(0, end), row(1, end)]) for end in ends])


def test_the_demo_says_what_was_seen():
    naive = runs_of("naive", 0.3, 0.4)
    good, slow = runs_of("A", 0.9, 0.8, cost=9), runs_of("B", 0.8, 0.8, cost=900)
    first, second = demo.naive_against_nested(Comparison("", [naive, good, slow]))
    assert "alone ends at 0.35" in first and "methods at 0.8 (B) to 0.85 ± 0.64 (A)." in first
    assert "are 8.5 ± 6.4 with A, 900 with B; A needs the fewest megabytes in all, 0.94" in second
    (third,) = demo.waiting(Comparison("", [good, slow]))
    assert "virtual seconds; B, the fastest method that waits, needs 900, 105.9 times as" in third
    late = runs_of("C", 0.8, 0.7)
    _, second = demo.naive_against_nested(Comparison("", [naive, good, late]))
    assert "8.5 ± 6.4 with A (C: not reached with every seed); A" in second


def test_the_demo_says_when_a_claim_does_not_hold():
    naive, bad, good = runs_of("naive", 0.5, 0.5), runs_of("C", 0.4, 0.7), runs_of("B", 0.7, 0.7)
    first, second = demo.naive_against_nested(Comparison("", [naive, bad, good]))
    assert "only 1 of 2 nested methods did better" in first and "does not hold" in first
    assert "No nested method reached 0.8" in second
    fast, late = runs_of("A", 0.8, cost=9), runs_of("B", 0.8, cost=90)
    assert "so not waiting did not pay" in demo.waiting(Comparison("", [late, fast]))[0]
    assert "did not reach 0.8" in demo.waiting(Comparison("", [bad, fast]))[0]
    assert "no method that waits did" in demo.waiting(Comparison("", [fast, bad]))[0]


GRID = """
[task]
name = "quadratic"
n_clients = 2
rows = 2
[algorithm]
name = "SOBA"
outer_lr = 0.1
inner_lr = 0.1
[run]
rounds = 4
batch = 1
[tune]
metric = "distance_x"
goal = "min"
[tune.grid]
"algorithm.outer_lr" = [0.01, 0.02, 0.04]
"""


def test_a_grid_goes_on_after_an_interruption(tmp_path):
    (tmp_path / "grid.toml").write_text(GRID)
    assert rookery("tune", "grid.toml", "--out", "whole", cwd=tmp_path).returncode == 0
    content = (tmp_path / "grid.tuning.json").read_text()
    begun, run = [], BatchLoop.run

    def interrupted(loop):
        begun.append(loop)
        if len(begun) == 3:
            raise KeyboardInterrupt
        run(loop)

    with mock.patch.object(BatchLoop, "run", interrupted):
        stopped = rookery("tune", "grid.toml", "--out", "parts", cwd=tmp_path)
    assert stopped.returncode == 130
    again = rookery("tune", "grid.toml", "--out", "parts", cwd=tmp_path)
    assert again.stdout.count("Resuming from round 4") == 2  # the third has yet to begin
    assert (tmp_path / "grid.tuning.json").read_text() == content
    known = rookery("tune", "grid.toml", "--out", "parts", cwd=tmp_path)  # nothing is left to run
    assert "holds 3 results" in known.stdout and "Resuming" not in known.stdout
    assert (tmp_path / "grid.tuning.json").read_text() == content


def test_a_choice_at_the_edge_of_a_grid_of_lists_is_told(tmp_path):
    lists = '"algorithm.inner_lr" = [[0.1, 0.05], [0.2, 0.05]]'
    algorithm = GRID.replace("SOBA", "FedMSA").replace("rounds = 4", "rounds = 1")
    (tmp_path / "lists.toml").write_text(
        algorithm[: algorithm.index('"algorithm.outer_lr"')] + lists
    )
    said = rookery("tune", "lists.toml", cwd=tmp_path)
    assert said.returncode == 0, said.stderr
    warned = [line for line in said.stdout.splitlines() if line.startswith("Warning:")]
    assert len(warned) == 1 and "at the edge" in warned[0] and "add lists by hand" in warned[0]


RANGES = """
[tune]
metric = "holdout_accuracy"
goal = "max"
rounds = 9
trials = 3
seeds = [5]
confirm = [6]
[tune.grid]
"algorithm.outer_lr" = { low = 0.01, high = 1.0 }
"""


@pytest.mark.slow
def test_ranges_are_searched_resumed_and_shown(tmp_path):
    start = SMALL[: SMALL.index("[tune]")]
    (tmp_path / "ranges.toml").write_text(start + RANGES)
    first = rookery("tune", "ranges.toml", cwd=tmp_path)
    assert first.returncode == 0, first.stderr
    content = json.loads((tmp_path / "ranges.tuning.json").read_text())
    tried = content["curves"]["FedNest"]["tried"]
    assert sorted(one["share"] for one in tried) == [pytest.approx(1 / 9)] * 2 + [1.0]
    assert [len(one["values"]) for one in tried if one["share"] == 1] == [2]
    assert "powers of ten: outer_lr" in " ".join(first.stdout.split())
    again = rookery("tune", "ranges.toml", cwd=tmp_path)  # nothing is left to run
    assert again.returncode == 0 and "setting 0" not in again.stdout
    assert json.loads((tmp_path / "ranges.tuning.json").read_text()) == content
    ran = rookery("run", "ranges.toml", cwd=tmp_path)
    assert ran.returncode == 0, ran.stderr
    page = (tmp_path / "runs" / f"{tmp_path.name}-ranges" / "report.html").read_text()
    assert "data:image/svg+xml" in page and "powers of ten: outer_lr" in page


@pytest.mark.slow
def test_a_file_without_tune_is_tuned_over_its_step_sizes(tmp_path):
    (tmp_path / "bare.toml").write_text(
        SMALL[: SMALL.index("[tune]")].replace("rounds = 4", "rounds = 2")
    )
    refused = rookery("tune", "bare.toml", cwd=tmp_path)
    assert refused.returncode == 2 and "--metric" in refused.stderr
    done = rookery(
        "tune", "bare.toml", "--metric", "holdout_accuracy", "--goal", "max", cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr
    table = done.stdout[done.stdout.index("[tune]") :]
    (tmp_path / "bare.toml").write_text((tmp_path / "bare.toml").read_text() + table)
    shown = rookery("show", "bare.toml", cwd=tmp_path)
    assert shown.returncode == 0 and "Tuned values from" in shown.stdout, shown.stderr

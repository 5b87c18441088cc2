"""Experiment files with mistakes of every kind end in a plain error or are valid."""

import random
import tomllib
from pathlib import Path

import pytest
from mutations import ODD_VALUES, as_toml, mutated_tables, mutated_text
from outcome import outcome_of

from rookery.cli import main as cli
from rookery.program.ledger import Ledger

ROOT = Path(__file__).parents[2]
FILES = [
    ROOT / name
    for name in (
        "examples/compare_quadratic.toml",
        "rookery/demo/one_digit_each.toml",
        "rookery/demo/slow_clients.toml",
        "experiments/privacy_cost/config.toml",
        "experiments/fednest_fig4/sampled.toml",
        "experiments/fedmsa_fig3/config.toml",
        "experiments/comfedl_fig4/config.toml",
        "experiments/theory_linear_speedup/config.toml",
    )
]


@pytest.fixture
def show(monkeypatch, tmp_path, wrong_types, users_settings):
    """``rookery show`` on a text, without its costs, which would take most of the time."""
    monkeypatch.setattr(cli, "trace_costs", lambda *_: [Ledger()])
    path = tmp_path / "config.toml"

    def run(content: bytes):
        path.write_bytes(content)
        return outcome_of("show", path)

    return run


def mutant(seed: int) -> bytes:
    chance, text = random.Random(seed), FILES[seed % len(FILES)].read_text()
    if chance.random() < 0.3:
        return mutated_text(text, chance)
    return as_toml(mutated_tables(tomllib.loads(text), chance)).encode()


def check(show, seeds) -> tuple[int, int]:
    """Run some mutants; returns how many were refused, and how many were valid."""
    codes = []
    for seed in seeds:
        got = show(mutant(seed))
        codes.append(got.code)
        assert got.code in (0, 2), f"mutant {seed}: {got.said}"
        assert got.is_deliberate, f"mutant {seed}: {got.said}"
    return codes.count(2), codes.count(0)


def test_mutated_files_are_refused_plainly_or_valid(show):
    refused, valid = check(show, range(64))
    assert refused > 30 and valid > 2


@pytest.mark.slow
def test_thousands_of_mutated_files_are_refused_plainly_or_valid(show):
    refused, valid = check(show, range(2500))
    assert refused > 1500 and valid > 100


@pytest.mark.parametrize(
    "line, complaint",
    [
        ("curves = {}", "is empty"),
        ("curves = 3", "curves must be a table, got 3"),
        ('claim = ["a"]', "claim must be a text"),
        ("plot = { metrics = 1 }", "plot.metrics must be a list"),
        ("title = " + "9" * 5000, "is not valid TOML"),
        ("title = " + "[" * 5000, "is not valid TOML|inside one another"),
    ],
)
def test_what_is_wrong_is_said(show, line, complaint):
    first = FILES[0].read_text()
    tables = {k: v for k, v in tomllib.loads(first).items() if not line.startswith(k)}
    got = show(f"{line}\n{as_toml(tables)}".encode())
    assert got.code == 2
    assert any(each in " ".join(got.said.split()) for each in complaint.split("|")), got.said


@pytest.mark.parametrize("label", ["..", ".", "...", "-", "results.json"])
def test_a_curve_cannot_be_written_outside_the_folder(tmp_path, label):
    tables = tomllib.loads(FILES[0].read_text())
    tables["curves"] = {label: {}}
    path = tmp_path / "in" / "config.toml"
    path.parent.mkdir()
    path.write_text(as_toml(tables))
    got = outcome_of("run", path, "--out", tmp_path / "in" / "out", "--set", "run.rounds=1")
    assert got.code == 2 and got.is_deliberate and "Rename it" in " ".join(got.said.split())
    assert sorted(p.name for p in tmp_path.iterdir()) == ["in"]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # of NumPy: a user sees it, and no error
def test_every_setting_of_every_task_refuses_odd_values_plainly(show):
    tables = tomllib.loads(FILES[0].read_text())
    for key in ("n_clients", "x_size", "rows", "seed", "dtype", "noise", "heterogeneity"):
        for value in ODD_VALUES:
            changed = {**tables, "task": {**tables["task"], key: value}}
            got = show(as_toml(changed).encode())
            assert got.code in (0, 2), f"{key} = {value}: {got.said}"

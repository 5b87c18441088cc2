"""The committed experiments: they can be made again, and choices at an edge are explained."""

import json
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import pytest

from experiments.redraw import SCRIPTS, command
from rookery.experiment import config
from rookery.experiment.execution import run_experiment
from rookery.experiment.task_loader import TaskLoader
from rookery.runner.search import at_ends

FOLDER = Path(__file__).parents[1] / "experiments"
LEDGER = ("round", "exchanges", "messages", "bytes_down", "bytes_up", "gradients")


class Again(NamedTuple):
    """A committed experiment to run from scratch, or the part of it that is cheap.

    Attributes:
        file: the experiment.
        results: what it gave.
        curves: which of its curves; None for all.
        rounds: how many rounds; None for all. The committed values up to there are compared.
        tolerance: of the metrics, relative; other machines and versions round otherwise.
        module: a package that carries the data.
    """

    file: str
    results: str
    curves: tuple[str, ...] | None
    rounds: int | None
    tolerance: float
    module: str | None = None


AGAIN = [
    Again("fedmsa_fig2/config.toml", "fedmsa_fig2/results.json", None, None, 1e-6),
    Again(
        "privacy_cost/plain.toml",
        "privacy_cost/plain.results.json",
        ("FedAvg", "FedBiO"),
        30,
        1e-3,
        "sklearn",
    ),
]


@pytest.mark.slow
@pytest.mark.parametrize("again", AGAIN, ids=lambda one: one.file)
def test_an_experiment_from_scratch_gives_the_committed_results(again, tmp_path):
    if again.module is not None:
        pytest.importorskip(again.module)
    overrides = [] if again.rounds is None else [f"run.rounds={again.rounds}"]
    experiment = config.load(FOLDER / again.file, overrides, "required")
    if again.curves is not None:
        shown = [curve for curve in experiment.curves if curve.label in again.curves]
        experiment = replace(experiment, curves=shown)
    comparison = run_experiment(experiment, tmp_path, TaskLoader())
    committed = json.loads((FOLDER / again.results).read_text())["curves"]
    assert len(comparison.curves) == len(again.curves or committed)
    for curve in comparison.curves:
        assert [str(seed) for seed in curve.seeds] == list(committed[curve.name])
        for history, before in zip(curve.runs, committed[curve.name].values(), strict=True):
            n = len(history["round"])
            assert history["round"][-1] == (again.rounds or before["round"][-1])
            for name, values in before.items():
                found = [float(value) for value in history[name]]
                tolerance = 0 if name in LEDGER else again.tolerance
                assert found == pytest.approx(values[:n], rel=tolerance, abs=0), name


def test_every_choice_at_an_edge_has_a_sentence():
    files = sorted(FOLDER.glob("*/*.tuning.json"))
    assert len(files) > 15
    for file in files:
        content = json.loads(file.read_text())
        for label, curve in content["curves"].items():
            space: dict[str, list] = {key: [] for key in curve["choice"]}
            for trial in curve["tried"]:
                for key, value in trial["setting"].items():
                    if value not in space[key]:
                        space[key].append(value)
            ends = at_ends(space, curve["choice"])
            said = "**Choices at an edge" in (file.parent / "README.md").read_text()
            assert said or not ends, f"{file}: {label} chose {ends}"


def test_every_committed_picture_can_be_drawn_again():
    pictures = {f"{p.parent.name}/{p.name}": p for p in FOLDER.glob("*/*.png")}
    assert set(SCRIPTS) <= set(pictures)
    for name, picture in pictures.items():
        if name in SCRIPTS:
            script = SCRIPTS[name].split()[0]
            assert script == "-m" or (picture.parent / script).is_file()
        else:
            assert "curves" in json.loads(Path(command(picture)[1]).read_text())

"""The colours of algorithms: fixed, and different within a committed figure."""

import json
from pathlib import Path

import pytest

from rookery.experiment.registry import ALGORITHMS
from rookery.report import palette
from rookery.report.comparison import Comparison, Curve
from rookery.report.read import read_comparison
from rookery.runner.history import History

EXPERIMENTS = Path(__file__).parents[2] / "experiments"
FILES = [
    file
    for file in sorted(EXPERIMENTS.glob("*/*results.json"))
    if "curves" in json.loads(file.read_text())
]


def comparison(**algorithms):
    """By the name of a curve, the name of its algorithm."""
    curves = [Curve(name, [History([{"round": 0}])]) for name in algorithms]
    settings = {name: {"algorithm": {"name": own}} for name, own in algorithms.items()}
    return Comparison("t", curves, settings)


def test_the_table_has_every_algorithm_with_a_colour_of_the_palette():
    assert set(palette.ALGORITHMS) == set(ALGORITHMS) - set(palette.GENERAL)
    assert set(palette.ALGORITHMS.values()) == set(range(len(palette.COLOURS)))


def test_an_algorithm_has_the_same_colour_in_two_comparisons():
    one = comparison(a="AFBO", b="ADBO", c="FedNest").styles()
    other = comparison(d="FedNest", e="FedMSA").styles()
    assert one[2] == other[0] == (palette.ALGORITHMS["FedNest"], 0)


def test_strokes_tell_curves_of_one_colour_apart_and_one_algorithm_has_many_colours():
    assert comparison(a="FedNest", b="FedMSA", c="FedNest", d="AFBO").styles() == [
        (0, 0), (1, 0), (0, 1), (1, 1),
    ]  # fmt: skip
    assert comparison(a="FedNest", b="FedNest").styles() == [(0, 0), (1, 0)]


def test_unknown_algorithms_have_the_colours_that_are_left():
    own = comparison(a="mine:A", b="FedNest", c="mine:B", d="mine:A", e="FedMSA")
    assert own.styles() == [(2, 0), (0, 0), (3, 0), (2, 1), (1, 0)]
    many = comparison(**{f"c{i}": f"mine:A{i}" for i in range(8)})
    assert many.styles()[6:] == [(6, 0), (0, 1)]
    full = palette.styles([*palette.ALGORITHMS, "mine"])  # no colour is left
    assert full[-1][0] == 0 and full[-1][1] > 0


@pytest.mark.parametrize(
    ("curve", "algorithm", "found"),
    [
        ("tau = 1", {"name": "FedNest"}, "FedNest"),
        ("FedNest, iid", {"name": "Nested"}, "FedNest"),
        ("not federated", {"name": "Nested"}, "not federated"),
        ("AFL", {}, "AFLBilevel"),
        ("SCAFFOLD, option I", {"name": "mine:Variant"}, "Scaffold"),
        ("LFedNest_SVRG (2)", {}, "LFedNestSVRG"),
        ("ComFedL-MAML, rho = 0.1", {}, "ComFedL"),
        ("clipped", {"name": "Private", "algorithm": {"name": "SOBA"}}, "SOBA"),
        ("optimistic GDA", {}, "OptimisticGDA"),
    ],
)
def test_an_algorithm_is_known_by_its_settings_or_by_the_name_of_its_curve(curve, algorithm, found):
    assert palette.algorithm_of(curve, {"algorithm": algorithm}) == found


def test_a_script_that_asks_for_an_unknown_colour_is_told():
    assert palette.colour_of("FedNest_SGD") == palette.COLOURS[3]
    with pytest.raises(ValueError, match="no algorithm 'mine'"):
        palette.colour_of("mine")


@pytest.mark.parametrize("file", FILES, ids=lambda file: f"{file.parent.name}/{file.name}")
def test_algorithms_of_a_committed_figure_differ_in_colour(file):
    read = read_comparison([file])
    own = [palette.algorithm_of(c.name, read.settings.get(c.name, {})) for c in read.curves]
    styles = read.styles()
    assert len(set(styles)) == len(styles)
    colours = {style[0] for style in styles}
    assert len(colours) >= min(len(set(own)), len(palette.COLOURS))
    assert read.metrics

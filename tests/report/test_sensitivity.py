"""What is said of a grid: over how many powers of ten a setting is good."""

from matplotlib.colors import to_hex

from rookery.report.palette import colour_of
from rookery.report.sensitivity import draw_sensitivity, sentences


def tried(name, results):
    return [{"setting": {name: v}, "values": [m], "mean": m} for v, m in results.items()]


def said(name, results, choice):
    curve = {"choice": {name: choice}, "tried": tried(name, results)}
    (sentence,) = sentences({"metric": "accuracy", "goal": "max", "curves": {"FedAvg": curve}})
    return sentence


def test_powers_of_ten_of_good_settings():
    assert "lr 2.0" in said("lr", {0.01: 0.9, 0.1: 0.91, 1.0: 0.9, 10.0: 0.2}, 0.1)


def test_points_have_the_colours_of_their_algorithms():
    grid = {"choice": {"lr": 0.1}, "tried": tried("lr", {0.01: 0.8, 0.1: 0.9})}
    curves = {"SOBA": grid, "ours": grid}
    tuning = {"metric": "accuracy/worst", "goal": "max", "curves": curves}
    settings = {"ours": {"algorithm": {"name": "FedNest"}}}
    first, second = draw_sensitivity(tuning, settings).axes
    colours = [to_hex(panel.lines[0].get_color()).upper() for panel in (first, second)]
    assert colours == [colour_of("SOBA"), colour_of("FedNest")]
    assert first.get_ylabel() == "SOBA\naccuracy, worst client"


def test_a_momentum_of_zero_has_no_power_of_ten():
    assert "momentum 0.3" in said("momentum", {0.0: 0.9, 0.45: 0.9, 0.9: 0.9}, 0.0)
    assert "momentum 0.0" in said("momentum", {0.0: 0.9, 0.45: 0.1, 0.9: 0.1}, 0.0)

"""What is said of a grid: over how many powers of ten a setting is good."""

from rookery.report.sensitivity import sentences


def tried(name, results):
    return [{"setting": {name: v}, "values": [m], "mean": m} for v, m in results.items()]


def said(name, results, choice):
    curve = {"choice": {name: choice}, "tried": tried(name, results)}
    (sentence,) = sentences({"metric": "accuracy", "goal": "max", "curves": {"FedAvg": curve}})
    return sentence


def test_powers_of_ten_of_good_settings():
    assert "lr 2.0" in said("lr", {0.01: 0.9, 0.1: 0.91, 1.0: 0.9, 10.0: 0.2}, 0.1)


def test_a_momentum_of_zero_has_no_power_of_ten():
    assert "momentum 0.3" in said("momentum", {0.0: 0.9, 0.45: 0.9, 0.9: 0.9}, 0.0)
    assert "momentum 0.0" in said("momentum", {0.0: 0.9, 0.45: 0.1, 0.9: 0.1}, 0.0)

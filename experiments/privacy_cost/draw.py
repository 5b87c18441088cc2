"""The picture of all methods: FedNest with L = 10, the others as config.toml has them.

python experiments/privacy_cost/draw.py      # reads the two files of results, writes curves.png
"""

from dataclasses import replace
from pathlib import Path

from rookery.report.curves import plot
from rookery.report.read import read_comparison

HERE = Path(__file__).parent


def main() -> None:
    """Accuracy against epsilon and exchanges."""
    comparison = read_comparison([HERE / "results.json"])
    (fednest,) = read_comparison([HERE / "fednest.results.json"]).curves
    curves = [fednest if curve.name == fednest.name else curve for curve in comparison.curves]
    plot(replace(comparison, curves=curves), HERE / "curves.png", axes=("epsilon", "exchanges"))


if __name__ == "__main__":
    main()

"""The picture of all methods: FedNest with L = 10, the others as config.toml has them.

python experiments/privacy_cost/draw.py      # reads the two files of results, writes curves.png
"""

import json
from pathlib import Path

from rookery.report.comparison import Comparison, Curve
from rookery.report.curves import plot
from rookery.runner.history import History

HERE = Path(__file__).parent


def curves_of(name: str) -> dict[str, Curve]:
    """The curves of a file of results."""
    content = json.loads((HERE / name).read_text())["curves"]
    found = {}
    for label, seeds in content.items():
        runs = [
            History([dict(zip(run, row, strict=True)) for row in zip(*run.values(), strict=True)])
            for run in seeds.values()
        ]
        found[label] = Curve(label, runs, [int(seed) for seed in seeds])
    return found


def main() -> None:
    """Accuracy against epsilon and exchanges."""
    curves = curves_of("results.json") | curves_of("fednest.results.json")
    title = "What privacy costs: accuracy against epsilon, 300 clients with four digits each"
    comparison = Comparison(title, list(curves.values()))
    plot(comparison, HERE / "curves.png", axes=("epsilon", "exchanges"))


if __name__ == "__main__":
    main()

"""The tables and the picture: AFBO without hops beside the curves of figures 1 to 6.

Reads the committed results of the figures and those of figN.toml here, prints the tables of the
README in Markdown and writes curves.png:

    python experiments/afbo_default/draw.py
"""

import json
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

from rookery.report.comparison import Band
from rookery.report.curves import draw_band, save_figure, tidy
from rookery.report.palette import ALGORITHMS
from rookery.report.statistics import interval

HERE = Path(__file__).parent
FIGURES = {
    1: "iid hyper-cleaning, outer delays",
    2: "non-iid hyper-cleaning, outer delays",
    3: "Covertype, outer delays",
    4: "Covertype, five stragglers",
    5: "non-iid hyper-cleaning, both loops",
    6: "Covertype, both loops",
}
LEVELS = {1: 0.85, 2: 0.8, 3: 0.68, 4: 0.68, 5: 0.7, 6: 0.65}
OURS = ("AFBO without hops", "without hops, no steps given")
RIVALS = ("FedBuff on x, y, v",)
"""What else is run here."""
LOOKS = {
    "AFBO without hops": ("AFBO", 0),
    "without hops, no steps given": ("AFBO", 1),
    "AFBO with hops": ("AFBO", 2),
    "with hops, waiting for all": ("AFBO", 3),
    "with hops, ten inner steps": ("AFBO", 3),
    "FedBuff on x, y, v": ("FedBuff", 0),
}
"""The algorithm whose colour a curve has, if its name does not say so, and the stroke."""
WHERE = {"with hops, waiting for all": "Fig. 4", "with hops, ten inner steps": "Figs. 5, 6"}
"""Curves with the same look, which never meet."""


def main() -> None:
    """Print and draw."""
    found = {number: curves(number) for number in FIGURES}
    every = dict.fromkeys(label for each in found.values() for label in each)
    labels = [*(label for label in every if label not in OURS + RIVALS), *RIVALS, *OURS]
    table("accuracy", labels, found, lambda runs, _: accuracy(runs))
    table("seconds to", labels, found, lambda runs, number: seconds(runs, LEVELS[number]))
    table("rounds, exchanges", labels, found, lambda runs, _: work(runs))
    draw(labels, found)


def curves(number: int) -> dict[str, list[dict]]:
    """The runs of every algorithm, one for each seed, those of the figure first."""
    files = (HERE.parent / f"afbo_fig{number}" / "results.json", HERE / f"fig{number}.results.json")
    read = [json.loads(file.read_text())["curves"] for file in files if file.exists()]
    named = {
        "AFBO": "AFBO with hops",
        "AFBO, waiting for all": "with hops, waiting for all",
        "AFBO, ten inner steps": "with hops, ten inner steps",
        "no hops": "AFBO without hops",
        "no hops, no steps given": "without hops, no steps given",
    }
    return {
        named.get(label, label): list(seeds.values())
        for each in read
        for label, seeds in each.items()
    }


def table(title: str, labels: list[str], found: dict, cell) -> None:
    """One row for each algorithm, one column for each figure."""
    print(f"\n| {title} | " + " | ".join(f"Fig. {number}" for number in found) + " |")
    print("|---" * (1 + len(found)) + "|")
    for label in labels:
        cells = [cell(each[label], n) if label in each else "" for n, each in found.items()]
        print(f"| {label} | " + " | ".join(cells) + " |")


def accuracy(runs: list[dict]) -> str:
    """The last one, mean and 95 % interval; how many seeds broke down, if any."""
    last = np.array(
        [np.nan if run["accuracy"][-1] is None else run["accuracy"][-1] for run in runs]
    )
    if broken := int(np.sum(~np.isfinite(last))):
        return f"{broken} of {len(runs)} seeds broke down"
    return f"{last.mean():.3f} ± {interval(last).high - last.mean():.3f}"


def seconds(runs: list[dict], level: float) -> str:
    """Mean seconds to the first evaluation at or above an accuracy that all seeds reach."""
    times = []
    for run in runs:
        above = np.flatnonzero(np.array(run["accuracy"], float) >= level)
        if not len(above):
            return "-"
        times.append(run["seconds"][above[0]])
    return f"{np.mean(times):.0f}"


def work(runs: list[dict]) -> str:
    """Rounds and exchanges of the run in the middle."""
    rounds, exchanges = (
        np.median([run[key][-1] for run in runs]) for key in ("round", "exchanges")
    )
    return f"{rounds:.0f}, {exchanges:.0f}"


def draw(labels: list[str], found: dict) -> None:
    """One panel for each figure, with 95 % intervals over seeds."""
    figure = Figure(figsize=(9, 6.8), layout="constrained")
    panels = figure.subplots(2, 3)
    for panel, (number, each) in zip(panels.flat, found.items(), strict=True):
        top = 0.0
        for label, runs in each.items():
            end = min(float(run["seconds"][-1]) for run in runs)
            at = np.linspace(0, end, 80)
            over = interval(
                np.stack(
                    [np.interp(at, r["seconds"], np.array(r["accuracy"], float)) for r in runs]
                )
            )
            algorithm, stroke = LOOKS.get(label, (label, 0))
            band = Band(at, over.mean, over.low, over.high)
            draw_band(panel, band, (ALGORITHMS[algorithm], stroke), label)
            top = max(top, np.nanmax(over.mean))
        low = 0.6 if "Covertype" in FIGURES[number] else 0.4
        high = top + 0.1 * (top - low)
        panel.set_title(f"Fig. {number}: " + FIGURES[number].replace(", ", ",\n"), fontsize=10)
        panel.set(xlabel="virtual seconds", ylim=(low, high))
        tidy(panel)
    for row in panels:
        row[0].set_ylabel("test accuracy")
    lines = {line.get_label(): line for panel in panels.flat for line in panel.get_lines()}
    figure.legend(
        [lines[label] for label in labels],
        [f"{label} ({WHERE[label]})" if label in WHERE else label for label in labels],
        loc="outside upper left",
        ncols=3,
        frameon=False,
        handlelength=2.6,
    )
    save_figure(figure, HERE / "curves.png", 160)


if __name__ == "__main__":
    main()

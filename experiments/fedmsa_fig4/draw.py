"""One column per q, against exchanges and against bytes, and the longer runs, from the results.

python experiments/fedmsa_fig4/draw.py
"""

from collections.abc import Sequence
from pathlib import Path

from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from rookery.report.comparison import AXES, metric_values
from rookery.report.curves import save_figure, tidy
from rookery.report.palette import COLOURS, colour_of
from rookery.report.read import read_comparison

HERE = Path(__file__).parent
METRIC = "balanced_accuracy"


def main() -> None:
    """Draw both choices of steps, and the longer runs."""
    draw_levels(["tuned.results.json", "tuned_fednest.results.json"], "tuned.png")
    draw_levels(["results.json"], "curves.png")
    draw_longer()


def draw_levels(results: Sequence[str], picture: str) -> None:
    """Draw every seed at every q; the two algorithms meet in one panel."""
    curves = {c.name: c for c in read_comparison([HERE / name for name in results]).curves}
    levels = list(dict.fromkeys(name.split(", ")[1] for name in curves))
    names = list(dict.fromkeys(name.split(", ")[0] for name in curves))
    figure = Figure(figsize=(8, 5.6), layout="constrained")
    panels = figure.subplots(2, len(levels), sharey=True, sharex="row")
    for row, axis in zip(panels, ("exchanges", "megabytes_up"), strict=True):
        for panel, level in zip(row, levels, strict=True):
            for name in names:
                curve = curves.get(f"{name}, {level}")
                style = ":" if "within" in name else "-"
                for run in [] if curve is None else curve.runs:
                    at = AXES[axis].values(run)[1:]
                    accuracy = metric_values(run, METRIC)[1:]
                    colour = colour_of(name.split()[0])
                    panel.plot(at, accuracy, color=colour, ls=style, lw=1, label=name)
            panel.set(xlabel=AXES[axis].label, ylim=(0.5, 0.95))
            if axis == "exchanges":  # a round of FedNest has fifteen times as many
                panel.set_xscale("log")
            else:
                panel.xaxis.set_major_locator(MaxNLocator(3))
            tidy(panel)
        row[0].set_ylabel("balanced accuracy")
    for panel, level in zip(panels[0], levels, strict=True):
        panel.set_title(level, fontsize=10)
    handles, labels = panels[0][-1].get_legend_handles_labels()
    entries = dict(zip(labels, handles, strict=True))
    figure.legend(
        entries.values(), entries.keys(), loc="outside upper left", ncols=3, frameon=False,
        title="Every seed", alignment="left",
    )  # fmt: skip
    save_figure(figure, HERE / picture, 160)


def draw_longer() -> None:
    """Every seed of longer.toml: an interval would hide that single runs break down."""
    (curve,) = read_comparison([HERE / "longer.results.json"]).curves
    figure = Figure(figsize=(8, 4), layout="constrained")
    panel = figure.subplots()
    for colour, seed, run in zip(COLOURS, curve.seeds, curve.runs, strict=False):
        panel.plot(run["exchanges"], metric_values(run, METRIC), color=colour, label=f"seed {seed}")
    panel.set(xlabel="exchanges", ylabel="balanced accuracy")
    panel.axhline(0.9, color="#999999", lw=0.8, ls="--")
    tidy(panel)
    figure.legend(
        loc="outside upper left", ncols=3, frameon=False, title="FedMSA, q = 0.3, 300 rounds",
        alignment="left",
    )  # fmt: skip
    save_figure(figure, HERE / "longer.png", 160)


if __name__ == "__main__":
    main()

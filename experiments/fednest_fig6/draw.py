"""One panel per outer step size, from results.json.

python experiments/fednest_fig6/draw.py
"""

from pathlib import Path

from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from rookery.report.comparison import metric_values
from rookery.report.curves import save_figure, tidy
from rookery.report.palette import colour_of
from rookery.report.read import read_comparison

HERE = Path(__file__).parent


def main() -> None:
    """Draw every seed; twenty curves in one panel could not be told apart."""
    curves = {curve.name: curve for curve in read_comparison([HERE / "results.json"]).curves}
    sizes = list(dict.fromkeys(name.split(", ")[1] for name in curves))
    names = list(dict.fromkeys(name.split(", ")[0] for name in curves))
    figure = Figure(figsize=(8, 5.2), layout="constrained")
    *panels, last = figure.subplots(2, 3, sharey=True, sharex=True).flat
    for panel, size in zip(panels, sizes, strict=True):
        for name in names:
            for k, run in enumerate(curves[f"{name}, {size}"].runs):
                accuracy = metric_values(run, "accuracy")
                label = None if k else name
                panel.plot(run["exchanges"], accuracy, color=colour_of(name), lw=1, label=label)
        panel.set_title(size, fontsize=10)
        panel.set(ylim=(0, 1))
        panel.xaxis.set_major_locator(MaxNLocator(4))
        tidy(panel)
    for panel in panels[2:]:  # nothing is below the third
        panel.set_xlabel("exchanges")
        panel.tick_params(labelbottom=True)
    for panel in panels[::3]:
        panel.set_ylabel("accuracy")
    last.axis("off")
    last.legend(
        *panels[0].get_legend_handles_labels(), loc="center", frameon=False, title="Every seed",
        alignment="left",
    )  # fmt: skip
    save_figure(figure, HERE / "curves.png", 160)


if __name__ == "__main__":
    main()

"""AFBO as it is by default in the settings of its figures 1 to 6, beside the curves of those.

Data, clients, clocks, seeds and evaluations are those of the figures' own files; the curves of the
other algorithms are read from their committed results. AFBO without hops runs twice: with no step
given, and with the steps that tuning has chosen for AFBO with hops. Writes results.json and
curves.png beside itself; curves that the first has are not run again:

    ROOKERY_DATA=<folder with the data> python experiments/afbo_default/measure.py
"""

import copy
import json
import time
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np

from rookery.experiment import config
from rookery.experiment.execution import run_curves
from rookery.experiment.task_loader import TaskLoader
from rookery.report.curves import COLOURS
from rookery.report.statistics import interval

HERE = Path(__file__).parent
FIGURES = {
    "afbo_fig1": "Fig. 1: iid hyper-cleaning, outer delays",
    "afbo_fig2": "Fig. 2: non-iid",
    "afbo_fig3": "Fig. 3: Covertype, outer delays",
    "afbo_fig4": "Fig. 4: five stragglers",
    "afbo_fig5": "Fig. 5: non-iid, delays in both loops",
    "afbo_fig6": "Fig. 6: Covertype, both loops",
}
OURS = ("no hops, no steps given", "no hops, steps of AFBO with hops")
INKS = ("#000000", "#000000")
"""The colour of our own two, which no figure has."""
KEPT = ("inner_steps", "wait_for", "inner_staleness", "outer_staleness", "batch_size")
LEVELS = {"hyper_cleaning": (0.7, 0.8, 0.85), "regularisation": (0.65, 0.67, 0.68)}


def main() -> None:
    """Measure what results.json does not have yet, and draw."""
    file, loader = HERE / "results.json", TaskLoader()
    found = json.loads(file.read_text()) if file.exists() else {}
    for name, title in FIGURES.items():
        began = time.monotonic()
        experiment = config.load(HERE.parent / name, choices="no")
        committed = json.loads((HERE.parent / name / "results.json").read_text())["curves"]
        part = found.setdefault(name, {"title": title, "curves": {}, "drawn": {}})
        part["steps"] = {OURS[0]: {}, OURS[1]: steps_of_hops(name)}
        missing = [
            without_hops(experiment, label, steps)
            for label, steps in part["steps"].items()
            if label not in part["curves"]
        ]
        every = {label: list(seeds.values()) for label, seeds in committed.items()}
        if missing:
            every |= histories(experiment, missing, experiment.seeds, loader)
        task = experiment.curves[0].tables["task"]["name"]
        for label, runs in every.items():
            part["curves"][label] = summary(runs, LEVELS[task])
            part["drawn"][label] = thinned(runs)
        print(title, f"{time.monotonic() - began:.0f} s", flush=True)
        for label, row in part["curves"].items():
            print(f"  {label:40}", row, flush=True)
    file.write_text(json.dumps(found, allow_nan=False) + "\n")
    draw(found)


def steps_of_hops(name: str) -> dict[str, float]:
    """The steps that a figure's tuning has chosen for AFBO with hops."""
    settings = json.loads((HERE.parent / name / "results.json").read_text())["settings"]
    return {key: settings["AFBO"]["algorithm"][key] for key in ("outer_lr", "inner_lr")}


def without_hops(experiment, label: str, steps: dict) -> config.CurveSettings:
    """The figure's AFBO with its running adjoint; without steps, these are found."""
    curve = next(curve for curve in experiment.curves if curve.label == "AFBO")
    tables = copy.deepcopy(curve.tables)
    kept = {key: tables["algorithm"][key] for key in KEPT}
    tables["algorithm"] = {"name": "AFBO", **kept, **steps}
    return config.build_curve(label, tables, curve.folder)


def histories(experiment, curves, seeds, loader: TaskLoader) -> dict[str, list]:
    """What the runs of every curve have measured, one for each seed."""
    settings = {key: experiment.run[key] for key in ("rounds", "seconds", "evaluate_every")}
    settings |= {"batch": 1}  # a sweep in one program would compute for all clients in every poll
    done = run_curves(curves, settings, seeds, loader, metrics=["accuracy"])
    return {label: [result.history for result in results] for label, results in done.items()}


def summary(runs: list, levels: tuple[float, ...]) -> dict:
    """The last accuracy, and the mean seconds to some; None unless every seed reaches it.

    There is no accuracy of a curve of which a run broke down.
    """
    last = np.array([run["accuracy"][-1] for run in runs])
    is_whole = bool(np.isfinite(last).all())
    reach = float(interval(last).high - last.mean()) if is_whole else 0.0
    return {
        "accuracy": round(float(last.mean()), 4) if is_whole else None,
        "plus or minus": round(reach, 4) if is_whole else None,
        "seconds to": {str(level): first_time(runs, level) for level in levels},
        "rounds": int(np.median([run["round"][-1] for run in runs])),
        "exchanges": int(np.median([run["exchanges"][-1] for run in runs])),
    }


def first_time(runs: list, level: float) -> float | None:
    """Mean seconds to the first evaluation at or above an accuracy."""
    times = []
    for run in runs:
        above = np.flatnonzero(np.asarray(run["accuracy"]) >= level)
        if not len(above):
            return None
        times.append(run["seconds"][above[0]])
    return round(float(np.mean(times)), 1)


def thinned(runs: list, points: int = 60) -> dict:
    """Mean accuracy over seeds at equal times, and half its 95 % interval, for the picture."""
    end = min(float(run["seconds"][-1]) for run in runs)
    at = np.linspace(0, end, points)
    each = [np.interp(at, np.asarray(r["seconds"]), np.asarray(r["accuracy"])) for r in runs]
    over_seeds = interval(np.stack(each))
    kept = np.isfinite(over_seeds.mean)
    return {
        "seconds": at[kept].round(2).tolist(),
        "accuracy": over_seeds.mean[kept].round(4).tolist(),
        "plus or minus": (over_seeds.high - over_seeds.mean)[kept].round(4).tolist(),
    }


def draw(found: dict) -> None:
    """One panel for each figure, with 95 % intervals over seeds.

    Curves of the figures have the colours that they have there. Of the two runs without hops the
    results keep the interval of the last accuracy alone: a bar at the end of the curve.
    """
    figure, panels = plt.subplots(2, 3, figsize=(14, 8.4), layout="constrained")
    labels = [*dict.fromkeys(label for part in found.values() for label in part["drawn"])]
    theirs = [label for label in labels if label not in OURS]
    labels = [*theirs, *OURS]
    colours = dict(zip(theirs, COLOURS, strict=False)) | dict(zip(OURS, INKS, strict=True))
    for panel, part in zip(panels.flat, found.values(), strict=True):
        top = 0.0
        for label, curve in part["drawn"].items():
            at, mean = np.array(curve["seconds"]), np.array(curve["accuracy"])
            style = {"color": colours[label]}
            is_bold, dash = label in OURS, "--" if label == OURS[0] else "-"
            panel.plot(at, mean, lw=2.2 if is_bold else 1.2, ls=dash, label=label, **style)
            top = max(top, mean.max())
            if (reach := curve.get("plus or minus")) is not None:
                panel.fill_between(at, mean - reach, mean + reach, alpha=0.12, lw=0, **style)
            elif (reach := part["curves"][label]["plus or minus"]) is not None:
                panel.errorbar(at[-1], mean[-1], reach, capsize=4, lw=1.5, **style)
        low = 0.4 if "Covertype" not in part["title"] and "stragglers" not in part["title"] else 0.6
        high = top + 0.1 * (top - low)  # the interval of a curve that broke down may be wider
        panel.set(title=part["title"], xlabel="virtual seconds", ylim=(low, high))
        panel.grid(alpha=0.3)
    panels[0, 0].set_ylabel("test accuracy")
    panels[1, 0].set_ylabel("test accuracy")
    lines = {line.get_label(): line for panel in panels.flat for line in panel.get_lines()}
    figure.legend(
        [lines[label] for label in labels], labels, loc="outside upper center", ncols=5, fontsize=10
    )
    figure.savefig(HERE / "curves.png", dpi=120)


if __name__ == "__main__":
    main()

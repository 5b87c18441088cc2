"""A comparison written as a folder: numbers, figures and a page. Its tables printed."""

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from rich.console import Console
from rich.table import Table

from rookery.report.asynchrony import has_traces, plot_traces
from rookery.report.comparison import Comparison
from rookery.report.curves import plot
from rookery.report.page import render
from rookery.report.tables import client_table, cost_table, final_table, paired_table
from rookery.runner.atomic_file import replace_file
from rookery.runner.history import History, to_json

RESULTS = "results.json"
"""The file with all measurements that a report folder holds."""
PAGE, FIGURE, TRACES = "report.html", "curves.png", "asynchrony.png"
FILES = (RESULTS, PAGE, FIGURE, TRACES)
"""What a report folder holds."""
PICTURES = (".png", ".svg", ".pdf")
"""Suffixes of figures."""


@dataclass(frozen=True)
class PlotSettings:
    """What a report shows first: the ``[plot]`` table of an experiment.

    Attributes:
        metrics: rows of the figure, the first one also that of the page and of paired tests. By
            default accuracy if it was measured, otherwise the first metric.
        axes: columns of the figure, names out of ``AXES``; the first one also that of the page.
        log_x: logarithmic costs.
        log_y: logarithmic metrics.
        target: a value of the first metric whose cost is shown.
        higher_is_better: whether the first metric has to rise; by default what its evaluation
            knows, or what its name says (accuracy, auc; loss, error, distance).

    >>> PlotSettings(metrics=["loss"], target=0.1).axes
    ('exchanges', 'megabytes')
    """

    metrics: Sequence[str] = ()
    axes: Sequence[str] = ("exchanges", "megabytes")
    log_x: bool = False
    log_y: bool = False
    target: float | None = None
    higher_is_better: bool | None = None

    def for_metrics(self, metrics: Sequence[str]) -> "PlotSettings":
        """The same with other metrics; the target stays with the metric that it was set for.

        >>> PlotSettings(metrics=["loss"], target=0.1).for_metrics(["accuracy"]).target is None
        True
        """
        if list(metrics[:1]) == list(self.metrics[:1]):
            return replace(self, metrics=metrics)
        return replace(self, metrics=metrics, target=None, higher_is_better=None)

    def resolved(self, comparison: Comparison) -> "PlotSettings":
        """The settings with the defaults for a comparison filled in.

        If nothing was measured there are no metrics, and nothing to be better in. A target needs to
        know which way its metric is better.
        """
        measured = comparison.metrics
        default = ["accuracy"] if "accuracy" in measured else measured[:1]
        metrics = [comparison.require_metric(m) for m in self.metrics] or default
        better = self.higher_is_better
        if better is None and metrics and (goal := comparison.goal_of(metrics[0])) is not None:
            better = goal == "max"
        if better is None and metrics and self.target is not None:
            raise ValueError(
                f"target: is more of {metrics[0]!r} better, or less? Write higher_is_better = true "
                "or false in [plot] (--higher-is-better)."
            )
        return replace(self, metrics=metrics, higher_is_better=better)


def write_report(
    comparison: Comparison, out: Path, settings: PlotSettings | None = None
) -> tuple[Path, Path | None]:
    """Write the numbers, the page and the figures into a folder.

    Returns the page, and the figure of the curves: None if the runs have measured nothing.

    >>> import tempfile
    >>> from rookery.report.comparison import Curve
    >>> rows = [{"round": r, **dict.fromkeys(["exchanges", "bytes_up", "bytes_down", "gradients",
    ...     "hessian_vectors", "seconds"], r), "loss": 1 / (1 + r)} for r in (0, 10)]
    >>> comparison = Comparison("Losses", [Curve("FedAvg", [History(rows)])])
    >>> [path.name for path in write_report(comparison, Path(tempfile.mkdtemp()))]
    ['report.html', 'curves.png']
    """
    declared = settings or PlotSettings()
    settings = declared.resolved(comparison)
    out.mkdir(parents=True, exist_ok=True)
    page, figure = out / PAGE, out / FIGURE
    write_results(comparison, out / RESULTS, declared)
    write_only_page(comparison, page, settings)
    if has_traces(comparison):
        plot_traces(comparison, out / TRACES)
    if not settings.metrics:
        return page, None
    write_only_figure(comparison, figure, settings)
    return page, figure


def write_only_figure(comparison: Comparison, path: Path, settings: PlotSettings) -> None:
    """Write the figure of the curves with the chosen metrics and axes."""
    settings = settings.resolved(comparison)
    plot(
        comparison,
        path,
        metrics=settings.metrics,
        axes=settings.axes,
        log_x=settings.log_x,
        log_y=settings.log_y,
    )


def write_only_page(comparison: Comparison, path: Path, settings: PlotSettings) -> None:
    """Write the page with the settings chosen at first.

    >>> import tempfile
    >>> from rookery.report.comparison import Curve
    >>> rows = [{"round": 0, **dict.fromkeys(["exchanges", "bytes_up", "bytes_down", "gradients",
    ...     "hessian_vectors", "seconds"], 0), "loss": 1.0}]
    >>> page = Path(tempfile.mkdtemp(), "page.html")
    >>> write_only_page(Comparison("Losses", [Curve("A", [History(rows)])]), page, PlotSettings())
    >>> page.exists()
    True
    """
    settings = settings.resolved(comparison)
    text = render(
        comparison,
        metric=next(iter(settings.metrics), None),
        axis=settings.axes[0],
        target=settings.target,
        higher_is_better=settings.higher_is_better,
        log_x=settings.log_x,
        log_y=settings.log_y,
    )
    replace_file(path, text.encode())


def report_tables(
    comparison: Comparison,
    settings: PlotSettings,
    *,
    most_metrics: int = 4,
    is_paired: bool = True,
) -> list[Table]:
    """Final values and costs, values of each client, paired tests, and the cost of a target.

    The first table shows the metrics of the settings, otherwise the first few that were measured.
    Without ``is_paired`` there are no paired tests.
    """
    chosen = settings.resolved(comparison)
    others = [] if settings.metrics else [m for m in comparison.metrics if m not in chosen.metrics]
    tables = [final_table(comparison, metrics=[*chosen.metrics, *others][:most_metrics])]
    tables += [client_table(comparison, name) for name in comparison.client_metrics[:most_metrics]]
    if not chosen.metrics:
        return tables
    metric, better = chosen.metrics[0], chosen.higher_is_better
    if is_paired and sum(metric in curve.metrics for curve in comparison.curves) > 1:
        tables.append(paired_table(comparison, metric, higher_is_better=better))
    if chosen.target is not None and better is not None:
        tables.append(cost_table(comparison, metric, chosen.target, higher_is_better=better))
    return tables


def print_tables(
    comparison: Comparison, settings: PlotSettings, console: Console, *, is_paired: bool = True
) -> None:
    """Print the tables of a report, with paired tests or without."""
    console.print(*report_tables(comparison, settings, is_paired=is_paired), sep="\n")
    if not comparison.metrics:
        console.print("The runs have measured no metric; pass evaluate= to rookery.run.")


def write_tables(
    comparison: Comparison, settings: PlotSettings, path: Path, as_text: Callable[[Table], str]
) -> None:
    """Write the tables of a report into one file, with ``markdown`` or ``latex``."""
    texts = [as_text(table) for table in report_tables(comparison, settings)]
    path.parent.mkdir(parents=True, exist_ok=True)
    replace_file(path, "\n".join(texts).encode())


def write_results(comparison: Comparison, path: Path, settings: PlotSettings | None = None) -> None:
    """Write all measurements with their settings and versions as one JSON file."""
    content = {
        "title": comparison.title,
        "claim": comparison.notes,
        "versions": comparison.versions,
        "settings": comparison.settings,
        "plot": {} if settings is None else asdict(settings),
        "curves": {
            curve.name: {
                str(seed): _columns(history)
                for seed, history in zip(curve.seeds, curve.runs, strict=True)
            }
            for curve in comparison.curves
        },
        "per_client": {
            curve.name: {
                str(seed): [to_json(row) for row in clients]
                for seed, clients in zip(curve.seeds, curve.per_client, strict=True)
            }
            for curve in comparison.curves
            if curve.per_client
        },
        "diverged": {c.name: dict(c.diverged) for c in comparison.curves if c.diverged},
        "traces": {c.name: dict(c.traces) for c in comparison.curves if c.traces},
        "goals": dict(comparison.goals),
        **({"tuning": to_json(comparison.tuning)} if comparison.tuning else {}),
        **({"holdings": comparison.holdings} if comparison.holdings else {}),
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    replace_file(path, (json.dumps(content) + "\n").encode())


def _columns(history: History) -> dict[str, list[object]]:
    """By name, the values at all evaluations: a quarter of the size of a list of rows."""
    rows = [to_json(row) for row in history]
    return {name: [row.get(name) for row in rows] for name in history.names}

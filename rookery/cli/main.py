"""The ``rookery`` command."""

import importlib.resources
import json
import os
import sys
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import tyro
from rich.console import Console
from rich.table import Table

from rookery.cli import flare
from rookery.clients import datasets
from rookery.experiment import config, execution, registry
from rookery.remote.study import JobFailed
from rookery.report.comparison import Comparison, joined
from rookery.report.read import read_plot_settings, read_runs
from rookery.report.write import PlotSettings, print_tables, write_only_page, write_report

app = tyro.extras.SubcommandApp()
Overrides = Annotated[
    tuple[tuple[str, ...], ...],
    tyro.conf.arg(name="set", metavar="TABLE.KEY=VALUE"),
    tyro.conf.UseAppendAction,  # said twice, all of it counts
]


@app.command(name="demo")
def demo(out: Path = Path("runs/demo"), rounds: int = 150, data: Path | None = None) -> None:
    """Compare three settings of FedNest on 5,000 real digits of 20 clients. About a minute.

    Args:
        out: where the runs, the picture and the page are written.
        rounds: how many rounds every setting runs.
        data: folder with data files; the digits come with the installed packages.
    """
    file = Path(str(importlib.resources.files("rookery") / "demo.toml"))
    experiment = config.load(file, [f"run.rounds={rounds}"])
    Console().print(f"[bold]{experiment.title}[/]\n{experiment.claim.strip()}\n")
    _run([experiment], out, data, overwrite=True)


@app.command(name="run")
def run(
    experiment: tyro.conf.Positional[Path],
    out: Path | None = None,
    data: Path | None = None,
    overrides: Overrides = (),
    overwrite: bool = False,
) -> None:
    """Run an experiment: every curve of a TOML file with every seed, then the report.

    An interrupted experiment goes on where it stopped when the same command is given again.

    Args:
        experiment: the file, or a folder with a config.toml, as experiments/fednest_fig2a.
        out: where runs and report are written; runs/<experiment> if not given.
        data: folder with data files; otherwise ROOKERY_DATA, then the user's cache.
        overrides: settings that replace the file's, as algorithm.outer_lr=0.02 run.rounds=50.
        overwrite: begin afresh in a directory that holds another run.
    """
    _run([config.load(experiment, sum(overrides, ()))], out, data, overwrite)


@app.command(name="compare")
def compare(
    experiments: tyro.conf.Positional[tuple[Path, ...]],
    vary: str | None = None,
    out: Path = Path("runs/compare"),
    data: Path | None = None,
    overrides: Overrides = (),
    overwrite: bool = False,
) -> None:
    """Run the curves of several files and compare them in one report.

    Args:
        experiments: TOML files, or folders with a config.toml.
        vary: one setting with several values, as algorithm.outer_lr=[0.01,0.02,0.05]; every curve
            is run with each of them.
        out: where runs and report are written.
        data: folder with data files; otherwise ROOKERY_DATA, then the user's cache.
        overrides: settings that replace the files', as run.seeds=[0,1,2,3,4].
        overwrite: begin afresh in a directory that holds another run.
    """
    if not experiments:
        raise ValueError("name at least one experiment file.")
    loaded = [config.load(path, sum(overrides, ())) for path in experiments]
    if vary is not None:
        loaded = [execution.varied(one, vary) for one in loaded]
    _run(loaded, out, data, overwrite)


@app.command(name="tune")
def tune(
    experiment: tyro.conf.Positional[Path],
    data: Path | None = None,
    overrides: Overrides = (),
) -> None:
    """Choose settings from the grid of an experiment's [tune] table, the same for every curve.

    The grid, all its values and the choice are written beside the file; rookery run uses them.

    Args:
        experiment: the file, or a folder with a config.toml.
        data: folder with data files; otherwise ROOKERY_DATA, then the user's cache.
        overrides: settings that replace the file's.
    """
    console = Console()
    loaded = config.load(experiment, sum(overrides, ()))
    report = execution.tune(loaded, data=data, console=console)
    metric = report["declared"]["metric"]
    table = Table("curve", "setting", f"mean {metric}", "chosen", title=loaded.title)
    for label, one in report["curves"].items():
        for tried in one["tried"]:
            mean = "diverged" if tried["mean"] is None else f"{tried['mean']:.5g}"
            is_chosen = tried["setting"] == one["choice"]
            table.add_row(label, json.dumps(tried["setting"]), mean, "yes" if is_chosen else "")
        table.add_section()
    console.print(table)
    console.print(f"Kept in {execution.write_tuning(loaded, report)}.")


@app.command(name="show")
def show(experiment: tyro.conf.Positional[Path], overrides: Overrides = ()) -> None:
    """Show an experiment before running it: the claim, the settings and what a round costs.

    Exchanges and bytes come from 20 dry rounds on rows of zeros; no data file is read. A round that
    estimates the inner problem's Lipschitz constant, as every tenth does by default, costs one
    exchange more and is counted apart.

    Args:
        experiment: the file, or a folder with a config.toml.
        overrides: settings that replace the file's.
    """
    console = Console()
    loaded = config.load(experiment, sum(overrides, ()))
    console.print(f"[bold]{loaded.title}[/]\n{loaded.claim}\n")
    console.print_json(data={"run": loaded.run, **({"tune": loaded.tune} if loaded.tune else {})})
    table = Table("curve", "exchanges", "MB down", "MB up", title="cost of a round")
    for curve in loaded.curves:
        console.print_json(data={curve.label: curve.tables})
        with loaded.in_precision():
            ledgers = execution.cost_of_rounds(curve)
        cells = (
            _spread([ledger.exchanges for ledger in ledgers]),
            _spread([ledger.bytes_down / 1e6 for ledger in ledgers]),
            _spread([ledger.bytes_up / 1e6 for ledger in ledgers]),
        )
        table.add_row(curve.label, *cells)
    console.print(table)


@app.command(name="report")
def report(
    runs: tyro.conf.Positional[tuple[Path, ...]],
    out: Annotated[Path, tyro.conf.arg(aliases=["-o"])] = Path("report"),
    title: str | None = None,
    metric: tuple[str, ...] = (),
    axes: tuple[str, ...] = (),
    target: float | None = None,
    higher_is_better: bool | None = None,
) -> None:
    """Print tables, and write a self-contained page and a figure, from runs finished or not.

    Without options it shows what the [plot] table of the runs' experiment asks for.

    Args:
        runs: run directories, or folders of them.
        out: folder for report.html and curves.png; a name ending in .html writes only the page.
        title: headline; by default that of the experiment.
        metric: metrics to draw; tables use the first. By default accuracy, or the first measured.
        axes: costs to draw against: round, exchanges, megabytes, megabytes_up, megabytes_down,
            gradients, hessian_vectors, seconds.
        target: value of the first metric; a table shows what it cost to reach it.
        higher_is_better: True or False: whether the first metric has to rise; by default a guess.
    """
    if not runs:
        raise ValueError("name at least one run directory.")
    comparison = read_runs(runs, Console(stderr=True))
    if title is not None:
        comparison = replace(comparison, title=title)
    settings = read_plot_settings(runs, comparison)
    if metric:
        settings = settings.for_metrics(metric)
    given = {"axes": axes or None, "target": target, "higher_is_better": higher_is_better}
    settings = replace(settings, **{k: v for k, v in given.items() if v is not None})
    console = Console()
    print_tables(comparison, settings, console)
    _write(comparison, out, settings, console)


@app.command(name="list")
def list_names(as_json: Annotated[bool, tyro.conf.arg(name="json")] = False) -> None:
    """List algorithms, tasks, partitions, data sets, engines and experiments by name.

    Args:
        as_json: print JSON instead of a table.
    """
    groups = {
        "algorithm": _first_lines(registry.ALGORITHMS),
        "part": _first_lines(registry.PARTS),
        "task": _first_lines(registry.TASKS),
        "partition": _first_lines(registry.PARTITIONS),
        "data": datasets.available(),
        "engine": _first_lines(registry.ENGINES),
        "experiment": _experiments(Path("experiments")),
    }
    if as_json:
        print(json.dumps(groups, indent=2))
        return
    table = Table("kind", "name", "what it is")
    for kind, names in groups.items():
        for name, text in names.items():
            table.add_row(kind, name, text)
        table.add_section()
    Console().print(table)


app.command(name="flare-simulate")(flare.simulate)
app.command(name="flare-join")(flare.join)
app.command(name="flare-submit")(flare.submit)
app.command(name="flare-stop")(flare.stop)


def _run(experiments: list[config.Experiment], out: Path | None, data, overwrite: bool) -> None:
    console = Console()
    folder = out or Path("runs") / experiments[0].name
    done = [
        execution.run_experiment(
            e, folder if len(experiments) == 1 else folder / e.name, data=data,
            overwrite=overwrite, console=console,
        )
        for e in experiments
    ]  # fmt: skip
    comparison = done[0] if len(done) == 1 else joined(done)
    settings = PlotSettings(**experiments[0].plot)
    print_tables(comparison, settings, console)
    _write(comparison, folder, settings, console)


def _write(comparison: Comparison, out: Path, settings: PlotSettings, console: Console) -> None:
    """Write the report and say where it is."""
    if out.suffix == ".html":
        out.parent.mkdir(parents=True, exist_ok=True)
        write_only_page(comparison, out, settings)
        page, figure = out, None
    else:
        page, figure = write_report(comparison, out, settings)
    console.print(f"The page: {page}", *([f"The figure: {figure}"] if figure else []), sep="\n")


def _spread(values: list) -> str:
    """One value; or the usual one and how many rounds differ; or the mean and the range."""
    counts = Counter(f"{value:,.6g}" for value in values).most_common()
    if len(counts) == 1:
        return counts[0][0]
    if len(counts) == 2:
        (usual, _), (other, n) = counts
        return f"{usual} ({other} in {n} of {len(values)} rounds)"
    mean, low, high = sum(values) / len(values), min(values), max(values)
    return f"{mean:,.4g} ({low:,.4g} to {high:,.4g})"


def _first_lines(objects: Mapping[str, Any]) -> dict[str, str]:
    return {name: (fn.__doc__ or "").strip().split("\n")[0] for name, fn in objects.items()}


def _experiments(folder: Path) -> dict[str, str]:
    return {str(path): config.load(path).title for path in sorted(folder.glob("*/*.toml"))}


def main() -> None:
    """Entry point; errors are shown without a traceback unless ROOKERY_TRACEBACK is set."""
    try:
        app.cli(
            prog="rookery",
            description=(
                "Federated nested optimisation: bilevel, minimax, compositional problems whose "
                "data stays with the clients. Start with: rookery demo"
            ),
        )
    except (ValueError, TypeError, FileNotFoundError, ModuleNotFoundError, JobFailed) as error:
        if os.environ.get("ROOKERY_TRACEBACK"):
            raise
        stderr = Console(stderr=True)
        stderr.print("[bold red]Error:[/] ", end="")
        stderr.print(str(error), markup=False, highlight=False)
        sys.exit(2)
    except KeyboardInterrupt:
        sys.exit(130)


if __name__ == "__main__":
    main()

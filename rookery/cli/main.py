"""The ``rookery`` command."""

import errno
import fnmatch
import json
import os
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import Annotated

import tyro
from rich.console import Console
from rich.table import Table

from rookery.cli import flare
from rookery.cli.audit import audit
from rookery.cli.demo import run_demo
from rookery.clients import datasets
from rookery.experiment import config, execution, registry
from rookery.experiment.costs import trace_costs
from rookery.experiment.examination import examine
from rookery.experiment.task_loader import TaskLoader
from rookery.experiment.tuning_file import (
    tuning_content,
    tuning_for_report,
    tuning_path,
    write_tuning,
)
from rookery.remote.study import JobFailed
from rookery.report import markup, sensitivity
from rookery.report.asynchrony import plot_traces
from rookery.report.comparison import Comparison, joined
from rookery.report.read import read_comparison, read_plot_settings
from rookery.report.write import (
    PICTURES,
    PlotSettings,
    print_tables,
    write_only_figure,
    write_only_page,
    write_report,
    write_tables,
)
from rookery.runner.interrupt import Terminated
from rookery.runner.search import is_list
from rookery.runner.tune import Tuning

app = tyro.extras.SubcommandApp()
Overrides = Annotated[
    tuple[tuple[str, ...], ...],
    tyro.conf.arg(name="set", metavar="TABLE.KEY=VALUE"),
    tyro.conf.UseAppendAction,  # may be repeated; values accumulate
]


@app.command(name="demo")
def demo(
    out: Path = Path("runs/demo"), rounds: int | None = None, data: Path | None = None
) -> None:
    """Solve one nested problem naively and by four methods on real digits. About a minute.

    Twenty clients hold one digit each. A second panel has four slow clients, in virtual time. The
    last lines say what was seen, computed from the results.

    Args:
        out: folder for the runs, the figures and the pages.
        rounds: the most rounds of a run; by default what the files say.
        data: folder with data files; the digits come with the installed packages.
    """
    run_demo(out, rounds, data, Console())


@app.command(name="run")
def run(
    experiment: tyro.conf.Positional[Path],
    out: Path | None = None,
    data: Path | None = None,
    overrides: Overrides = (),
    overwrite: bool = False,
) -> None:
    """Run an experiment: every curve of a TOML file with every seed, then the report.

    The same command resumes an interrupted experiment. A file with a table [tune] needs
    "rookery tune" first; the chosen values are then used and shown.

    Example: rookery run experiments/fednest_fig2a --set run.rounds=50 run.seeds=[0]

    Args:
        experiment: the file, or a folder with a config.toml.
        out: folder for the runs and the report; by default runs/EXPERIMENT.
        data: folder with data files; by default $ROOKERY_DATA, then the user's cache.
        overrides: settings that replace the file's, as algorithm.outer_lr=0.02 run.rounds=50.
        overwrite: discard the runs that the folder holds.
    """
    _run([config.load(experiment, sum(overrides, ()), "required")], out, data, overwrite)


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

    Example: rookery compare a.toml b.toml --vary algorithm.outer_lr=[0.01,0.1] --set run.rounds=50

    Args:
        experiments: TOML files, or folders with a config.toml.
        vary: one setting with several values; every curve is run with each of them.
        out: folder for the runs and the report.
        data: folder with data files; by default $ROOKERY_DATA, then the user's cache.
        overrides: settings that replace the files', as run.seeds=[0,1,2,3,4].
        overwrite: discard the runs that the folder holds.
    """
    if not experiments:
        raise ValueError("name at least one experiment file.")
    loaded = [config.load(path, sum(overrides, ()), "required") for path in experiments]
    if vary is not None:
        loaded = [one.varied(vary) for one in loaded]
    _run(loaded, out, data, overwrite)


@app.command(name="tune")
def tune(
    experiment: tyro.conf.Positional[Path],
    out: Path | None = None,
    data: Path | None = None,
    metric: str | None = None,
    goal: str | None = None,
    sampler: str | None = None,
    overrides: Overrides = (),
) -> None:
    """Choose settings from the grid or the ranges of an experiment's [tune] table.

    Every curve gets the same number of runs. A range, as { low = 0.001, high = 10.0 }, is searched
    by successive halving; a grid is run whole. A file without [tune] needs --metric: every step
    size is then searched from 0.001 to 10, and further if the best one is at an end. All trials and
    the choice are written beside the file with a picture, and "rookery run" uses them. The same
    command resumes an interrupted search. In Python, rookery.tune does the same for one algorithm.

    Args:
        experiment: the file, or a folder with a config.toml.
        out: folder for the runs; by default runs/EXPERIMENT-tuning.
        data: folder with data files; by default $ROOKERY_DATA, then the user's cache.
        metric: what decides, for a file without [tune].
        goal: max or min, for a metric that does not say it itself.
        sampler: halton spreads the settings evenly; optuna proposes them from the results so far.
        overrides: settings that replace the file's.
    """
    console, loader = Console(), TaskLoader(data)
    loaded = config.load(experiment, sum(overrides, ()))
    is_declared = loaded.tune is not None
    if not is_declared:
        if metric is None:
            raise ValueError(f"{loaded.path} has no table [tune]. Say what decides: --metric NAME")
        goal = goal or execution.goal_of(metric, loaded, loader)
        loaded = replace(loaded, tune=config.default_tuning(loaded, metric, goal))
    elif metric is not None or goal is not None:
        raise ValueError("metric and goal stand in the file's table [tune]; change them there.")
    if sampler is not None:
        loaded = replace(loaded, tune=config.with_sampler(loaded, sampler))
    folder = out or Path("runs") / f"{loaded.name}-tuning"
    tunings = execution.tune_experiment(loaded, loader, out=folder, console=console)
    content = tuning_content(loaded.tune or {}, loaded.digest, tunings)
    console.print(_tuning_table(loaded.title, tunings))
    for label, tuning in tunings.items():
        for key in tuning.widened:
            console.print(f"{label}: the range of {key} was widened.", markup=False)
        for key in tuning.at_edge:
            console.print(
                f"Warning: {label}: {key} = {tuning.setting[key]} is at the edge of its grid "
                f"{tuning.grid[key]}. A wider grid may do better.{_not_extended(tuning, key)}",
                markup=False,
            )
        if tuning.regret is not None:
            unseen = (loaded.tune or {})["unseen"]
            console.print(
                f"{label}: regret {tuning.regret:.3g}, by which the best setting for {unseen} "
                "beats the chosen one.",
                markup=False,
            )
    path = write_tuning(loaded.path, content)
    shown = tuning_for_report(content)
    for sentence in sensitivity.sentences(shown):
        console.print(sentence, markup=False, highlight=False)
    console.print(f"Written to {path}.", markup=False)
    if sensitivity.has_steps(shown):
        sensitivity.save_sensitivity(shown, path.with_suffix(".png"))
        console.print(f"The picture: {path.with_suffix('.png')}", markup=False)
    if not is_declared:
        console.print('To use the choice in "rookery run", add this table to the file:\n')
        console.print(config.tune_as_toml(loaded.tune or {}), markup=False, highlight=False)


def _not_extended(tuning: Tuning, key: str) -> str:
    is_grid_of_lists = is_list(tuning.setting[key])
    return " A grid of lists is never widened: add lists by hand." if is_grid_of_lists else ""


def _tuning_table(title: str, tunings: Mapping[str, Tuning]) -> Table:
    metric = next(iter(tunings.values())).metric
    table = Table("curve", "setting", f"mean {metric}", "chosen", title=title)
    for label, tuning in tunings.items():
        for trial in tuning.trials:
            mean = "diverged" if trial.mean is None else f"{trial.mean:.5g}"
            if trial.share < 1:
                mean += f" after {trial.share:.0%}"
            is_chosen = trial.setting == tuning.setting
            table.add_row(label, _settings(trial.setting), mean, "yes" if is_chosen else "")
        table.add_section()
    return table


def _settings(setting: Mapping[str, object]) -> str:
    return ", ".join(f"{key} = {value}" for key, value in setting.items())


@app.command(name="show")
def show(
    experiment: tyro.conf.Positional[Path],
    overrides: Overrides = (),
    as_json: Annotated[bool, tyro.conf.arg(name="json")] = False,
) -> None:
    """Show an experiment before running it: the claim, how curves differ, what a round costs.

    Costs come from 11 rounds without client work; no data file is read and no round
    is compiled. Some rounds cost more than others, such as every tenth of FedNest, which estimates
    a Lipschitz constant; random costs are shown as mean and range.

    Args:
        experiment: the file, or a folder with a config.toml.
        overrides: settings that replace the file's.
        as_json: print all settings of every curve as JSON instead.
    """
    console = Console()
    loaded = config.load(experiment, sum(overrides, ()), "if made")
    if as_json:
        curves = {curve.label: curve.tables for curve in loaded.curves}
        print(json.dumps({"run": loaded.run, "tune": loaded.tune, "curves": curves}, indent=2))
        return
    console.print(f"[bold]{loaded.title}[/]\n{loaded.claim.strip()}\n")
    console.print(f"run: {_settings(loaded.run)}", markup=False)
    _say_choices(loaded, console)
    if loaded.tune is not None and not loaded.choices:
        grid = _settings(loaded.tune["grid"])
        console.print(f"Not tuned yet; rookery tune chooses from: {grid}", markup=False)
    console.print(*_setting_tables(loaded.curves))
    table = Table("curve", "exchanges", "MB down", "MB up", title="cost of a round")
    loader = TaskLoader(is_blank=True)
    for curve in loaded.curves:
        with loaded.in_precision():
            ledgers = trace_costs(curve, loader.load(curve))
        table.add_row(
            curve.label,
            _spread([ledger.exchanges for ledger in ledgers]),
            _spread([ledger.bytes_down / 1e6 for ledger in ledgers]),
            _spread([ledger.bytes_up / 1e6 for ledger in ledgers]),
        )
    console.print(table)


def _setting_tables(curves: Sequence[config.CurveSettings]) -> list[Table]:
    """What all curves have in common, and what differs."""
    flat = [_flat(curve.tables, "") for curve in curves]
    keys = list(dict.fromkeys(key for settings in flat for key in settings))
    is_common = {key: len({str(settings.get(key)) for settings in flat}) == 1 for key in keys}
    common = Table("setting", "value", title="all curves" if len(curves) > 1 else curves[0].label)
    for key in keys:
        if is_common[key]:
            common.add_row(key, str(flat[0][key]))
    differing = [key for key in keys if not is_common[key]]
    if not differing:
        return [common]
    table = Table("setting", *(curve.label for curve in curves), title="what differs")
    for key in differing:
        table.add_row(key, *(str(settings.get(key, "")) for settings in flat))
    return [common, table]


def _flat(table: Mapping[str, object], prefix: str) -> dict[str, object]:
    """The settings of nested tables by dotted key; a table's name stands at the table's own key.

    >>> _flat({"algorithm": {"name": "FedAvg", "lr": 0.1}}, "")
    {'algorithm': 'FedAvg', 'algorithm.lr': 0.1}
    """
    flat: dict[str, object] = {}
    for key, value in table.items():
        path = f"{prefix}.{key}" if prefix else key
        if isinstance(value, Mapping):
            flat.update(_flat(value, path))
        else:
            flat[prefix if key == "name" else path] = value
    return flat


@app.command(name="data")
def data(
    experiment: tyro.conf.Positional[Path],
    overrides: Overrides = (),
    label: str | None = None,
    out: Path | None = None,
    data: Path | None = None,
) -> None:
    """Show who holds what: rows and labels of the clients of an experiment's first curve.

    Example: rookery data examples/compare_digits.toml --out who_holds_what.png

    Args:
        experiment: the file, or a folder with a config.toml.
        overrides: settings that replace the file's, as partition.alpha=0.1.
        label: the field to count; by default "labels" where the rows have it.
        out: also draw a picture: a name ending in .png, .svg or .pdf.
        data: folder with data files; by default $ROOKERY_DATA, then the user's cache.
    """
    curve = config.load(experiment, sum(overrides, ())).curves[0]
    population = TaskLoader(data).load(curve).population
    fields = population.data if isinstance(population.data, Mapping) else {}
    description = population.describe(label or ("labels" if "labels" in fields else None))
    console = Console()
    console.print(description)
    if out is not None:
        description.save(out)
        console.print(f"The picture: {out}", markup=False)


@app.command(name="doctor")
def doctor(
    runs: tyro.conf.Positional[tuple[Path, ...]],
    experiment: Path | None = None,
    data: Path | None = None,
    overrides: Overrides = (),
) -> None:
    """Say what is wrong with runs and what to change: steps, series, noise, drift, roll-backs.

    It measures at the runs' checkpoints, on the clients' rows. Nothing is added to the rounds. What
    it finds is written into each run directory, and "rookery report" shows it.

    Example: rookery doctor runs/fednest_fig2a --experiment experiments/fednest_fig2a

    Args:
        runs: run directories, or folders of them.
        experiment: the file that they were run with, or its folder; by default the settings in the
            report beside the runs.
        data: folder with data files; by default $ROOKERY_DATA, then the user's cache.
        overrides: settings that replaced the file's when it was run.
    """
    if not runs:
        raise ValueError("name at least one run directory.")
    console = Console()
    for diagnosis in examine(runs, TaskLoader(data), experiment, sum(overrides, ())):
        console.print(str(diagnosis), markup=False, highlight=False)
        diagnosis.save()
    console.print('Kept in each run directory; "rookery report" shows it.', highlight=False)


@app.command(name="report")
def report(
    runs: tyro.conf.Positional[tuple[Path, ...]],
    out: Annotated[Path, tyro.conf.arg(aliases=["-o"])] = Path("report"),
    title: str | None = None,
    metric: tuple[str, ...] = (),
    axes: tuple[str, ...] = (),
    target: float | None = None,
    higher_is_better: bool | None = None,
    latex: bool = False,
    markdown: bool = False,
    jobs: bool = False,
) -> None:
    """Print tables, and write a self-contained page and a figure, from runs finished or not.

    Reads run directories, or files of results such as experiments/*/results.json.

    Without options it shows what the [plot] table of the runs' experiment asks for.

    Args:
        runs: run directories, or folders of them; or files of results, or folders with one.
        out: folder for report.html and curves.png; a name ending in .html writes only the page, one
            ending in .png, .svg or .pdf only the figure.
        title: headline; by default that of the experiment.
        metric: metrics to draw; tables use the first. By default accuracy, or the first measured.
        axes: costs to draw against: round, exchanges, megabytes, megabytes_up, megabytes_down,
            gradients, hessian_vectors, seconds.
        target: value of the first metric; a table shows what it cost to reach it.
        higher_is_better: True or False: whether the first metric has to rise; by default what its
            evaluation knows, or its name says.
        latex: also write the tables for a paper, as tables.tex beside the page.
        markdown: also write the tables as tables.md beside the page.
        jobs: if only a figure is written: of which client worked when in asynchronous runs.
    """
    if not runs:
        raise ValueError("name at least one run directory.")
    if jobs and out.suffix not in PICTURES:
        raise ValueError(f"--jobs draws one figure: name a file ending in {', '.join(PICTURES)}.")
    comparison = read_comparison(runs, Console(stderr=True))
    if title is not None:
        comparison = replace(comparison, title=title)
    settings = read_plot_settings(runs, comparison)
    if metric:
        settings = settings.for_metrics(metric)
    given = {"axes": axes or None, "target": target, "higher_is_better": higher_is_better}
    settings = replace(settings, **{k: v for k, v in given.items() if v is not None})
    console = Console()
    print_tables(comparison, settings, console)
    if jobs:
        out.parent.mkdir(parents=True, exist_ok=True)
        plot_traces(comparison, out)
        console.print(f"The figure: {out}", markup=False)
    else:
        _write(comparison, out, settings, console)
    folder = out.parent if out.suffix in (".html", *PICTURES) else out
    for is_asked, name, as_text in (
        (latex, "tables.tex", markup.latex),
        (markdown, "tables.md", markup.markdown),
    ):
        if is_asked:
            write_tables(comparison, settings, folder / name, as_text)
            console.print(f"The tables: {folder / name}", markup=False)


GROUPS = {
    "algorithm": registry.ALGORITHMS,
    "part": registry.PARTS,
    "task": registry.TASKS,
    "partition": registry.PARTITIONS,
    "engine": registry.ENGINES,
    "rule": registry.STOP_RULES,
}


@app.command(name="list")
def list_names(
    which: tyro.conf.Positional[tuple[str, ...]] = (),
    as_json: Annotated[bool, tyro.conf.arg(name="json")] = False,
) -> None:
    """List what an experiment file can name: algorithms, parts, tasks, data, engines, and more.

    Without arguments only the names are shown. A group or a pattern shows one line on each:
    "rookery list tasks", "rookery list 'Fed*'". A file can also name code of your own, as
    name = "my_module:MyAlgorithm".

    Args:
        which: groups (algorithms, parts, tasks, partitions, data, engines, rules that stop runs,
            experiments) or patterns of names, with * for any letters.
        as_json: print JSON instead of text.
    """
    groups = {kind: _described(names, kind) for kind, names in GROUPS.items()}
    groups["data"] = datasets.available() | _from_packages("data")
    groups["experiment"] = _experiments(Path("experiments"))
    if which:
        groups = _filtered(groups, which)
    if as_json:
        print(json.dumps(groups, indent=2))
        return
    console = Console()
    if not which:
        for kind, names in groups.items():
            console.print(f"[bold]{kind}[/] ({len(names)}): {', '.join(names)}", highlight=False)
        console.print("\nOne line on each: rookery list algorithms, rookery list 'Fed*'")
        return
    table = Table("kind", "name", "what it is")
    for kind, names in groups.items():
        for name, text in names.items():
            table.add_row(kind, name, text)
        table.add_section()
    console.print(table)


app.command(name="audit")(audit)
app.command(name="flare-simulate")(flare.simulate)
app.command(name="flare-join")(flare.join)
app.command(name="flare-submit")(flare.submit)
app.command(name="flare-jobs")(flare.jobs)
app.command(name="flare-abort")(flare.abort)
app.command(name="flare-stop")(flare.stop)


def _described(names: registry.Names, kind: str) -> dict[str, str]:
    lines = {name: (fn.__doc__ or "").strip().split("\n")[0] for name, fn in names.items()}
    return lines | _from_packages(kind)


def _from_packages(kind: str) -> dict[str, str]:
    return {name: f"from {point.value}" for name, point in registry.entry_points(kind).items()}


def _experiments(folder: Path) -> dict[str, str]:
    return {str(path): config.load(path).title for path in sorted(folder.glob("*/*.toml"))}


def _filtered(
    groups: Mapping[str, dict[str, str]], which: Sequence[str]
) -> dict[str, dict[str, str]]:
    """The groups and names that are asked for, or an error if there are none."""
    found: dict[str, dict[str, str]] = {}
    for wanted in which:
        hits = {
            kind: names
            if wanted in (kind, f"{kind}s")
            else {n: t for n, t in names.items() if fnmatch.fnmatch(n.lower(), wanted.lower())}
            for kind, names in groups.items()
        }
        if not any(hits.values()):
            raise ValueError(
                f"nothing is called {wanted!r}. Name a group ({', '.join(groups)}) or a pattern, "
                "as 'Fed*'."
            )
        for kind, names in hits.items():
            if names:
                found.setdefault(kind, {}).update(names)
    return found


def _run(
    experiments: list[config.Experiment], out: Path | None, data: Path | None, overwrite: bool
) -> None:
    """Run experiments, which share their data, and write one report."""
    console, loader = Console(), TaskLoader(data)
    folder = out or Path("runs") / experiments[0].name
    done = []
    for experiment in experiments:
        _say_choices(experiment, console)
        own = folder if len(experiments) == 1 else folder / experiment.name
        comparison = execution.run_experiment(
            experiment, own, loader, overwrite=overwrite, console=console
        )
        done.append(comparison)
    comparison = done[0] if len(done) == 1 else joined(done)
    settings = PlotSettings(**experiments[0].plot)
    print_tables(comparison, settings, console)
    _write(comparison, folder, settings, console)


def _say_choices(experiment: config.Experiment, console: Console) -> None:
    """Say which tuned values are used, and where they come from."""
    if not any(experiment.choices.values()):
        return
    console.print(f"Tuned values from {tuning_path(experiment.path)}:", markup=False)
    for label, setting in experiment.choices.items():
        console.print(f"  {label}: {_settings(setting)}", markup=False, highlight=False)


def _write(comparison: Comparison, out: Path, settings: PlotSettings, console: Console) -> None:
    """Write the report and say where it is."""
    if out.suffix == ".html":
        out.parent.mkdir(parents=True, exist_ok=True)
        write_only_page(comparison, out, settings)
        written = {"page": out}
    elif out.suffix in PICTURES:
        out.parent.mkdir(parents=True, exist_ok=True)
        write_only_figure(comparison, out, settings)
        written = {"figure": out}
    else:
        page, figure = write_report(comparison, out, settings)
        written = {"page": page} | ({"figure": figure} if figure else {})
    for name, path in written.items():
        console.print(f"The {name}: {path}")


def _spread(values: Sequence[float]) -> str:
    """One value; or the usual one and how many rounds differ; or the mean and the range.

    >>> _spread([3, 3]), _spread([3, 3, 4]), _spread([1, 2, 6])
    ('3', '3 (4 in 1 of 3 rounds)', '3 (1 to 6)')
    """
    counts = Counter(f"{value:,.6g}" for value in values).most_common()
    if len(counts) == 1:
        return counts[0][0]
    if len(counts) == 2:
        (usual, _), (other, n) = counts
        return f"{usual} ({other} in {n} of {len(values)} rounds)"
    mean, low, high = sum(values) / len(values), min(values), max(values)
    return f"{mean:,.4g} ({low:,.4g} to {high:,.4g})"


def main(arguments: Sequence[str] | None = None) -> None:
    """Entry point; errors are shown without a traceback unless ROOKERY_TRACEBACK is set.

    Args:
        arguments: the words after ``rookery``; those of the process if None.
    """
    arguments = sys.argv[1:] if arguments is None else list(arguments)
    if arguments == ["--version"]:
        print(f"rookery {version('rookery')}")
        return
    try:
        app.cli(
            args=arguments,
            prog="rookery",
            description=(
                "Federated nested optimisation: bilevel, minimax, compositional problems whose "
                "data stays with the clients. Start with: rookery demo. "
                "rookery --version prints the version."
            ),
        )
    except (
        ValueError, TypeError, OSError, MemoryError, ModuleNotFoundError, JobFailed
    ) as error:  # fmt: skip
        if os.environ.get("ROOKERY_TRACEBACK"):
            raise
        stderr = Console(stderr=True)
        stderr.print("[bold red]Error:[/] ", end="")
        stderr.print(_in_words(error), markup=False, highlight=False)
        sys.exit(2)
    except Terminated:
        sys.exit(143)
    except KeyboardInterrupt:
        sys.exit(130)


REMEDIES = {
    errno.ENOSPC: "Free some space, then repeat the command: runs resume from their checkpoints.",
    errno.EDQUOT: "Free some space, then repeat the command: runs resume from their checkpoints.",
    errno.EROFS: "Choose a folder that can be written to.",
    errno.EACCES: "Choose another folder, or change its permissions.",
    errno.EPERM: "Choose another folder, or change its permissions.",
    errno.EISDIR: "Remove the folder of that name, or choose another one.",
    errno.ENOTDIR: "Remove the file of that name, or choose another folder.",
    errno.EEXIST: "Remove the file of that name, or choose another folder.",
    errno.ENAMETOOLONG: "Use a shorter name.",
}
"""What to do about errors of the file system."""


def _in_words(error: Exception) -> str:
    """An error as a message.

    >>> _in_words(OSError(errno.ENOSPC, "No space left on device", "runs/history.jsonl"))[:44]
    'runs/history.jsonl: No space left on device.'
    """
    if isinstance(error, MemoryError):
        return f"The memory of this machine does not suffice. {error}"
    if isinstance(error, OSError) and error.strerror:
        where = f"{error.filename}: " if error.filename is not None else ""
        return f"{where}{error.strerror}. {REMEDIES.get(error.errno or 0, '')}".rstrip()
    return str(error)


if __name__ == "__main__":
    main()

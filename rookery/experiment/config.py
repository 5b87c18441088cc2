"""Experiments as TOML files: another way to build the objects of the Python API.

A table with a ``name`` stands for an object; its other keys are the object's arguments. The tables
``data``, ``partition``, ``task``, ``algorithm``, ``clock``, ``engine`` and ``run`` describe a run;
``[guard]`` has the settings of :class:`rookery.stop.Guard`, and ``guard = false`` is none. Each
table under ``curves`` describes a curve by what it changes in them. Later settings win: the file,
the curve's own table, the values that ``rookery tune`` chose, the command line. A name or key that
does not exist is an error that shows the nearest valid one.

No data is read here; see :mod:`rookery.experiment.task_loader`.
"""

import copy
import inspect
import json
import tomllib
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Literal, TypedDict

import jax

from rookery import check
from rookery.clients.partition import long_tail
from rookery.engines.engine import AbstractEngine
from rookery.experiment.registry import (
    DATASETS,
    ENGINES,
    PARTITIONS,
    PROGRAMS,
    TASKS,
    arguments_of,
    check_keys,
    check_kinds,
    lookup,
    make_object,
    make_stop_rules,
    name_of,
    needs_data,
)
from rookery.experiment.tuning_file import Choices, digest, read_choices, trial_run, tuning_path
from rookery.program.algorithm import AbstractAlgorithm
from rookery.program.delays import Clock
from rookery.report.comparison import AXES
from rookery.runner.best import GOALS, KeepBest
from rookery.runner.guard import GUARD, Guard
from rookery.runner.search import SearchPlan, Space

CURVE_TABLES = ("data", "partition", "task", "algorithm", "clock", "engine")
RUN_KEYS = (
    "rounds",
    "seconds",
    "seeds",
    "evaluate_every",
    "checkpoint_every",
    "batch",
    "precision",
    "stop",
    "keep",
    "growth_limit",
)
PRECISIONS = ("float32", "float64")
PLAN_KEYS = ("seeds", "confirm", "trials", "extend", "sampler")
TUNE_KEYS = ("grid", "without", "metric", "goal", "unseen", "rounds", "seconds", *PLAN_KEYS)
STEP_RANGE = {"low": 0.001, "high": 10.0}
"""Where step sizes are searched if a file has no table [tune]."""
PLOT_KEYS = ("metrics", "axes", "log_x", "log_y", "target", "higher_is_better")

Table = dict[str, Any]  # each key has a type of its own, checked where it is read
"""A table of a TOML file."""


class _Tune(TypedDict, total=False):
    grid: dict[str, list | dict[str, float]]
    without: dict[str, list[str]]
    metric: str
    goal: str
    unseen: str
    rounds: int
    seconds: float
    seeds: list[int]
    confirm: list[int]


class _Plot(TypedDict, total=False):
    metrics: list[str]
    axes: list[str]
    log_x: bool
    log_y: bool
    target: float
    higher_is_better: bool


TABLES: dict[str, object] = {
    "title": str,
    "claim": str,
    "guard": bool | dict,
    "run": dict,
    "curves": dict[str, dict[str, dict]],
    "tune": _Tune,
    "plot": _Plot,
    **dict.fromkeys(CURVE_TABLES, dict),
}
"""What may stand in a file, by key."""
UseChoices = Literal["required", "if made", "no"]


@dataclass(frozen=True)
class CurveSettings:
    """One curve of an experiment: its tables, and the objects that they stand for."""

    label: str
    tables: Table
    folder: Path | None
    algorithm: AbstractAlgorithm
    clock: Clock
    engine: AbstractEngine

    @property
    def task_key(self) -> str:
        """Equal for curves that share data, partition and task."""
        return json.dumps([*map(self.tables.get, ("data", "partition", "task")), str(self.folder)])

    def changed(self, settings: Mapping[str, object], label: str | None = None) -> "CurveSettings":
        """The curve with some settings replaced, with keys as ``algorithm.outer_lr``."""
        tables = copy.deepcopy(self.tables)
        for key, value in settings.items():
            _set(tables, key.split("."), value)
        return build_curve(self.label if label is None else label, tables, self.folder)


@dataclass(frozen=True)
class Experiment:
    """Curves to be compared, each run with the same seeds."""

    title: str
    claim: str
    curves: list[CurveSettings]
    run: Table
    tune: Table | None
    plot: Table
    path: Path | None = None
    guard: Guard | None = GUARD
    choices: Choices = field(default_factory=dict)
    """The tuned values in use, by curve; those that an override replaces are left out."""

    @property
    def seeds(self) -> list[int]:
        """The seeds of every curve."""
        return list(self.run.get("seeds", [0]))

    @property
    def digest(self) -> str:
        """A digest of the curves and of the runs of trials."""
        curves = {curve.label: curve.tables for curve in self.curves}
        return digest(curves, trial_run(self.run, self.tune or {}))

    def in_precision(self) -> AbstractContextManager:
        """A context in which floating-point numbers have the precision of the experiment."""
        return jax.enable_x64(self.run.get("precision", "float32") == "float64")

    @property
    def name(self) -> str:
        """The name of its folder and file, for directories."""
        if self.path is None:
            return "experiment"
        parent, stem = self.path.resolve().parent.name, self.path.stem
        return parent if stem == "config" else f"{parent}-{stem}"

    def varied(self, text: str) -> "Experiment":
        """Every curve once for each value of one setting, ``table.key=[value, ...]``."""
        keys, values = parse_override(text)
        if not isinstance(values, list) or not values:
            raise ValueError(
                f"--vary needs a list of values, as algorithm.outer_lr=[0.01,0.02]; got {text!r}."
            )
        curves = [
            curve.changed({".".join(keys): value}, f"{curve.label}, {keys[-1]}={value}")
            for curve in self.curves
            for value in values
        ]
        return replace(self, curves=curves)


def load(path: str | Path, overrides: Sequence[str] = (), choices: UseChoices = "no") -> Experiment:
    """Read an experiment from a TOML file and check all of it but the data.

    Args:
        path: the file, or a folder with a ``config.toml``.
        overrides: settings that replace the file's in every curve, as ``algorithm.outer_lr=0.02``;
            a value is written as in TOML.
        choices: whether to use the values that ``rookery tune`` chose, if the file has a table
            [tune]: they are ``required``, used ``if made``, or not (``no``).
    """
    path = Path(path)
    if path.is_dir():
        path = path / "config.toml"
    if not path.exists():
        raise FileNotFoundError(f"there is no file {path}.")
    try:
        tables = tomllib.loads(path.read_text(encoding="utf-8"))
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is not a text in UTF-8: {error}. Save it as UTF-8.") from error
    except RecursionError as error:
        raise ValueError(f"{path} has too many tables or lists inside one another.") from error
    except ValueError as error:  # also a whole number with thousands of digits
        raise ValueError(f"{path} is not valid TOML: {error}") from error
    try:
        return build(tables, overrides, path, choices)
    except (TypeError, ValueError) as error:
        raise ValueError(f"{path}: {error}") from error


def build(
    tables: Table,
    overrides: Sequence[str] = (),
    path: Path | None = None,
    choices: UseChoices = "no",
) -> Experiment:
    """An experiment from the tables of a file; see :func:`load`."""
    for key, value in tables.items():
        check.typed(key, value, TABLES[check.one_of("table", key, TABLES)])
    for key in ("task", "algorithm", "run"):
        if key not in tables:
            raise ValueError(f"the table [{key}] is missing.")
    if not tables.get("curves", True):
        raise ValueError("[curves] is empty. Add a curve, or leave the table out for one curve.")
    changes = [parse_override(text) for text in overrides]
    run, guard = copy.deepcopy(dict(tables["run"])), copy.deepcopy(tables.get("guard", {}))
    for keys, value in changes:
        check.one_of("table", keys[0], ("run", "guard", *CURVE_TABLES))
        if keys[0] == "run":
            _set(run, keys[1:], value)
        if keys[0] == "guard":
            guard = {} if isinstance(guard, bool) else guard
            _set(guard, keys[1:], value)
    _check_run(run, None if path is None else path.parent)
    _check_plot(tables.get("plot", {}))
    declared = _declared_curves(tables)
    tune = _checked_tune(tables.get("tune"), list(declared), run.get("seeds", [0]))
    chosen: Choices = {}
    if tune is not None and (
        choices == "required" or (choices == "if made" and tuning_path(path).exists())
    ):
        made_for = digest(declared, trial_run(tables["run"], tune))
        chosen = read_choices(path, tune, made_for, list(declared))
    said = {".".join(keys): value for keys, value in changes if keys[0] in CURVE_TABLES}
    chosen = {
        label: {key: value for key, value in setting.items() if key not in said}
        for label, setting in chosen.items()
    }
    curves = []
    for label, merged in declared.items():
        for key, value in {**chosen.get(label, {}), **said}.items():
            _set(merged, key.split("."), value)
        curves.append(build_curve(label, merged, None if path is None else path.parent))
    return Experiment(
        title=tables.get("title", "comparison"),
        claim=tables.get("claim", ""),
        curves=curves,
        run=run,
        tune=tune,
        plot=dict(tables.get("plot", {})),
        path=path,
        choices=chosen,
        guard=make_guard(guard),
    )


def make_guard(table: object) -> Guard | None:
    """The guard that a table stands for; None for ``false``.

    >>> make_guard({"times": 3}).times, make_guard(False)
    (3, None)
    """
    if table is False:
        return None
    if not isinstance(table, Mapping):
        raise TypeError(f"guard must be false or a table [guard], got {table!r}.")
    check_keys(table, [each.name for each in fields(Guard)], "guard")
    return Guard(**table)


def build_curve(label: str, tables: Table, folder: Path | None = None) -> CurveSettings:
    """A curve from its tables, checked."""
    make = lookup(TASKS, tables["task"], "task", folder)
    check_kinds(make, arguments_of(make, tables["task"], "task", ("dataset", "parts")), "task")
    if needs_data(make):
        _check_data(tables, folder)
    clock = {"name": "Clock", **tables.get("clock", {})}
    return CurveSettings(
        label=label,
        tables=tables,
        folder=folder,
        algorithm=make_object(PROGRAMS, tables["algorithm"], "algorithm", folder),
        clock=make_object({"Clock": Clock}, clock, "clock", folder),
        engine=make_object(ENGINES, tables.get("engine", {"name": "Compiled"}), "engine", folder),
    )


def merge(base: Mapping[str, object], own: Mapping[str, object]) -> Table:
    """``own`` over ``base``, table by table; a table with another name replaces the old one.

    >>> merge({"a": {"name": "F", "lr": 1}}, {"a": {"lr": 2}})
    {'a': {'name': 'F', 'lr': 2}}
    >>> merge({"a": {"name": "F", "lr": 1}}, {"a": {"name": "G"}})
    {'a': {'name': 'G'}}
    """
    merged = copy.deepcopy(dict(base))
    for key, value in own.items():
        old = merged.get(key)
        if isinstance(old, Mapping) and isinstance(value, Mapping):
            is_same = "name" not in value or value["name"] == old.get("name")
            merged[key] = merge(old, value) if is_same else copy.deepcopy(dict(value))
        else:
            merged[key] = copy.deepcopy(value)
    return merged


def parse_override(text: str) -> tuple[list[str], object]:
    """The keys and the value of ``table.key=value``.

    >>> parse_override("algorithm.outer_lr=0.02")
    (['algorithm', 'outer_lr'], 0.02)
    """
    keys, equals, value = text.partition("=")
    if not equals or "." not in keys:
        raise ValueError(
            f"cannot read {text!r}; write table.key=value, as algorithm.outer_lr=0.02."
        )
    try:
        return keys.strip().split("."), tomllib.loads(f"value = {value}")["value"]
    except tomllib.TOMLDecodeError:
        return keys.strip().split("."), value.strip()


def tuning_plan(tune: Table, seeds: Sequence[int]) -> SearchPlan:
    """What the search of a table [tune] may spend; with the seeds of the runs if it names none."""
    return SearchPlan(**{"seeds": seeds, **{key: tune[key] for key in PLAN_KEYS if key in tune}})


def default_tuning(experiment: Experiment, metric: str, goal: str) -> Table:
    """A table [tune] with a coarse range for every step size of every curve."""
    steps = {curve.label: _step_sizes(curve) for curve in experiment.curves}
    every = list(dict.fromkeys(key for keys in steps.values() for key in keys))
    if idle := [label for label, keys in steps.items() if not keys]:
        raise ValueError(f"{idle[0]!r} has no step size to tune. Write a table [tune].")
    without = {
        label: missing
        for label, keys in steps.items()
        if (missing := [key for key in every if key not in keys])
    }
    return {
        "metric": metric,
        "goal": goal,
        "extend": 2,
        "grid": {key: dict(STEP_RANGE) for key in every},
        **({"without": without} if without else {}),
    }


def _step_sizes(curve: CurveSettings) -> list[str]:
    """The keys of a curve's step sizes: those given, and those that its algorithm always has."""
    table, found = curve.tables["algorithm"], list[str]()

    def look(table: Mapping[str, object], prefix: str) -> None:
        for key, value in table.items():
            if isinstance(value, Mapping):
                look(value, f"{prefix}.{key}")
            elif _is_step(key) and isinstance(value, int | float) and value > 0:
                found.append(f"{prefix}.{key}")

    make = lookup(PROGRAMS, table, "algorithm", curve.folder)
    for name, one in inspect.signature(make).parameters.items():
        if _is_step(name) and one.default is not None and name not in table:
            found.append(f"algorithm.{name}")
    look(table, "algorithm")
    return found


def _is_step(name: str) -> bool:
    return name == "lr" or name.endswith("_lr")


def with_sampler(experiment: Experiment, sampler: str) -> Table:
    """The table [tune] with another sampler, checked."""
    table = {**(experiment.tune or {}), "sampler": sampler}
    labels = [curve.label for curve in experiment.curves]
    return _checked_tune(table, labels, experiment.seeds) or {}


def tune_as_toml(table: Table) -> str:
    """A table [tune] as text for a TOML file.

    >>> print(tune_as_toml({"metric": "loss", "grid": {"algorithm.lr": {"low": 0.1, "high": 1.0}}}))
    [tune]
    metric = "loss"
    [tune.grid]
    "algorithm.lr" = { low = 0.1, high = 1.0 }
    """

    def text(value: object) -> str:
        if isinstance(value, Mapping):
            return "{ " + ", ".join(f"{key} = {text(one)}" for key, one in value.items()) + " }"
        return json.dumps(value)

    lines = ["[tune]"]
    lines += [f"{k} = {text(v)}" for k, v in table.items() if not isinstance(v, Mapping)]
    for name, inner in table.items():
        if isinstance(inner, Mapping):
            lines += [f"[tune.{name}]", *(f"{json.dumps(k)} = {text(v)}" for k, v in inner.items())]
    return "\n".join(lines)


def tuning_grid(tune: Table, label: str) -> Space:
    """The grid of one curve: that of the table [tune], without what the curve does not have."""
    missing = tune.get("without", {}).get(label, [])
    return {key: values for key, values in tune["grid"].items() if key not in missing}


def _set(tables: Table, keys: Sequence[str], value: object) -> None:
    for depth, key in enumerate(keys[:-1]):
        tables = tables.setdefault(key, {})
        if not isinstance(tables, dict):
            raise ValueError(f"{'.'.join(keys[: depth + 1])} is {tables!r} and has no keys.")
    tables[keys[-1]] = value


def _declared_curves(tables: Table) -> dict[str, Table]:
    """The tables of every curve as the file says them."""
    declared = {}
    base = {table: tables[table] for table in CURVE_TABLES if table in tables}
    single = {name_of(tables["algorithm"], "algorithm"): {}}
    for label, own in tables.get("curves", single).items():
        for key in own:
            check.one_of(f"table in [curves.{label}]", key, CURVE_TABLES)
        declared[label] = merge(base, own)
    return declared


def _check_run(run: Table, folder: Path | None) -> None:
    check_keys(run, RUN_KEYS, "run")
    if "rounds" not in run:
        raise ValueError("[run] needs the key rounds.")
    for key in ("rounds", "evaluate_every", "checkpoint_every", "batch"):
        if key in run:
            check.count(f"run.{key}", run[key])
    if "seconds" in run:
        check.positive("run.seconds", run["seconds"])
    if "stop" in run:
        make_stop_rules(run["stop"], folder)
    if "keep" in run:
        KeepBest.split(run["keep"])
    if "growth_limit" in run:
        check.positive_or_infinite("run.growth_limit", run["growth_limit"])
    check.one_of("run.precision", run.get("precision", "float32"), PRECISIONS)
    seeds = run.get("seeds", [0])
    if not isinstance(seeds, list) or not seeds:
        raise TypeError(f"run.seeds must be a list, as [0, 1, 2], got {seeds!r}.")
    for seed in seeds:
        check.count("run.seeds", seed, least=0)


def _check_plot(plot: Table) -> None:
    check_keys(plot, PLOT_KEYS, "plot")
    for axis in plot.get("axes", []):
        check.one_of("axis in [plot]", axis, AXES)


def _check_data(tables: Table, folder: Path | None) -> None:
    for key in ("data", "partition"):
        if key not in tables:
            raise ValueError(f"the task {tables['task']['name']} needs the table [{key}].")
    load_data = lookup(DATASETS, tables["data"], "data", folder)
    given = ("name", "directory")
    settings = arguments_of(load_data, tables["data"], "data", given, ("holdout", "long_tail"))
    check_kinds(load_data, settings, "data")
    if "long_tail" in settings:
        table = tables["data"]["long_tail"]
        check.typed("long_tail in [data]", table, dict)
        tail = arguments_of(long_tail, table, "data.long_tail", ("labels",))
        check_kinds(long_tail, tail, "data.long_tail")
    deal = lookup(PARTITIONS, tables["partition"], "partition", folder)
    given = ("labels", "n_samples", "owners", "n_clients")
    settings = arguments_of(deal, tables["partition"], "partition", given, ("clients", "fractions"))
    check_kinds(deal, settings, "partition")
    check.typed("fractions in [partition]", settings.get("fractions", {}), dict[str, float])
    n_clients = inspect.signature(deal).parameters.get("n_clients")
    if n_clients is not None and ("clients" in settings or n_clients.default is n_clients.empty):
        check.count("partition.clients", settings.get("clients"))


def _checked_tune(table: Table | None, labels: Sequence[str], seeds: Sequence[int]) -> Table | None:
    if table is None:
        return None
    check_keys(table, TUNE_KEYS, "tune")
    for key in ("grid", "metric", "goal"):
        if key not in table:
            raise ValueError(f"[tune] needs the key {key}.")
    check.one_of("goal in [tune]", table["goal"], GOALS)
    if table.get("unseen") == table["metric"]:
        raise ValueError(
            f"unseen in [tune] must differ from metric, which chooses, got {table['metric']!r}. "
            "Name a metric of other rows, or leave it out."
        )
    tuning_plan(table, seeds).check(table["grid"])
    for label, keys in table.get("without", {}).items():
        check.one_of("curve in [tune.without]", label, labels)
        for key in keys:
            check.one_of(f"key of {label!r} in [tune.without]", key, table["grid"])
    return dict(table)

"""Experiments as TOML files: a file is only another way to build the objects of the Python API.

A table with a ``name`` stands for an object; its other keys are the object's arguments. The tables
``data``, ``partition``, ``task``, ``algorithm``, ``clock``, ``engine`` and ``run`` describe a run;
each table under ``curves`` describes a curve by what it changes in them. Names and keys that do not
exist are errors that show the nearest valid one.
"""

import copy
import inspect
import itertools
import json
import tomllib
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import jax
import numpy as np

from rookery import check
from rookery.clients import datasets, partition
from rookery.experiment.registry import (
    ALGORITHMS,
    ENGINES,
    PARTITIONS,
    TASKS,
    arguments_of,
    check_keys,
    lookup,
    make_object,
    name_of,
    needs_data,
)
from rookery.program.algorithm import AbstractAlgorithm
from rookery.program.delays import Clock
from rookery.report.comparison import AXES
from rookery.tasks.task import Task

CURVE_TABLES = ("data", "partition", "task", "algorithm", "clock", "engine")
TABLES = ("title", "claim", "run", "curves", "tune", "plot", *CURVE_TABLES)
RUN_KEYS = set("rounds seconds seeds evaluate_every checkpoint_every lanes precision".split())
PRECISIONS = ("float32", "float64")
TUNE_KEYS = {"grid", "without", "metric", "goal", "rounds", "seconds", "seeds"}
PLOT_KEYS = {"metrics", "axes", "log_x", "log_y", "target", "higher_is_better"}


@dataclass(frozen=True)
class Curve:
    """One setting of an experiment, described and checked; no data has been read."""

    label: str
    algorithm: AbstractAlgorithm
    clock: Clock
    engine: Any
    tables: dict[str, Any]

    def needs(self) -> str:
        """What curves must have in common to share their task."""
        return json.dumps([self.tables.get(t) for t in ("data", "partition", "task")])

    def task(self, data_directory: str | Path | None = None, *, is_blank: bool = False) -> Task:
        """Read the data, give it to clients and set up the problem.

        A blank task has rows of zeros, in the same number: for costs, not for learning.
        """
        settings = dict(self.tables["task"])
        make = TASKS[settings.pop("name")]
        if not needs_data(make):
            return make(**settings)
        data = dict(self.tables["data"])
        holdout, tail = data.pop("holdout", None), data.pop("long_tail", None)
        name = data.pop("name")
        dataset = (
            datasets.blank_like(name) if is_blank else datasets.load(name, data_directory, **data)
        )
        if tail is not None:
            dataset = dataset.keep(partition.long_tail(dataset.train["labels"], **tail))
        if holdout is not None:
            dataset = dataset.hold_out(holdout, seed=self.tables["partition"].get("seed", 0))
        return make(dataset, _parts(self.tables["partition"], dataset.train["labels"]), **settings)


@dataclass(frozen=True)
class Experiment:
    """Curves to be compared, each with the same seeds."""

    title: str
    claim: str
    curves: list[Curve]
    run: dict[str, Any]
    tune: dict[str, Any] | None
    plot: dict[str, Any]
    overrides: tuple[str, ...] = ()
    path: Path | None = None
    declared: list[Any] = field(default_factory=list)  # curves and run as in the file

    @property
    def seeds(self) -> list[int]:
        """The seeds of every curve."""
        return list(self.run.get("seeds", [0]))

    def in_precision(self) -> AbstractContextManager:
        """Floating-point numbers as the experiment wants them, for as long as it runs."""
        return jax.enable_x64(self.run.get("precision", "float32") == "float64")

    @property
    def name(self) -> str:
        """The folder and the file, for directories."""
        if self.path is None:
            return "experiment"
        parent, stem = self.path.resolve().parent.name, self.path.stem
        return parent if stem == "config" else f"{parent}-{stem}"


def load(path: str | Path, overrides: Sequence[str] = ()) -> Experiment:
    """Read an experiment from a TOML file and check all of it but the data.

    Args:
        path: the file, or a folder with a ``config.toml``.
        overrides: ``table.key=value`` each, for example ``algorithm.outer_lr=0.02``; a value is
            written as in TOML. They apply to every curve.
    """
    path = Path(path)
    if path.is_dir():
        path = path / "config.toml"
    if not path.exists():
        raise FileNotFoundError(f"there is no file {path}.")
    try:
        tables = tomllib.loads(path.read_text(encoding="utf-8"))
    except tomllib.TOMLDecodeError as error:
        raise ValueError(f"{path} is not valid TOML: {error}") from error
    try:
        return build(tables, overrides, path)
    except (TypeError, ValueError) as error:
        raise ValueError(f"{path}: {error}") from error


def build(
    tables: Mapping[str, Any], overrides: Sequence[str] = (), path: Path | None = None
) -> Experiment:
    """An experiment from the tables of a file."""
    for key in tables:
        check.one_of("table", key, TABLES)
    for key in ("task", "algorithm", "run"):
        if key not in tables:
            raise ValueError(f"the table [{key}] is missing.")
    changes = [parse_override(text) for text in overrides]
    run = dict(tables["run"])
    for keys, value in changes:
        if keys[0] == "run":
            _set(run, keys[1:], value)
    check_keys(run, RUN_KEYS, "run")
    if "rounds" not in run:
        raise ValueError("[run] needs the key rounds.")
    for key in ("rounds", "evaluate_every", "checkpoint_every", "lanes"):
        if key in run:
            check.count(f"run.{key}", run[key])
    if "seconds" in run:
        check.positive("run.seconds", run["seconds"])
    check.one_of("run.precision", run.get("precision", "float32"), PRECISIONS)
    if not isinstance(run.get("seeds", [0]), list):
        raise TypeError(f"run.seeds must be a list, as [0, 1, 2], got {run['seeds']!r}.")
    for seed in run.get("seeds", [0]):
        check.count("run.seeds", seed, least=0)
    for axis in tables.get("plot", {}).get("axes", []):
        check.one_of("axis in [plot]", axis, AXES)
    check_keys(tables.get("plot", {}), PLOT_KEYS, "plot")
    curves, declared = [], {}
    for label, own in tables.get("curves", {tables["algorithm"].get("name", ""): {}}).items():
        for key in own:
            check.one_of(f"table in [curves.{label}]", key, CURVE_TABLES)
        merged = merge({t: tables[t] for t in CURVE_TABLES if t in tables}, own)
        declared[label] = copy.deepcopy(merged)
        for keys, value in changes:
            if keys[0] != "run":
                check.one_of("table", keys[0], CURVE_TABLES)
                _set(merged, keys, value)
        curves.append(curve(label, merged))
    return Experiment(
        title=tables.get("title", "comparison"),
        claim=tables.get("claim", ""),
        curves=curves,
        run=run,
        tune=_tune(tables.get("tune"), [one.label for one in curves]),
        plot=dict(tables.get("plot", {})),
        overrides=tuple(overrides),
        path=path,
        declared=[declared, dict(tables["run"])],
    )


def curve(label: str, tables: dict[str, Any]) -> Curve:
    """A curve from its merged tables."""
    make = lookup(TASKS, tables["task"], "task")
    arguments_of(make, tables["task"], "task", given=("dataset", "parts"))
    if needs_data(make):
        for key in ("data", "partition"):
            if key not in tables:
                raise ValueError(f"the task {tables['task']['name']} needs the table [{key}].")
        check.one_of("data set", name_of(tables["data"], "data"), datasets.available())
        extra = ("holdout", "long_tail")
        arguments_of(datasets.load, tables["data"], "data", ("name", "directory"), extra)
        deal = lookup(PARTITIONS, tables["partition"], "partition")
        given = ("labels", "n_samples", "n_clients")
        arguments_of(deal, tables["partition"], "partition", given, ("clients", "fractions"))
        if "n_clients" in inspect.signature(deal).parameters:
            check.count("partition.clients", tables["partition"].get("clients"))
    return Curve(
        label=label,
        algorithm=make_object(ALGORITHMS, tables["algorithm"], "algorithm"),
        clock=make_object({"Clock": Clock}, {"name": "Clock", **tables.get("clock", {})}, "clock"),
        engine=make_object(ENGINES, tables.get("engine", {"name": "Compiled"}), "engine"),
        tables=tables,
    )


def merge(base: Mapping[str, Any], own: Mapping[str, Any]) -> dict[str, Any]:
    """``own`` over ``base``, table by table; a table with another name replaces the old one."""
    merged = copy.deepcopy(dict(base))
    for key, value in own.items():
        old = merged.get(key)
        if isinstance(old, Mapping) and isinstance(value, Mapping):
            is_same = "name" not in value or value["name"] == old.get("name")
            merged[key] = merge(old, value) if is_same else copy.deepcopy(dict(value))
        else:
            merged[key] = copy.deepcopy(value)
    return merged


def parse_override(text: str) -> tuple[list[str], Any]:
    """The keys and the value of ``table.key=value``."""
    keys, equals, value = text.partition("=")
    if not equals or "." not in keys:
        raise ValueError(
            f"cannot read {text!r}; write table.key=value, as algorithm.outer_lr=0.02."
        )
    try:
        return keys.strip().split("."), tomllib.loads(f"value = {value}")["value"]
    except tomllib.TOMLDecodeError:
        return keys.strip().split("."), value.strip()


def override(curve_: Curve, settings: Mapping[str, Any]) -> Curve:
    """A curve with some settings replaced, keys as in :func:`parse_override`."""
    tables = copy.deepcopy(curve_.tables)
    for key, value in settings.items():
        _set(tables, key.split("."), value)
    return curve(curve_.label, tables)


def _set(tables: dict[str, Any], keys: Sequence[str], value: Any) -> None:
    for depth, key in enumerate(keys[:-1]):
        tables = tables.setdefault(key, {})
        if not isinstance(tables, dict):
            raise ValueError(f"{'.'.join(keys[: depth + 1])} is {tables!r} and has no keys.")
    tables[keys[-1]] = value


FRACTIONS = {"train": 0.8, "validation": 0.2}


def _parts(table: Mapping[str, Any], labels: np.ndarray) -> dict[str, list[np.ndarray]]:
    settings = dict(table)
    deal = PARTITIONS[settings.pop("name")]
    fractions = settings.pop("fractions", FRACTIONS)
    names = inspect.signature(deal).parameters
    first = len(labels) if "n_samples" in names else labels
    arguments = (first, settings.pop("clients")) if "n_clients" in names else (first,)
    parts = deal(*arguments, **settings)
    return partition.split(parts, fractions=fractions, seed=settings.get("seed", 0))


def _tune(table: Mapping[str, Any] | None, labels: Sequence[str]) -> dict[str, Any] | None:
    if table is None:
        return None
    check_keys(table, TUNE_KEYS, "tune")
    for key in ("grid", "metric", "goal"):
        if key not in table:
            raise ValueError(f"[tune] needs the key {key}.")
    check.one_of("goal in [tune]", table["goal"], ("max", "min"))
    for key, values in table["grid"].items():
        if not isinstance(values, list) or not values:
            raise ValueError(f"[tune.grid] {key} must be a list of values, got {values!r}.")
    for label, keys in table.get("without", {}).items():
        check.one_of("curve in [tune.without]", label, labels)
        for key in keys:
            check.one_of(f"key of {label!r} in [tune.without]", key, table["grid"])
    return dict(table)


def tuning_grid(declared: Mapping[str, Any], label: str) -> list[dict[str, Any]]:
    """All settings that a curve is tuned over: the grid, without what the curve does not have."""
    missing = declared.get("without", {}).get(label, [])
    grid = {key: values for key, values in declared["grid"].items() if key not in missing}
    return [dict(zip(grid, values, strict=True)) for values in itertools.product(*grid.values())]

"""Experiments as TOML files: a file is only another way to build the objects of the Python API.

A table with a ``name`` stands for an object; its other keys are the object's arguments. The tables
``data``, ``partition``, ``task``, ``algorithm``, ``clock``, ``engine`` and ``run`` describe a run;
each table under ``curves`` describes a curve by what it changes in them. Names and keys that do not
exist are errors that show the nearest valid one.
"""

import copy
import inspect
import json
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from rookery import _check, algorithms, engines, program, tasks
from rookery.clients import datasets, partition
from rookery.program.algorithm import AbstractAlgorithm
from rookery.program.clock import Clock
from rookery.tasks.task import Task

ALGORITHMS: dict[str, Callable] = {name: getattr(algorithms, name) for name in algorithms.__all__}
PARTS: dict[str, Callable] = {name: getattr(program, name) for name in program.__all__} | {
    name: getattr(algorithms.parts, name) for name in algorithms.parts.__all__
}
TASKS: dict[str, Callable] = {name: getattr(tasks, name) for name in tasks.__all__}
ENGINES: dict[str, Callable] = {name: getattr(engines, name) for name in engines.__all__}
PARTITIONS: dict[str, Callable] = {
    name: getattr(partition, name)
    for name in ("iid", "shards", "k_classes", "heterogeneity", "dominant_class", "given_sizes",
                 "dirichlet")
}  # fmt: skip
CURVE_TABLES = ("data", "partition", "task", "algorithm", "clock", "engine")
TABLES = ("title", "claim", "run", "curves", "tune", "plot", *CURVE_TABLES)
RUN_KEYS = {"rounds", "seeds", "evaluate_every", "checkpoint_every", "lanes"}
TUNE_KEYS = {"grid", "metric", "goal", "rounds", "seeds"}
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

    def task(self, data_directory: str | Path | None = None) -> Task:
        """Read the data, give it to clients and set up the problem."""
        settings = dict(self.tables["task"])
        make = TASKS[settings.pop("name")]
        if not _needs_data(make):
            return make(**settings)
        data = dict(self.tables["data"])
        holdout, tail = data.pop("holdout", None), data.pop("long_tail", None)
        dataset = datasets.load(data.pop("name"), data_directory, **data)
        if tail is not None:
            dataset = dataset.keep(partition.long_tail(dataset.train["labels"], **tail))
        if holdout is not None:
            dataset = dataset.hold_out(holdout, seed=self.tables["partition"].get("seed", 0))
        return make(dataset, _parts(self.tables["partition"], dataset.train["labels"]), **settings)

    def blank_task(self) -> Task:
        """The same task on rows of zeros, one per client and split: for costs, not for learning."""
        settings = dict(self.tables["task"])
        make = TASKS[settings.pop("name")]
        if not _needs_data(make):
            return make(**settings)
        table = self.tables["partition"]
        n = table["clients"] if "clients" in table else len(table["sizes"])
        parts = {split: [np.zeros(1, int)] * n for split in table.get("fractions", FRACTIONS)}
        return make(datasets.blank_like(self.tables["data"]["name"]), parts, **settings)


@dataclass(frozen=True)
class Experiment:
    """Curves to be compared, each with the same seeds."""

    title: str
    claim: str
    curves: list[Curve]
    run: dict[str, Any]
    tune: dict[str, Any] | None
    plot: dict[str, Any]
    path: Path | None = None

    @property
    def seeds(self) -> list[int]:
        """The seeds of every curve."""
        return list(self.run.get("seeds", [0]))

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
        _check.one_of("table", key, TABLES)
    for key in ("task", "algorithm", "run"):
        if key not in tables:
            raise ValueError(f"the table [{key}] is missing.")
    changes = [parse_override(text) for text in overrides]
    run = dict(tables["run"])
    for keys, value in changes:
        if keys[0] == "run":
            _set(run, keys[1:], value)
    _keys(run, RUN_KEYS, "run")
    if "rounds" not in run:
        raise ValueError("[run] needs the key rounds.")
    for seed in run.get("seeds", [0]):
        _check.count("run.seeds", seed, least=0)
    _keys(tables.get("plot", {}), PLOT_KEYS, "plot")
    curves = []
    for label, own in tables.get("curves", {tables["algorithm"].get("name", ""): {}}).items():
        for key in own:
            _check.one_of(f"table in [curves.{label}]", key, CURVE_TABLES)
        merged = merge({t: tables[t] for t in CURVE_TABLES if t in tables}, own)
        for keys, value in changes:
            if keys[0] != "run":
                _check.one_of("table", keys[0], CURVE_TABLES)
                _set(merged, keys, value)
        curves.append(curve(label, merged))
    return Experiment(
        title=tables.get("title", "comparison"),
        claim=tables.get("claim", ""),
        curves=curves,
        run=run,
        tune=_tune(tables.get("tune")),
        plot=dict(tables.get("plot", {})),
        path=path,
    )


def curve(label: str, tables: dict[str, Any]) -> Curve:
    """A curve from its merged tables."""
    make = _lookup(TASKS, tables["task"], "task")
    _arguments(make, tables["task"], "task", given=("dataset", "parts"))
    if _needs_data(make):
        for key in ("data", "partition"):
            if key not in tables:
                raise ValueError(f"the task {tables['task']['name']} needs the table [{key}].")
        _check.one_of("data set", _name(tables["data"], "data"), datasets.available())
        extra = ("holdout", "long_tail")
        _arguments(datasets.load, tables["data"], "data", ("name", "directory"), extra)
        deal = _lookup(PARTITIONS, tables["partition"], "partition")
        given = ("labels", "n_samples", "n_clients")
        _arguments(deal, tables["partition"], "partition", given, ("clients", "fractions"))
        if "n_clients" in inspect.signature(deal).parameters:
            _check.count("partition.clients", tables["partition"].get("clients"))
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
        is_same_object = isinstance(old, Mapping) and isinstance(value, Mapping) and (
            "name" not in value or value["name"] == old.get("name")
        )  # fmt: skip
        merged[key] = merge(old, value) if is_same_object else copy.deepcopy(value)
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
    for key in keys[:-1]:
        tables = tables.setdefault(key, {})
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


def _tune(table: Mapping[str, Any] | None) -> dict[str, Any] | None:
    if table is None:
        return None
    _keys(table, TUNE_KEYS, "tune")
    for key in ("grid", "metric"):
        if key not in table:
            raise ValueError(f"[tune] needs the key {key}.")
    _check.one_of("goal in [tune]", table.get("goal", "max"), ("max", "min"))
    for key, values in table["grid"].items():
        if not isinstance(values, list) or not values:
            raise ValueError(f"[tune.grid] {key} must be a list of values, got {values!r}.")
    return dict(table)


def _needs_data(make: Callable) -> bool:
    return "dataset" in inspect.signature(make).parameters


def _keys(table: Mapping[str, Any], valid: set[str], where: str) -> None:
    for key in table:
        _check.one_of(f"key in [{where}]", key, valid)


def _name(table: Any, where: str) -> str:
    if not isinstance(table, Mapping) or not isinstance(table.get("name"), str):
        raise ValueError(f"[{where}] must be a table with a name, got {table!r}.")
    return table["name"]


def _lookup(registry: Mapping[str, Callable], table: Any, where: str) -> Callable:
    return registry[_check.one_of(where, _name(table, where), registry)]


def make_object(registry: Mapping[str, Callable], table: Any, where: str) -> Any:
    """The object that a table with a name stands for."""
    fn = _lookup(registry, table, where)
    arguments = _arguments(fn, table, where)
    return fn(**{key: _value(value, f"{where}.{key}") for key, value in arguments.items()})


def _value(value: Any, where: str) -> Any:
    if isinstance(value, Mapping):
        return make_object(PARTS, value, where)
    return tuple(value) if isinstance(value, list) else value


def _arguments(
    fn: Callable,
    table: Mapping[str, Any],
    where: str,
    given: tuple[str, ...] = (),
    extra: tuple[str, ...] = (),
) -> dict[str, Any]:
    """The table without its name, if its keys are arguments of ``fn`` and none is missing."""
    parameters = inspect.signature(fn).parameters
    valid = [key for key in parameters if key not in given] + list(extra)
    arguments = {key: value for key, value in table.items() if key != "name"}
    _keys(arguments, set(valid), where)
    needed = [k for k in valid if k in parameters and parameters[k].default is inspect._empty]
    if missing := [key for key in needed if key not in arguments]:
        raise ValueError(f"[{where}] needs the key{'s' * (len(missing) > 1)} {', '.join(missing)}.")
    return arguments

"""Experiments as TOML files: a file is only another way to build the objects of the Python API.

A table with a ``name`` stands for an object; its other keys are the object's arguments. Names and
keys that do not exist are errors that show the nearest valid one.
"""

import inspect
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console

from rookery import _check, algorithms, engines, program, tasks
from rookery.clients import datasets, partition
from rookery.program.algorithm import AbstractAlgorithm
from rookery.program.clock import Clock
from rookery.run.loop import Result, run
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
SECTIONS = ("title", "claim", "data", "partition", "task", "algorithm", "clock", "engine", "run")
RUN_KEYS = ("rounds", "seed", "evaluate_every", "checkpoint_every")


@dataclass(frozen=True)
class Experiment:
    """One run, described but not yet begun: no data has been read."""

    title: str
    claim: str
    algorithm: AbstractAlgorithm
    clock: Clock
    engine: Any
    run_settings: dict[str, Any]
    tables: dict[str, Any]

    def task(self, data_directory: str | Path | None = None) -> Task:
        """Read the data, give it to clients and set up the problem."""
        data = dict(self.tables["data"])
        dataset = datasets.load(data.pop("name"), data_directory, **data)
        parts = _parts(self.tables["partition"], dataset.train["labels"])
        settings = dict(self.tables["task"])
        return TASKS[settings.pop("name")](dataset, parts, **settings)

    def run(
        self,
        *,
        directory: str | Path | None = None,
        data_directory: str | Path | None = None,
        overwrite: bool = False,
        console: Console | None = None,
        **overrides: Any,
    ) -> Result:
        """Run it; ``overrides`` replace settings of the file's ``[run]`` table."""
        task = self.task(data_directory)
        return run(
            self.algorithm,
            task.problem,
            task.population,
            task.start,
            evaluate=task.evaluate,
            clock=self.clock,
            engine=self.engine,
            directory=directory,
            overwrite=overwrite,
            console=console,
            title=self.title,
            **{**self.run_settings, **overrides},
        )


def load(path: str | Path) -> Experiment:
    """Read an experiment from a TOML file and check all of it but the data."""
    path = Path(path)
    if not path.exists():
        raise FileNotFoundError(f"there is no file {path}.")
    try:
        tables = tomllib.loads(path.read_text(encoding="utf-8"))
    except tomllib.TOMLDecodeError as error:
        raise ValueError(f"{path} is not valid TOML: {error}") from error
    try:
        return build(tables)
    except (TypeError, ValueError) as error:
        raise ValueError(f"{path}: {error}") from error


def build(tables: Mapping[str, Any]) -> Experiment:
    """An experiment from the tables of a file."""
    for key in tables:
        _check.one_of("table", key, SECTIONS)
    for key in ("data", "partition", "task", "algorithm", "run"):
        if key not in tables:
            raise ValueError(f"the table [{key}] is missing.")
    _check.one_of("data set", _name(tables["data"], "data"), datasets.available())
    _arguments(datasets.load, tables["data"], "data", given=("name", "directory"))
    _arguments(_lookup(PARTITIONS, tables["partition"], "partition"), tables["partition"],
               "partition", given=(*_PARTITION_GIVEN, *_PARTITION_EXTRA))  # fmt: skip
    _arguments(_lookup(TASKS, tables["task"], "task"), tables["task"], "task",
               given=("dataset", "parts"))  # fmt: skip
    for key in tables["run"]:
        _check.one_of("key in [run]", key, RUN_KEYS)
    if "rounds" not in tables["run"]:
        raise ValueError("[run] needs the key rounds.")
    engine = _object(ENGINES, tables.get("engine", {"name": "Compiled"}), "engine")
    clock = tables.get("clock", {})
    return Experiment(
        title=tables.get("title", tables["algorithm"]["name"]),
        claim=tables.get("claim", ""),
        algorithm=_object(ALGORITHMS, tables["algorithm"], "algorithm"),
        clock=_object({"Clock": Clock}, {"name": "Clock", **clock}, "clock"),
        engine=engine,
        run_settings=dict(tables["run"]),
        tables=dict(tables),
    )


_PARTITION_GIVEN = ("labels", "n_samples", "n_clients")
_PARTITION_EXTRA = ("clients", "fractions")


def _parts(table: Mapping[str, Any], labels: np.ndarray) -> dict[str, list[np.ndarray]]:
    settings = dict(table)
    fn = PARTITIONS[settings.pop("name")]
    fractions = settings.pop("fractions", {"train": 0.8, "validation": 0.2})
    names = inspect.signature(fn).parameters
    first = len(labels) if "n_samples" in names else labels
    arguments = (first, settings.pop("clients")) if "n_clients" in names else (first,)
    parts = fn(*arguments, **settings)
    return partition.split(parts, fractions=fractions, seed=settings.get("seed", 0))


def _name(table: Any, where: str) -> str:
    if not isinstance(table, Mapping) or not isinstance(table.get("name"), str):
        raise ValueError(f"[{where}] must be a table with a name, got {table!r}.")
    return table["name"]


def _lookup(registry: Mapping[str, Callable], table: Any, where: str) -> Callable:
    return registry[_check.one_of(where, _name(table, where), registry)]


def _object(registry: Mapping[str, Callable], table: Any, where: str) -> Any:
    fn = _lookup(registry, table, where)
    arguments = _arguments(fn, table, where)
    return fn(**{key: _value(value, f"{where}.{key}") for key, value in arguments.items()})


def _value(value: Any, where: str) -> Any:
    if isinstance(value, Mapping):
        return _object(PARTS, value, where)
    return tuple(value) if isinstance(value, list) else value


def _arguments(
    fn: Callable, table: Mapping[str, Any], where: str, given: tuple[str, ...] = ()
) -> dict[str, Any]:
    """The table without its name, if its keys are arguments of ``fn`` and none is missing."""
    parameters = inspect.signature(fn).parameters
    extra = [key for key in _PARTITION_EXTRA if key in given]
    valid = [key for key in parameters if key not in given] + extra
    arguments = {key: value for key, value in table.items() if key != "name"}
    for key in arguments:
        _check.one_of(f"key in [{where}]", key, valid)
    required = [
        k for k in valid if k in parameters and parameters[k].default is inspect.Parameter.empty
    ]
    missing = [key for key in required if key not in arguments]
    if missing:
        raise ValueError(f"[{where}] needs the key{'s' * (len(missing) > 1)} {', '.join(missing)}.")
    return arguments

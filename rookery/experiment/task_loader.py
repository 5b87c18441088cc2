"""From the tables of a curve to its task: read the data, deal it out, set up the problem."""

import inspect
import json
from pathlib import Path

import numpy as np

from rookery.clients import datasets, partition
from rookery.clients.datasets import Dataset
from rookery.experiment.config import CurveSettings, Table
from rookery.experiment.registry import DATASETS, PARTITIONS, TASKS, lookup, needs_data
from rookery.tasks.task import Task

FRACTIONS = {"train": 0.8, "validation": 0.2}
"""How a client's rows are split if the table [partition] does not say."""


class TaskLoader:
    """Builds the tasks of an experiment; curves with the same tables share data and task.

    Args:
        directory: where data files are; see :mod:`rookery.datasets` for the default.
        is_blank: use rows of zeros of the right number and shape instead of reading rookery's own
            data sets: for costs, not for learning.
    """

    def __init__(self, directory: Path | None = None, *, is_blank: bool = False):
        self._directory, self._is_blank = directory, is_blank
        self._datasets: dict[str, Dataset] = {}
        self._tasks: dict[str, Task] = {}

    def load(self, curve: CurveSettings) -> Task:
        """The task of a curve."""
        if curve.task_key not in self._tasks:
            self._tasks[curve.task_key] = self._build(curve)
        return self._tasks[curve.task_key]

    def _build(self, curve: CurveSettings) -> Task:
        make = lookup(TASKS, curve.tables["task"], "task", curve.folder)
        settings = {k: v for k, v in curve.tables["task"].items() if k != "name"}
        if not needs_data(make):
            return make(**settings)
        dataset, table = self._dataset(curve), curve.tables["partition"]
        if (tail := curve.tables["data"].get("long_tail")) is not None:
            dataset = dataset.keep(partition.long_tail(dataset.train["labels"], **tail))
        if (holdout := curve.tables["data"].get("holdout")) is not None:
            dataset = dataset.hold_out(holdout, seed=table.get("seed", 0))
        if self._is_blank:  # its clients are all alike
            table = {key: value for key, value in table.items() if key != "least"}
        return make(dataset, _parts(table, dataset, curve.folder), **settings)

    def _dataset(self, curve: CurveSettings) -> Dataset:
        settings = dict(curve.tables["data"])
        for key in ("holdout", "long_tail"):
            settings.pop(key, None)
        key = json.dumps([settings, str(curve.folder)])
        if key not in self._datasets:
            self._datasets[key] = self._read(settings, curve.folder)
        return self._datasets[key]

    def _read(self, table: Table, folder: Path | None) -> Dataset:
        settings = dict(table)
        name = settings.pop("name")
        if name in DATASETS:
            if self._is_blank:
                return datasets.blank_like(name)
            return datasets.load(name, self._directory, **settings)
        make = lookup(DATASETS, table, "data", folder)
        if "directory" in inspect.signature(make).parameters:
            settings["directory"] = self._directory
        return make(**settings)


def _parts(table: Table, dataset: Dataset, folder: Path | None) -> dict[str, list[np.ndarray]]:
    """The rows of every client, by split."""
    settings = dict(table)
    deal = lookup(PARTITIONS, settings, "partition", folder)
    del settings["name"]
    fractions = settings.pop("fractions", FRACTIONS)
    names, labels = inspect.signature(deal).parameters, dataset.train["labels"]
    by_name = {"n_samples": len(labels), "owners": dataset.owners}
    first = next((value for name, value in by_name.items() if name in names), labels)
    arguments = (first, settings.pop("clients", None)) if "n_clients" in names else (first,)
    parts = deal(*arguments, **settings)
    return partition.split(parts, fractions=fractions, seed=settings.get("seed", 0))

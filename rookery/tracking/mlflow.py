"""MLflow: a local database, or a tracking server."""

import math
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

STATUS = {"finished": "FINISHED", "stopped": "FINISHED", "interrupted": "KILLED"}
"""MLflow's status for ours; all others are FAILED."""
BATCH = 100
"""The most parameters that MLflow accepts in one call."""


class MLflow:
    """Writes one run to MLflow; the runs of a sweep can be open at the same time.

    MLflow sends usage data to its makers unless ``MLFLOW_DISABLE_TELEMETRY=true`` is set.

    Pass it to a run, as ``rk.run(..., tracker=tracker)``:

    >>> import rookery as rk
    >>> tracker = rk.tracking.MLflow("runs/mlflow", "step sizes", run="first")

    Args:
        store: a directory, for a database ``mlflow.db`` in it, or the address of a tracking server
            or database (anything with ``://``).
        experiment: the MLflow experiment of the run; created if it does not exist.
        run: an id of your choice; give the same id to continue a run. None creates a new one.
    """

    def __init__(self, store: str | Path, experiment: str, *, run: str | None = None):
        try:
            import mlflow  # pyright: ignore[reportMissingImports]
            import sqlalchemy as sqlalchemy  # pyright: ignore[reportMissingImports]
        except ImportError as error:
            raise ImportError(
                "MLflow needs the packages mlflow-skinny and sqlalchemy: "
                "pip install -e '.[mlflow]' in rookery's checkout."
            ) from error
        self._mlflow: ModuleType = mlflow
        self._store, self._experiment, self._name = store, experiment, run
        self._client: Any = None  # a client of MLflow, which is optional
        self._id = ""

    def start(self, title: str, configuration: dict[str, object]) -> None:
        """Open a run with this title, and the configuration as parameters."""
        address, artifacts = str(self._store), None
        if "://" not in address:
            directory = Path(self._store).resolve()
            directory.mkdir(parents=True, exist_ok=True)
            address = f"sqlite:///{directory / 'mlflow.db'}"
            artifacts = (directory / "artifacts").as_uri()
        self._client = self._mlflow.MlflowClient(tracking_uri=address)
        found = self._client.get_experiment_by_name(self._experiment)
        experiment = (
            self._client.create_experiment(self._experiment, artifacts)
            if found is None
            else found.experiment_id
        )
        self._id = self._earlier(experiment) or self._create(experiment, title)
        parameters = [
            self._mlflow.entities.Param(name, str(value))
            for name, value in _flat(configuration, "")
        ]
        for i in range(0, len(parameters), BATCH):
            self._client.log_batch(self._id, params=parameters[i : i + BATCH])

    def log(self, row: Mapping[str, float | int]) -> None:
        """Write a row's numbers, with the round as step."""
        now = int(time.time() * 1000)
        metrics = [
            # a database would turn infinity into the largest finite number
            self._mlflow.entities.Metric(
                name, float(value) if math.isfinite(value) else math.nan, now, int(row["round"])
            )
            for name, value in row.items()
            if name != "round"
        ]
        self._client.log_batch(self._id, metrics=metrics)

    def finish(self, status: str) -> None:
        """Write the status as a tag and close the run."""
        self._client.set_tag(self._id, "rookery.status", status)
        self._client.set_terminated(self._id, STATUS.get(status, "FAILED"))

    def _earlier(self, experiment: str) -> str | None:
        """The id of the run to continue, if there is one."""
        if self._name is None:
            return None
        found = self._client.search_runs([experiment], f"tags.`rookery.run` = '{self._name}'")
        if not found:
            return None
        self._client.update_run(found[0].info.run_id, status="RUNNING")
        return found[0].info.run_id

    def _create(self, experiment: str, title: str) -> str:
        tags = {} if self._name is None else {"rookery.run": self._name}
        return self._client.create_run(experiment, run_name=title, tags=tags).info.run_id


def _flat(value: object, name: str) -> Iterator[tuple[str, object]]:
    """Nested dictionaries and lists as pairs of a dotted name and a plain value.

    >>> dict(_flat({"seed": 0, "problem": {"levels": [2, 3]}}, ""))
    {'seed': 0, 'problem.levels.0': 2, 'problem.levels.1': 3}
    """
    if isinstance(value, list):
        value = dict(enumerate(value))
    if not isinstance(value, dict):
        yield name, value
        return
    for key, inner in value.items():
        yield from _flat(inner, f"{name}.{key}" if name else str(key))

"""Weights & Biases, offline or online."""

from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any, Literal


class WandB:
    """Writes one run to Weights & Biases; the runs of a sweep can be open at the same time.

    Pass it to a run, as ``rk.run(..., tracker=tracker)``:

    >>> import rookery as rk
    >>> tracker = rk.tracking.WandB("step sizes", "runs", mode="offline")

    Args:
        project: the project of the run.
        directory: where the package keeps its files, in a folder ``wandb``.
        mode: ``offline`` writes files only, which ``wandb sync`` uploads later; ``online`` uploads
            during the run.
        run: an id of your choice; give the same id to continue a run. None creates a new one.
    """

    def __init__(
        self,
        project: str,
        directory: str | Path,
        mode: Literal["offline", "online"] = "offline",
        *,
        run: str | None = None,
    ):
        try:
            import wandb  # pyright: ignore[reportMissingImports]
        except ImportError as error:
            raise ImportError(
                "WandB needs the package wandb: pip install -e '.[wandb]' in rookery's checkout."
            ) from error
        if mode not in ("offline", "online"):
            raise ValueError(f"mode must be 'offline' or 'online', got {mode!r}.")
        self._wandb: ModuleType = wandb
        self._project, self._directory, self._mode = project, Path(directory), mode
        self._id = run
        self._run: Any = None  # a run of wandb, which is optional

    def start(self, title: str, configuration: dict[str, object]) -> None:
        """Open a run with this title and configuration."""
        # the package writes elsewhere, with a warning, if the folder does not exist
        self._directory.mkdir(parents=True, exist_ok=True)
        self._run = self._wandb.init(
            project=self._project,
            dir=str(self._directory),
            mode=self._mode,
            name=title,
            config=configuration,
            id=self._id,
            # offline, earlier runs are unknown; `wandb sync --append` joins them
            resume="allow" if self._id is not None and self._mode == "online" else None,
            # the runs of a sweep are open at the same time
            reinit="create_new",
            # leave the terminal to the progress bar
            settings=self._wandb.Settings(console="off", quiet=True),
        )

    def log(self, row: Mapping[str, float | int]) -> None:
        """Write a row, with the round as step."""
        self._run.log(dict(row), step=int(row["round"]))

    def finish(self, status: str) -> None:
        """Write the status to the summary and close the run."""
        self._run.summary["status"] = status
        self._run.finish(exit_code=0 if status in ("finished", "stopped") else 1)

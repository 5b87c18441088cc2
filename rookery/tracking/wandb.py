"""Weights & Biases: kept on this machine, or sent to its server."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal


class WandB:
    """Writes one run as Weights & Biases does; several can be open side by side.

    Args:
        project: the runs it belongs to.
        directory: where the package keeps its files, in a folder ``wandb``.
        mode: ``offline`` writes files only, which ``wandb sync`` sends when you ask for it;
            ``online`` sends them while the run goes on.
        run: an identity of your choice, the same when the run goes on; a new one if not given.
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
                "WandB needs the package wandb: pip install rookery[wandb]"
            ) from error
        if mode not in ("offline", "online"):
            raise ValueError(f"mode must be 'offline' or 'online', got {mode!r}.")
        self._wandb: Any = wandb
        self._project, self._directory, self._mode = project, Path(directory), mode
        self._id = run
        self._run: Any = None

    def start(self, title: str, configuration: dict[str, Any]) -> None:
        """Open a run of this title with the configuration."""
        # the package writes elsewhere, with a warning, if the folder does not exist
        self._directory.mkdir(parents=True, exist_ok=True)
        self._run = self._wandb.init(
            project=self._project,
            dir=str(self._directory),
            mode=self._mode,
            name=title,
            config=configuration,
            id=self._id,
            # offline nothing is known of earlier runs; `wandb sync --append` joins them
            resume="allow" if self._id is not None and self._mode == "online" else None,
            # the jobs of a sweep run side by side
            reinit="create_new",
            # the terminal is the progress bar's
            settings=self._wandb.Settings(console="off", quiet=True),
        )

    def log(self, row: Mapping[str, float | int]) -> None:
        """Write a row, with the round as step."""
        self._run.log(dict(row), step=int(row["round"]))

    def finish(self, status: str) -> None:
        """Write the status to the summary and close the run."""
        self._run.summary["status"] = status
        self._run.finish(exit_code=0 if status == "finished" else 1)

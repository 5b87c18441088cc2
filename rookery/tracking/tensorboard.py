"""Event files for TensorBoard, written by the light package tensorboardX."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any


class TensorBoard:
    """Writes one run to event files; view them with ``tensorboard --logdir runs``.

    TensorBoard keeps scalars in single precision. A resumed run adds a file to the directory, and
    TensorBoard shows both as one.

    Pass it to a run, as ``rk.run(..., tracker=tracker)``:

    >>> import rookery as rk
    >>> tracker = rk.tracking.TensorBoard("runs/a")

    Args:
        directory: a folder for this run alone.
    """

    def __init__(self, directory: str | Path):
        try:
            import tensorboardX  # pyright: ignore[reportMissingImports]
        except ImportError as error:
            raise ImportError(
                "TensorBoard needs the package tensorboardX: "
                "pip install -e '.[tensorboard]' in rookery's checkout."
            ) from error
        self._open = tensorboardX.SummaryWriter
        self._directory = Path(directory)
        self._writer: Any = None  # of tensorboardX, which is optional

    def start(self, title: str, configuration: dict[str, object]) -> None:
        """Open an event file and write the configuration as text."""
        # the package names a file by the second, and would overwrite one of the same second
        files = len(list(self._directory.glob("events.out.tfevents.*")))
        self._writer = self._open(str(self._directory), filename_suffix=f".{files}")
        text = json.dumps(configuration, indent=2)
        self._writer.add_text("configuration", f"# {title}\n\n```json\n{text}\n```")

    def log(self, row: Mapping[str, float | int]) -> None:
        """Write a row's numbers, with the round as step, and flush them."""
        for name, value in row.items():
            if name != "round":
                self._writer.add_scalar(name, value, int(row["round"]))
        self._writer.flush()

    def finish(self, status: str) -> None:
        """Write the status as text and close the file."""
        self._writer.add_text("status", status)
        self._writer.close()

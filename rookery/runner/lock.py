"""A lock on a run directory: one process at a time writes to it."""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from rookery.runner.atomic_file import make_directory

try:
    import fcntl
except ModuleNotFoundError:  # no locking on Windows
    fcntl = None


@contextmanager
def locked(directory: Path, say: Callable[[str], None]) -> Iterator[None]:
    """Keep other processes out of a directory, or raise if one holds it already.

    The lock is released when the process ends, however it ends.

    Args:
        directory: created if it does not exist.
        say: called with a warning if the file system has no locks.
    """
    make_directory(directory)
    with (directory / "lock").open("a+") as file:
        if fcntl is not None:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                file.seek(0)
                raise ValueError(
                    f"process {file.read() or 'unknown'} is already writing to {directory}. "
                    "Wait for it, stop it, or choose another directory."
                ) from None
            except OSError as error:
                say(
                    f"Warning: {directory} cannot be locked ({error}). Make sure that no other "
                    "process writes to it."
                )
        file.truncate(0)
        file.write(str(os.getpid()))
        file.flush()
        yield

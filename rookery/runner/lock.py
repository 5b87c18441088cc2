"""One process at a time writes to a run's directory."""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

try:
    import fcntl
except ModuleNotFoundError:  # Windows, where nobody is kept out
    fcntl = None


@contextmanager
def locked(directory: Path, say: Callable[[str], None]) -> Iterator[None]:
    """Keep other processes out of a directory, or raise if one is there already.

    The lock ends with the process, however that ends.

    Args:
        directory: made if there is none.
        say: is told if the file system knows no locks.
    """
    directory.mkdir(parents=True, exist_ok=True)
    with (directory / "lock").open("a+") as file:
        if fcntl is not None:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                file.seek(0)
                raise ValueError(
                    f"another process, number {file.read() or 'unknown'}, is at work in "
                    f"{directory}. Wait for it or stop it, or choose another directory."
                ) from None
            except OSError as error:
                say(
                    f"Warning: {directory} cannot be locked ({error}). See to it that no other "
                    "process writes there."
                )
        file.truncate(0)
        file.write(str(os.getpid()))
        file.flush()
        yield

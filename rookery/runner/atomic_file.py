"""Files that are complete or as before, whenever the process or the machine stops."""

import os
from pathlib import Path


def replace_file(path: Path, content: bytes) -> None:
    """Write to a temporary name, flush to the disk, then rename: complete or as before."""
    temporary = path.with_name(path.name + ".tmp")
    try:
        temporary.unlink(missing_ok=True)  # left by a kill; it could also be a link
        try:
            with temporary.open("xb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            temporary.replace(path)
            sync_directory(path.parent)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise
    except OSError as error:
        raise with_name(error, path) from error


def with_name(error: OSError, path: Path) -> OSError:
    """The error with the name of the file, which a failed write lacks.

    >>> str(with_name(OSError(28, "No space left on device"), Path("history.jsonl")))
    "[Errno 28] No space left on device: 'history.jsonl'"
    """
    return OSError(error.errno, error.strerror or str(error), str(path))


def make_directory(directory: Path) -> None:
    """Make a directory and its parents, if they are not there, and flush their names to disk."""
    new = [path for path in (directory, *directory.parents) if not path.exists()]
    directory.mkdir(parents=True, exist_ok=True)
    for path in new:
        sync_directory(path.parent)


def sync_directory(directory: Path) -> None:
    """Flush the names in a directory to the disk: without that a new file may be lost with them."""
    if os.name != "posix":  # Windows cannot open a directory
        return
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)

"""Files that may be damaged or come from elsewhere: read only if they are what they should be."""

import json
import os
import stat
from pathlib import Path
from typing import Any, NotRequired, TypedDict

from rookery import check

Json = Any
"""Decoded JSON; :func:`read_document` checks its form."""

LARGEST = 2**64
"""Whole numbers in a file are smaller: no count of rookery needs more than 64 bits."""


def require_file(path: Path) -> None:
    """Raise unless a path is a regular file.

    A symbolic link in a directory from elsewhere could lead to any file, and a pipe never ends.

    >>> require_file(Path(os.curdir))
    Traceback (most recent call last):
    ValueError: . is a directory, and a file was expected. Remove it, or restore the file.
    """
    mode = path.lstat().st_mode
    if not stat.S_ISREG(mode):
        kind = "a directory" if stat.S_ISDIR(mode) else "not a regular file"
        kind = "a symbolic link" if stat.S_ISLNK(mode) else kind
        raise ValueError(
            f"{path} is {kind}, and a file was expected. Remove it, or restore the file."
        )


def require_no_links(directory: Path) -> None:
    """Raise if a run directory holds a symbolic link: a run must not write anywhere else.

    The directory itself may be one.
    """
    for folder in (directory, directory / "checkpoints"):
        if folder.is_dir():
            for path in folder.iterdir():
                if path.is_symlink():
                    raise ValueError(
                        f"{path} is a symbolic link; in a run directory none is followed. "
                        "Replace it by what it points to, or remove it."
                    )


def read_document(path: Path, kind: object, remedy: str) -> Json:
    """A JSON file whose content is of a kind, as :func:`rookery.check.typed` has it.

    Args:
        path: the file.
        kind: an annotation, such as a ``TypedDict``.
        remedy: what to do about a damaged file, as a sentence.
    """
    require_file(path)
    try:
        content = parse(path.read_bytes())
        check.typed("the content", content, kind)
    except (ValueError, TypeError) as error:
        raise ValueError(f"{path} is damaged: {error} {remedy}") from error
    return content


class _RollBack(TypedDict):
    lost: int
    factor: float
    reason: str


class _Summary(TypedDict):
    status: str
    rounds: int
    message: str
    rollbacks: NotRequired[list[_RollBack]]


def read_summary(directory: Path) -> dict[str, Json]:
    """The ``summary.json`` of a run directory; empty if the run has not ended.

    >>> read_summary(Path("nowhere"))
    {}
    """
    path = directory / "summary.json"
    if not os.path.lexists(path):
        return {}
    remedy = "Remove it; the command that made the run writes it again."
    return read_document(path, _Summary, remedy)


def parse(text: bytes) -> Json:
    """Decode JSON, with a ValueError for everything that is none, or has numbers beyond 64 bits.

    >>> parse(b'{"round": 3}')
    {'round': 3}
    """
    try:
        return json.loads(text, parse_int=_whole)
    except RecursionError as error:
        raise ValueError("too many lists inside one another.") from error
    except UnicodeDecodeError as error:
        raise ValueError(f"it is not a text in UTF-8: {error}.") from error
    except json.JSONDecodeError as error:
        raise ValueError(f"it is not valid JSON: {error}.") from error


def _whole(text: str) -> int:
    value = int(text)
    if abs(value) >= LARGEST:
        raise ValueError(f"the number {text[:20]}... does not fit 64 bits.")
    return value

"""What a command did with bad input: done, a plain error, or something that it should not do."""

import contextlib
import io
import linecache
import os
import traceback
from dataclasses import dataclass
from pathlib import Path
from unittest import mock

import rookery
from rookery.cli import main as cli

PACKAGE = str(Path(rookery.__file__).parent)


@dataclass
class Outcome:
    """How a command ended.

    Attributes:
        code: its exit code; None for a traceback.
        said: what it printed to standard error, or the traceback.
        is_deliberate: whether rookery itself found the mistake, and no other code stumbled over it.
    """

    code: int | None
    said: str
    is_deliberate: bool


def outcome_of(*arguments: object) -> Outcome:
    """Run a command in this process."""
    out, err = io.StringIO(), io.StringIO()
    caught: list[BaseException] = []

    def keep(error: Exception) -> str:
        caught.append(error)
        return str(error)

    with (
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
        mock.patch.object(cli, "_in_words", keep),
        mock.patch.dict(os.environ, {"COLUMNS": "200"}),
    ):
        try:
            cli.main([str(argument) for argument in arguments])
        except SystemExit as ended:
            code = ended.code if isinstance(ended.code, int) else 1
            return Outcome(code, err.getvalue(), all(map(_is_deliberate, caught)))
        except Exception:
            return Outcome(None, traceback.format_exc(), False)
    return Outcome(0, err.getvalue(), True)


def _is_deliberate(error: BaseException) -> bool:
    """Whether the line that raised an error is a ``raise`` of the package, or the disk's own."""
    if isinstance(error, OSError | MemoryError):
        return True
    last = traceback.extract_tb(error.__traceback__)[-1]
    is_ours = last.filename.startswith(PACKAGE)
    return is_ours and linecache.getline(last.filename, last.lineno or 0).strip().startswith(
        "raise"
    )

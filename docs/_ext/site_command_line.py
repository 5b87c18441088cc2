"""The reference of the command line: what `rookery COMMAND --help` prints."""

import contextlib
import io
import re
from unittest import mock

from rookery.cli import main as command

NOTE = """The command ``rookery`` is installed with the package. ``rookery --help`` and
``rookery COMMAND --help`` print what is below. ``ROOKERY_TRACEBACK=1`` in the environment shows the
whole traceback of an error. The exit status is 0 after success, 2 after an error that the command
explains, 130 after Ctrl-C, and 143 after SIGTERM.
"""


def commands() -> list[str]:
    """The names of all commands."""
    found = re.search(r"\{([a-z,-]+)\}", help_of())
    assert found is not None
    return found[1].split(",")


def help_of(*words: str) -> str:
    """The help text of the command or of one of its commands."""
    out = io.StringIO()
    wide = mock.patch.dict("os.environ", {"COLUMNS": "88", "NO_COLOR": "1", "TERM": "dumb"})
    with wide, contextlib.redirect_stdout(out), contextlib.suppress(SystemExit):
        command.main([*words, "--help"])
    return re.sub(r"\x1b\[[0-9;]*m", "", out.getvalue())


def command_page() -> str:
    """The page."""
    lines = ["The command line", "================", "", NOTE, literal(help_of())]
    for name in commands():
        title = f"rookery {name}"
        lines += [title, "-" * len(title), "", literal(help_of(name))]
    return "\n".join(lines)


def literal(text: str) -> str:
    """A block of text as it is."""
    inside = "\n".join(f"   {line}".rstrip() for line in text.strip("\n").splitlines())
    return f".. code-block:: text\n\n{inside}\n"

"""The examples as a gallery: copies of them run where they leave nothing in the repository."""

import ast
import re
import shutil
from pathlib import Path

EXAMPLES = Path(__file__).parents[2] / "examples"
NOT_RUN = {"13_two_processes", "20_torch_model", "21_nnx_model"}
"""Examples that need another package or several processes; tests/test_examples.py runs them."""
WHERE = {"20_torch_model": "make test-models", "21_nnx_model": "make test-models"}
NOTE = """
.. note::
   The page shows this program without running it. ``tests/test_examples.py`` runs it
   ({where}).
"""
HEADS = {
    "": """Examples
========

Each program asks a question, shows a picture and says what was learnt. All run in less than two
minutes on a laptop. ``python examples/01_quadratic.py`` runs one in a checkout.
""",
    "recipes": """Recipes
-------

Each begins with a question about eight hospitals and ends with a saved model.
""",
}


def settings(docs: Path) -> dict:
    """Copy the examples and return the settings of sphinx-gallery."""
    stage(docs / "_examples")
    return {
        "examples_dirs": [str(docs / "_examples")],
        "gallery_dirs": ["gallery"],
        "filename_pattern": rf"/(?!({'|'.join(sorted(NOT_RUN))})\.py)[^/]*\.py$",
        "ignore_pattern": r"tables\.py",
        "within_subsection_order": "FileNameSortKey",
        "abort_on_example_error": True,
        "plot_gallery": True,
        "download_all_examples": False,
        "show_memory": False,
        "write_computation_times": False,  # its page loads scripts from elsewhere
        "show_signature": False,
        "min_reported_time": 1e9,
        "reset_modules": ("site_gallery.fresh",),
        "remove_config_comments": True,
        "default_thumb_file": str(docs / "_static" / "nest.png"),
    }


def fresh(conf: dict, file: str) -> None:
    """Every example starts with the precision that a new process has."""
    import jax
    import matplotlib.pyplot as plt

    jax.config.update("jax_enable_x64", False)
    plt.close("all")


def stage(folder: Path) -> None:
    """Write the examples with a title each; files that did not change keep their times."""
    wanted = {}
    for part, head in HEADS.items():
        wanted[folder / part / "GALLERY_HEADER.rst"] = head
        for path in sorted((EXAMPLES / part).glob("*.py")):
            text = path.read_text()
            wanted[folder / part / path.name] = (
                text if path.stem == "tables" else titled(text, path.stem)
            )
    for old in folder.rglob("*"):
        if old.is_file() and old.suffix in {".py", ".rst"} and old not in wanted:
            old.unlink()
    for path, text in wanted.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        if not path.exists() or path.read_text() != text:
            path.write_text(text)
    for made in folder.rglob("*-hospitals"):  # runs of an earlier build would be resumed
        shutil.rmtree(made)


def titled(program: str, name: str) -> str:
    """A program whose docstring has its first sentence as a title.

    >>> program = '"' * 3 + "Why? Because." + '"' * 3 + chr(10)
    >>> titled(program, "why").splitlines()[1:3]
    ['Why?', '====']
    """
    doc = ast.get_docstring(ast.parse(program))
    assert doc is not None, f"{name} needs a docstring."
    title, rest = re.fullmatch(r"(.*?[?.])(?:\s+(.*))?", doc, flags=re.DOTALL).groups()
    title = " ".join(title.split())
    body = program[program.index('"""') :].split('"""', 2)[2]
    note = NOTE.format(where=WHERE.get(name, "make test-slow")) if name in NOT_RUN else ""
    lines = ['"""', title, "=" * len(title), "", rest or "", note, '"""']
    return "\n".join(lines) + body

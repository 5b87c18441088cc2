"""The pages that code writes: complete, and true."""

import doctest
import inspect
import re
import sys
from pathlib import Path
from typing import Any

import pytest

import rookery as rk
from rookery import algorithms
from rookery.experiment import config

EXTENSIONS = Path(__file__).parents[2] / "docs" / "_ext"
sys.path.insert(0, str(EXTENSIONS))

import site_command_line  # noqa: E402  # pyright: ignore[reportMissingImports]
import site_gallery  # noqa: E402  # pyright: ignore[reportMissingImports]
import site_names  # noqa: E402  # pyright: ignore[reportMissingImports]
import site_toml  # noqa: E402  # pyright: ignore[reportMissingImports]


def test_every_public_name_has_an_entry():
    entries = {full.rpartition(".")[2] for names in site_names.entries().values() for full in names}
    for name in rk.__all__:
        if inspect.ismodule(getattr(rk, name)):
            assert site_names.public_names(f"rookery.{name}"), name
        else:
            assert name in entries or name in site_names.algorithm_names(), name
    assert set(algorithms.GROUPED) <= set(site_names.algorithm_names())


def test_every_entry_names_something_with_a_docstring():
    for names in site_names.entries().values():
        for full in names:
            assert inspect.getdoc(site_names.resolve(full)), full


def test_the_page_on_toml_files_has_every_key():
    page = site_toml.toml_page()
    for keys in (config.TABLES, config.RUN_KEYS, config.TUNE_KEYS, config.PLOT_KEYS):
        for key in keys:
            assert f"``{key}``" in page
    for name in site_names.algorithm_names():
        assert f"\n{name}\n~" in page


def test_every_command_is_on_the_page():
    page = site_command_line.command_page()
    assert {"demo", "run", "doctor", "flare-submit"} <= set(site_command_line.commands())
    assert "\nrookery doctor\n-" in page and "\x1b" not in page


@pytest.mark.parametrize("module", [site_gallery, site_names, site_toml])
def test_examples_in_docstrings(module):
    assert doctest.testmod(module).failed == 0


def test_the_page_for_assistants_names_pages_that_exist_and_a_program_that_runs():
    text = (EXTENSIONS.parent / "llms.txt").read_text()
    for page in re.findall(r"\]\(([\w/-]+)\.html\)", text):
        written = page.startswith(("reference/", "gallery/"))  # when the site is built
        assert written or (EXTENSIONS.parent / f"{page}.md").exists(), page
    program = text.split("## Example")[1].replace("rounds=100", "rounds=2")
    names: dict[str, Any] = {}
    exec(program, names)
    assert names["result"].ledger.exchanges > 0

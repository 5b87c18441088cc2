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


def test_every_algorithm_is_in_the_readme_and_in_the_choice():
    readme = (EXTENSIONS.parents[1] / "README.md").read_text()
    choice = (EXTENSIONS.parent / "guide" / "which-algorithm.md").read_text()
    for name in site_names.algorithm_names():
        assert re.search(rf"\b{name}\b", readme), name
        assert f"[{name}](../reference/algorithms/{name}.rst)" in choice, name


TITLES = {  # what newcomers ask for, and the page with that title
    "which algorithm": "guide/which-algorithm.md",
    "outer_lr, terms and lipschitz": "guide/step-sizes.md",
    "where data files come from": "guide/data-files.md",
    "what leaves a site, logs included": "guide/what-leaves-a-site.md",
    "add a site, abort a job": "tutorials/deploy-with-flare.md",
    "flax, batchnorm and dropout": "tutorials/pytorch-module.md",
    "gpus, data larger than memory": "devices.md",
    "load a trained model elsewhere": "guide/load-a-model.md",
    "how to cite": "papers/citing.md",
}


def test_a_newcomers_questions_are_titles_of_pages():
    for words, page in TITLES.items():
        text = (EXTENSIONS.parent / page).read_text()
        assert words in re.findall("^# (.*)$", text, re.MULTILINE)[0].lower(), page
    assert "oracles" in site_names.LAYERS["problems"][0]
    assert site_toml.toml_page().startswith("The TOML file: tables and keys")


def test_every_entry_names_something_with_a_docstring():
    for names in site_names.entries().values():
        for full in names:
            assert inspect.getdoc(site_names.resolve(full)), full


def test_every_entry_has_an_example():
    names = [full for names in site_names.entries().values() for full in names]
    assert not [n for n in names if ">>>" not in (inspect.getdoc(site_names.resolve(n)) or "")]


NO_ENTRY = {"rookery.types", "rookery.algorithms.fedgrad"}  # annotations; a page's own example


def test_every_name_that_a_page_imports_has_an_entry():
    entries = {full.rpartition(".")[2] for names in site_names.entries().values() for full in names}
    known = {*entries, *site_names.algorithm_names()}
    for page in EXTENSIONS.parent.glob("**/*.md"):
        for whence, names in re.findall(r"^from (rookery\S*) import (.+)$", page.read_text(), re.M):
            for name in {*re.findall(r"\w+", names)} - known:
                full = f"{whence}.{name}"
                assert whence in NO_ENTRY or inspect.ismodule(site_names.resolve(full)), full


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
    for folder in ("", "guide", "tutorials", "papers"):
        for page in (EXTENSIONS.parent / folder).glob("*.md"):
            path = page.relative_to(EXTENSIONS.parent).with_suffix(".html")
            assert page.name == "index.md" or f"]({path})" in text, path
    program = text.split("## Example")[1].replace("rounds=100", "rounds=2")
    names: dict[str, Any] = {}
    exec(program, names)
    assert names["result"].ledger.exchanges > 0

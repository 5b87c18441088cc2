"""The public names: few, documented, importable, complete."""

import ast
import inspect
from pathlib import Path

import pytest

import rookery as rk
from rookery import algorithms, engines

IMPORTED = [
    alias.asname
    for block in ast.parse(Path(rk.__file__).read_text()).body
    if isinstance(block, ast.If)
    for node in block.body
    if isinstance(node, ast.ImportFrom)
    for alias in node.names
    if not str(alias.asname).startswith("_")
]


@pytest.mark.parametrize("name", rk.__all__)
def test_every_public_name_is_documented(name):
    assert inspect.getdoc(getattr(rk, name))


@pytest.mark.parametrize("name", [*rk.__all__, *algorithms.GROUPED])
def test_every_public_name_has_an_example(name):
    thing = getattr(rk, name, None) or getattr(algorithms, name)
    assert inspect.ismodule(thing) or ">>>" in (inspect.getdoc(thing) or "")


@pytest.mark.parametrize("name", algorithms.GROUPED)
def test_algorithms_without_a_name_at_the_top_are_documented_in_their_package(name):
    assert inspect.getdoc(getattr(algorithms, name)) and not hasattr(rk, name)


def test_there_are_few_names_and_every_algorithm_and_engine_is_among_them():
    assert len(rk.__all__) <= 70
    assert set(IMPORTED) == set(rk.__all__) and len(IMPORTED) == len(rk.__all__)
    for package in (algorithms, engines):
        assert set(package.__all__) <= {*rk.__all__}


def test_a_function_does_not_hide_a_package():
    packages = {path.parent.name for path in Path(rk.__file__).parent.glob("*/__init__.py")}
    hidden = [name for name in packages & {*rk.__all__} if not inspect.ismodule(getattr(rk, name))]
    assert not hidden

"""The public names: few, documented, importable, complete."""

import ast
import inspect
from pathlib import Path

import pytest

import rookery as rk
from rookery import engines

NAMES = [
    alias.asname
    for node in ast.parse(Path(rk.__file__).read_text()).body
    if isinstance(node, ast.ImportFrom)
    for alias in node.names
    if not str(alias.asname).startswith("_")
]


@pytest.mark.parametrize("name", NAMES)
def test_every_public_name_is_documented(name):
    assert inspect.getdoc(getattr(rk, name))


def test_names_are_unique_and_every_algorithm_and_engine_is_among_them():
    assert len(NAMES) == len(set(NAMES))
    for package in (rk.algorithms, engines):
        assert set(package.__all__) <= {*NAMES}

"""The public names: documented, importable, complete."""

import ast
import inspect
from pathlib import Path

import pytest

import rookery as rk
from rookery import engines, program

SOURCE = Path(rk.__file__).read_text()
NAMES = [
    alias.asname
    for node in ast.parse(SOURCE).body
    if isinstance(node, ast.ImportFrom)
    for alias in node.names
]


@pytest.mark.parametrize("name", NAMES)
def test_every_public_name_is_documented(name):
    assert inspect.getdoc(getattr(rk, name))


def test_names_are_unique_and_every_algorithm_and_part_is_among_them():
    assert len(NAMES) == len(set(NAMES))
    for package in (rk.algorithms, rk.algorithms.parts, program, engines):
        assert set(package.__all__) <= {*NAMES}


def test_the_init_file_stays_a_list_of_names():
    assert len(SOURCE.splitlines()) <= 180

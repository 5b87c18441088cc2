"""The page on costs says what the ledger counts."""

import sys
from pathlib import Path

import pytest

from rookery import algorithms

sys.path.insert(0, str(Path(__file__).parents[2] / "docs" / "_ext"))

import site_costs  # pyright: ignore[reportMissingImports]


def test_every_algorithm_has_a_row():
    assert set(site_costs.ROWS) == {*algorithms.__all__, *algorithms.GROUPED} - {"parts"}


QUICK = {"FedAvg", "GDA", "SOBA"}  # `make test-slow` has all, twice
CASES = [
    pytest.param(name, choice, marks=[] if name in QUICK and not i else [pytest.mark.slow])
    for name in site_costs.ROWS
    for i, choice in enumerate(site_costs.CHOICES)
]


@pytest.mark.parametrize(("name", "choice"), CASES)
def test_a_row_is_what_the_ledger_counts(name, choice):
    row = site_costs.ROWS[name]
    counts = site_costs.counted(row, choice)
    for column in site_costs.COLUMNS:
        expected = site_costs.value(getattr(row, column), choice)
        assert expected is None or counts[column] == expected, column
